"""Many processes that need one corpus: one prepares it, and another takes over if it is killed."""

import json
import os
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest
import yaml

from lehr_testing.corpora import documents, prepare_texts, write_jsonl
from lehr_testing.forking import fork, run
from lehr_testing.waiting import until
from lehr_trainer.data import prepare

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
PREAMBLE = """
import json, os, sys, time
from pathlib import Path
from lehr_trainer.configs.corpus import FilesCorpus
from lehr_trainer.configs.train import DataConfig, ValidationConfig
from lehr_trainer.data.prepare import prepare_dataset
from lehr_trainer.data import prepare, shards

folder, log = Path(sys.argv[1]), Path(sys.argv[3]).open("w")
os.dup2(log.fileno(), 1)
os.dup2(log.fileno(), 2)
prepare.SHARD_TOKENS, prepare._BATCH_BYTES = 4000, 700


def say(phase, message, done):
    print(json.dumps({"message": message, "done": done}), flush=True)


def hold(name):
    # Until the test lets go, so that nothing depends on who is fast.
    print(json.dumps({"message": name, "done": None}), flush=True)
    while not (folder / name).exists():
        time.sleep(0.01)


def run():
    data = DataConfig(
        corpus=FilesCorpus(kind="jsonl", paths=[str(folder / "corpus.jsonl")]), tokenizer="byte"
    )
    held_out = ValidationConfig(share=0.1, tokens=10**9)
    made = prepare_dataset(data, held_out, 512, folder / "root", say, started_by=f"trial {sys.argv[2]}")
    print(json.dumps({"digest": made.digest, "validation": made.validation_digest}), flush=True)
"""

HOLDS_WHEN_WRITTEN = """
finish = shards.ShardWriter.finish
def finish_later(self):
    hold("go")
    return finish(self)
shards.ShardWriter.finish = finish_later
run()
"""

HOLDS_AFTER_THREE_SHARDS = """
append = shards.ShardWriter.append
def append_until(self, batch, then):
    append(self, batch, then)
    if len(list(folder.glob("root/*.partial/train-*.bin"))) == 3:
        hold("never")
shards.ShardWriter.append = append_until
run()
"""


class Preparer:
    """A real process that prepares the corpus in ``folder``; its output goes to a file."""

    def __init__(self, folder: Path, number: int, script: str = "run()") -> None:
        self.path = folder / f"preparer-{number}.log"
        self.path.touch()
        self.process = fork(
            None,
            [str(folder), str(number), str(self.path)],
            environment=ENVIRONMENT,
            code=PREAMBLE + textwrap.dedent(script),
        )

    def messages_sent(self) -> list[dict]:
        return [json.loads(line) for line in self.path.read_text().splitlines() if line[:1] == "{"]

    def messages(self, words: str) -> list[str]:
        return [one["message"] for one in self.messages_sent() if words in one.get("message", "")]

    def result(self) -> dict:
        assert self.process.wait(200) == 0, self.path.read_text()
        return self.messages_sent()[-1]


@pytest.fixture
def start(tmp_path):
    write_jsonl(tmp_path / "corpus.jsonl", documents(400))
    started = []

    def starter(script: str = "run()") -> Preparer:
        started.append(Preparer(tmp_path, len(started), script))
        return started[-1]

    yield starter
    for one in started:
        one.process.end_session()
        one.process.close()


@pytest.fixture
def undisturbed(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "SHARD_TOKENS", 4000)
    monkeypatch.setattr(prepare, "_BATCH_BYTES", 700)
    (tmp_path / "undisturbed").mkdir()
    return prepare_texts(tmp_path / "undisturbed", documents(400))


def test_one_of_three_trials_prepares_and_the_others_wait_and_report_it(
    start, tmp_path, undisturbed
):
    first = start(HOLDS_WHEN_WRITTEN)
    until(lambda: first.messages("go"), within_s=120, what="the first to hold the lock")
    rest = [start() for _ in range(2)]
    waits = f"waits for pid {first.process.pid}, started by trial 0, which prepares the data"
    for one in rest:
        until(lambda one=one: one.messages(waits), within_s=120, what="the others to wait")
    (tmp_path / "go").touch()
    results = [one.result() for one in (first, *rest)]
    assert all(
        result == {"digest": undisturbed.digest, "validation": undisturbed.validation_digest}
        for result in results
    )
    assert [len(one.messages("prepared")) for one in (first, *rest)] == [1, 0, 0]
    assert len(list((tmp_path / "root").glob("*/manifest.json"))) == 1


def test_killed_preparation_is_resumed_not_repeated(start, tmp_path, undisturbed):
    killed = start(HOLDS_AFTER_THREE_SHARDS)
    until(lambda: killed.messages("never"), within_s=120, what="three finished shards")
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.wait()
    (partial,) = (tmp_path / "root").glob("*.partial")
    before = {path.name: path.stat().st_ino for path in partial.glob("train-*.bin")}
    assert len(before) == 3
    again = start()
    assert again.result()["digest"] == undisturbed.digest
    assert again.messages("resuming after 3 finished shards")
    (made,) = (path.parent for path in (tmp_path / "root").glob("*/manifest.json"))
    assert {name: (made / name).stat().st_ino for name in before} == before
    assert not list((tmp_path / "root").glob("*.partial"))


# --- the command ---------------------------------------------------------------------------------


def command(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(
        "lehr_trainer.data", "prepare", *arguments, environment={**ENVIRONMENT, **environment}
    )


@pytest.fixture
def config(tmp_path):
    values = {
        "model": "tiny",
        "data": {
            "corpus": {
                "kind": "jsonl",
                "paths": [str(write_jsonl(tmp_path / "c.jsonl", documents(200)))],
            },
            "tokenizer": "byte",
        },
        "batch": {"sequences": 4, "sequence_length": 64},
        "steps": 10,
        "validation": {"share": 0.1},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def test_command_prepares_a_config_and_prints_the_folder(tmp_path, config):
    done = command(config, LEHR_DATA=str(tmp_path / "data"))
    assert done.returncode == 0, done.stderr
    assert "training tokens" in done.stdout
    assert Path(done.stdout.splitlines()[-1]).parent == tmp_path / "data"
    assert "data: 100% prepared" in done.stderr


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda path: path.write_text("steps: -1"), "steps: Input should be greater than"),
        (
            lambda path: path.write_text(path.read_text().replace("c.jsonl", "d.jsonl")),
            "d.jsonl does not exist; did you mean",
        ),
    ],
)
def test_command_reports_an_error_in_one_line(tmp_path, config, harm, says):
    harm(config)
    done = command(config, "--root", tmp_path / "data")
    assert done.returncode == 1
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
