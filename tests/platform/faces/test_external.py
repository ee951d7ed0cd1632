"""Runs of scripts that Lehr did not start, with a real server and real processes: ``lehr_log.init``,
the process that sends, and ``lehr sync``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from lehr import Client
from lehr.base import procfs
from lehr.faces.mcp.reading import Reading
from lehr_testing.api import TOKEN, served
from lehr_testing.cli import call
from lehr_testing.server import free_port
from lehr_testing.waiting import until

LOGS = """
    import sys, time, lehr_log
    run = lehr_log.init(project="my project", name="mine", config={"lr": 1e-3}, group="g")
    for step in range(1, 31):
        lehr_log.log({"loss": 3 / step}, step=step)
        time.sleep(0.02)
    run.summary["best"] = 0.5
"""


class Scripts:
    """Scripts in a folder of their own, with the address of a server."""

    def __init__(self, folder: Path, url: str, api) -> None:
        self.folder, self.api = folder, api
        folder.mkdir()
        self.own = {"LEHR_SERVER": url, "LEHR_TOKEN": TOKEN, "LEHR_HOME": str(folder / "home")}

    def start(self, text: str, **environment: str) -> subprocess.Popen[str]:
        keep = {k: v for k, v in os.environ.items() if not k.startswith("LEHR_")}
        return subprocess.Popen(
            [sys.executable, "-c", dedent(text)],
            cwd=self.folder,
            env=keep | self.own | environment,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, text: str, **environment: str) -> tuple[int, str]:
        process = self.start(text, **environment)
        # The sender has the same stderr, and may live on.
        code = process.wait(60)
        os.set_blocking(process.stderr.fileno(), False)
        return code, process.stderr.read()

    def lehr(self, *words: str) -> dict:
        """Run a command; return its JSON, or its error."""
        done = call(*words, "--json", cwd=self.folder, **self.own)
        return json.loads(done.stdout)

    def sync(self, *folder: str) -> list[str]:
        """Return what became of each attempt."""
        return [one["result"] for one in self.lehr("sync", *folder)["attempts"]]

    def attempts(self) -> list[Path]:
        return sorted(self.folder.glob("lehr-runs/*/attempt-*"))

    def ended(self, name: str = "mine"):
        def found():
            return [run for run in self.api.store.runs.page(name=name).items if run.ended_at]

        [run] = until(found, within_s=30, what=f"{name} to end")
        return run

    def senders(self) -> list[int]:
        return [
            pid
            for pid in procfs.marked("LEHR_HOME", self.own["LEHR_HOME"])
            if b"lehr.faces.external" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        ]

    def kill_sender(self) -> None:
        for pid in self.senders():
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: procfs.start_time(pid) is None, within_s=9, what="its end")

    def steps(self, run_id: str, metric: str = "train/loss") -> list[int]:
        return list(self.api.store.series.read(run_id, metric, exact=True).step)


@pytest.fixture
def scripts(tmp_path):
    with served(tmp_path / "server") as (api, url):
        yield Scripts(tmp_path / "work", url, api)


def test_script_is_a_run_with_each_point_once_and_its_summary(scripts):
    code, said = scripts.run(LOGS)
    assert (code, said.count("\n")) == (0, 1), said
    run = scripts.ended()
    assert (run.state, run.project, run.stored.config["args"]) == (
        "completed", "my-project", {"lr": 1e-3}
    )  # fmt: skip
    assert scripts.steps(run.id) == list(range(1, 31))
    assert scripts.steps(run.id, "summary/best") == [30]
    assert scripts.sync("lehr-runs") == ["sent before"]
    assert scripts.api.store.sweeps.get(run.sweep_id).stored.metric == "train/loss"
    assert oct((scripts.attempts()[0] / "begin.json").stat().st_mode)[-2:] == "00"


@pytest.mark.parametrize(
    ("ending", "state", "reason"),
    [
        ("raise ValueError('bad thing')", "failed", "ValueError: bad thing"),
        ("sys.exit(3)", "failed", "it exited with 3"),
        ("sys.exit()", "completed", None),
        (
            "import os; os.kill(os.getpid(), 9)",
            "failed",
            "its process ended without a word: it was killed",
        ),
        ("raise KeyboardInterrupt", "cancelled", "interrupted by Ctrl-C"),
        ("run.finish('failed', 'I say so')", "failed", "I say so"),
        ("with run: 1 / 0", "failed", "ZeroDivisionError: division by zero"),
    ],
)
def test_end_of_the_process_is_the_end_of_the_run(scripts, ending, state, reason):
    scripts.run(dedent(LOGS) + ending)
    run = scripts.ended()
    assert run.state == state
    assert (run.reason or "").startswith(reason or "")
    assert scripts.steps(run.id) == list(range(1, 31))


def test_killed_sender_leaves_all_to_sync_and_no_point_comes_twice(scripts):
    script = scripts.start(LOGS.replace("0.02", "0.25"))
    store = scripts.api.store
    [run] = until(lambda: store.runs.page(limit=1).items, within_s=20, what="the run")
    until(lambda: store.series.latest([run.id], ["loss"])[run.id], within_s=20, what="a point")
    active = scripts.lehr("status")["active"]
    seen = Reading(Client(scripts.own["LEHR_SERVER"], TOKEN)).overview()["running"]
    assert [one["id"] for one in (*active, *seen)] == [run.id, run.id]
    scripts.kill_sender()
    assert scripts.sync() == ["sent so far; its process still runs"]
    assert script.wait(60) == 0
    # As if the events had been written, and their position not.
    with (scripts.attempts()[0] / "events.jsonl").open("a") as file:
        file.write('{"kind": "metrics", "ti')
    assert scripts.sync() == ["sent"]
    assert scripts.ended().state == "completed"
    assert scripts.steps(run.id) == list(range(1, 31))


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"LEHR_MODE": "offline"}, ""),
        ({"LEHR_TOKEN": "wrong"}, "the token is not this server's"),
        ({"LEHR_SERVER": f"http://127.0.0.1:{free_port()}"}, "does not answer"),
    ],
)
def test_run_that_is_not_sent_is_one_line_and_kept_for_sync(scripts, environment, words):
    code, said = scripts.run(LOGS, **environment)
    begins, *trouble = said.splitlines()
    assert (code, "is recorded in" in begins, len(trouble)) == (0, True, bool(words)), said
    assert words in said
    assert scripts.api.store.runs.page(limit=1).items == []
    scripts.kill_sender()  # It would try for a minute.
    assert until(scripts.sync, within_s=20, what="its end") == ["sent"]
    assert scripts.steps(scripts.ended().id) == list(range(1, 31))


def test_sender_ends_with_its_folder(scripts):
    scripts.run(LOGS, LEHR_SERVER=f"http://127.0.0.1:{free_port()}")
    [sender] = scripts.senders()
    shutil.rmtree(scripts.attempts()[0].parent)
    until(lambda: procfs.start_time(sender) is None, within_s=30, what="its end")


def test_full_disk_of_the_client_stops_nothing(scripts):
    limit = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))\n    for step"
    )
    code, said = scripts.run(LOGS.replace("for step", limit))
    assert code == 0
    assert said.count("lines wait in memory") == 1, said
    run = scripts.ended()
    assert (run.state, run.reason[-17:]) == ("failed", "its disk was full")
    steps = scripts.steps(run.id)
    assert steps == list(range(1, len(steps) + 1))
    assert 5 < len(steps) < 30


def test_one_id_is_one_run_unless_it_is_resumed(scripts):
    begins = LOGS.replace('lr": 1e-3}', 'lr": 1e-3}, id="mine1"')
    first = scripts.start(begins)
    until(scripts.attempts, within_s=20, what="its folder")
    code, said = scripts.run(begins.replace('"mine"', '"second"'))
    assert code == first.wait(60) == 0
    other = scripts.ended("second")
    assert f"the id 'mine1' is in use: the run is {other.id}" in said
    assert scripts.steps(scripts.ended().id) == list(range(1, 31))
    resumed = begins.replace('id="mine1"', 'id="mine1", resume=True')
    before = "; print(lehr_log.resume_step, file=sys.stderr)\n    for step"
    _, said = scripts.run(resumed.replace("\n    for step", before).replace("(1, 31)", "(21, 41)"))
    assert "\n30\n" in said
    store = scripts.api.store
    until(lambda: store.runs.get("mine1").attempt == 2, within_s=20, what="the second attempt")
    scripts.ended()
    assert scripts.steps("mine1") == list(range(1, 41))


def test_wandb_shape_and_children_of_the_process(scripts):
    code, said = scripts.run("""
        import multiprocessing, lehr_log
        lehr_log.use_as_wandb()
        import wandb
        if __name__ == "__main__":
            for name in ("one", "two"):
                run = wandb.init(project="p", name=name, config={"lr": 1, "name": name})
                wandb.config.depth = 2
                for step in range(3):
                    wandb.log({"loss": float(step)})
                child = multiprocessing.get_context("fork").Process(target=wandb.log, args=({"loss": 9.0},))
                child.start(); child.join()
                wandb.finish()
    """)
    assert code == 0, said
    for name in ("one", "two"):
        run = scripts.ended(name)
        assert run.stored.config["args"] == {"lr": 1, "name": name}
        assert scripts.api.store.events.configs([run.id])[run.id] == {"depth": 2}
        assert scripts.steps(run.id) == [1, 2, 3]


def test_ranks_other_than_the_first_record_nothing(scripts):
    code, said = scripts.run(LOGS, RANK="1")
    assert (code, said, scripts.attempts()) == (0, "", [])


def test_folder_without_a_run_is_refused(scripts):
    error = scripts.lehr("sync", ".")
    assert "has no run that lehr_log.init has begun" in str(error)
