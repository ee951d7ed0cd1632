"""What people who are new to Lehr typed, and the answers that send them on."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

from lehr import Client
from lehr.analysis.plan import known_runs
from lehr.control.lifecycle import RunState
from lehr.faces.cli import demo, main
from lehr.faces.cli import run as entry
from lehr.faces.client.plan_server import PlanServer
from lehr.faces.client.transport import Transport
from lehr.specs import load_spec
from lehr.specs.examples import LR_GRID_SMALL
from lehr_testing import cli, seeding
from lehr_testing.api import TOKEN, served
from lehr_trainer import extras

RUN = {"name": "first", "train": seeding.train(steps=10)}


@pytest.fixture
def lehr(tmp_path):
    with served(tmp_path / "home") as (api, address):

        def run(*args, **more):
            environment = {"LEHR_SERVER": address, "LEHR_TOKEN": TOKEN, "COLUMNS": "200", **more}
            return cli.call(*args, cwd=tmp_path, LEHR_HOME=str(tmp_path), **environment)

        yield api, run


def test_name_of_a_sweep_where_a_run_is_needed_is_answered_with_its_runs(lehr):
    api, run = lehr
    sweep, _ = seeding.create_sweep(api.store, seeding.lr_sweep("lr-grid", [1e-4, 3e-4]))
    for verb in ("logs", "export"):
        done = run(verb, "lr-grid")
        assert done.returncode != 0
        assert "'lr-grid' is a sweep, not a run." in done.stderr
        assert "lehr ls --sweep lr-grid" in done.stderr
    assert run("show", "lr-grid").returncode == 0
    assert "'lr-grid-1' is a run, not a sweep." in run("extend", "lr-grid-1", "x=[1]").stderr
    assert f"'{sweep.id}' is a sweep, not a run." in run("logs", sweep.id).stderr


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"train": {**RUN["train"], "device": "gpu"}}, "Did you mean cuda?"),
        (
            {
                "kind": "sweep",
                "method": "bayes",
                "parameters": {"train.optimizer.lr": {"values": [1e-3]}},
                "run": {"train": RUN["train"]},
            },
            "Did you mean tpe?",
        ),
        (
            {
                "kind": "sweep",
                "method": "random",
                "trials": 2,
                "parameters": {
                    "train.optimizer.lr": {"distribution": "log_uniform", "min": 1e-4, "max": 1e-2}
                },
                "run": {"train": RUN["train"]},
            },
            "Did you mean log_uniform_values?",
        ),
    ],
    ids=["device", "method", "distribution"],
)
def test_words_of_other_tools_are_answered_with_lehrs(tmp_path, change, hint):
    spec = {"name": "first", **change}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    assert hint in cli.call("plan", "spec.yaml", cwd=tmp_path, LEHR_HOME=str(tmp_path)).stderr


def test_config_of_a_training_is_one_error_that_shows_where_it_belongs(tmp_path):
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(RUN["train"]))
    done = cli.call("plan", "config.yaml", cwd=tmp_path, LEHR_HOME=str(tmp_path))
    assert done.returncode == 2
    assert "A run has it under train: and has a name." in done.stderr
    assert "is not a field" not in done.stderr


def test_start_without_the_server_extra_is_one_sentence_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda module: None)
    for command in (["up"], ["up", "--foreground"], ["demo"]):
        done = cli.call(*command, cwd=tmp_path, LEHR_HOME=str(tmp_path / "home"))
        assert done.returncode == 1
        assert done.stderr.splitlines() == [
            "this needs structlog, which is not installed.",
            f"  Install it: {extras.install('lehr[server]')}",
        ]


def test_server_without_its_extra_is_one_sentence_with_the_command():
    code = "import sys, runpy; sys.modules['structlog'] = None; runpy.run_module('lehr_api', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "lehr: this needs structlog, which is not installed.",
        f"  Install it: {extras.install('lehr[server]')}",
    ]


def test_demo_without_torch_shows_the_recorded_sweep_and_how_to_train_it(tmp_path, monkeypatch):
    missing = {"torch": None}
    monkeypatch.setattr(demo, "find_spec", lambda name: missing.get(name, name))
    monkeypatch.setattr(extras, "find_spec", lambda name: missing.get(name, name))
    with served(tmp_path / "other") as (_, address):
        server = SimpleNamespace(client=lambda: Client(address, TOKEN), token_hint="log in")
        monkeypatch.setattr(demo, "_bring_up", lambda: server)
        done = cli.call("demo", cwd=tmp_path, LEHR_HOME=str(tmp_path))
        assert done.returncode == 0, done.stderr
        shown = " ".join(done.stdout.split())
        assert "1 lr-grid-small-4 3.0e-3 1.821 best" in shown
        assert "Recorded, not trained here" in shown
        assert f"train it here: {extras.install('lehr[server,trainer]')}, then lehr demo" in shown
        [(_, spec), *_] = known_runs(load_spec(LR_GRID_SMALL))
        assert PlanServer(server.client).measured(spec, 131_392) == []  # Of no machine here.
        refused = cli.call("demo", "run.train.steps=5", cwd=tmp_path, LEHR_HOME=str(tmp_path))
        assert refused.stderr.splitlines() == [
            "this needs torch, which is not installed.",
            f"  Install it: {extras.install('lehr[trainer]')}",
        ]
        changed = cli.call("demo", "--recorded", "seed=5", cwd=tmp_path, LEHR_HOME=str(tmp_path))
        assert "seed=5: a recorded sweep cannot change." in changed.stderr


def test_report_is_sent_as_a_file_and_opened_on_another_server(lehr, tmp_path):
    api, run = lehr
    seeding.create_sweep(api.store, seeding.lr_sweep("lr-grid", [1e-4, 3e-4]))
    assert "has not ended" in run("report", "lr-grid", "-o", "grid.lehr.html").stderr
    for one in api.store.runs.page().items:
        attempt = seeding.start(api.store, one)
        attempt.train(range(1, 4))
        attempt.end(RunState.COMPLETED, 3)
    assert run("report", "lr-grid", "-o", "grid.lehr.html").returncode == 0
    with served(tmp_path / "other") as (_, address):
        shown = [run("open", "grid.lehr.html", LEHR_SERVER=address).stdout for _ in range(2)]
        assert [text.split(" (")[0] for text in shown] == [
            "Opened: lr-grid",
            "Already here: lr-grid",
        ]
        refused = run("open", "report.txt", LEHR_SERVER=address)
        assert refused.stderr == "report.txt cannot be read: No such file or directory.\n"


def interrupted(*_, **__):
    raise KeyboardInterrupt


def test_ctrl_c_during_a_submission_says_what_was_recorded(lehr, tmp_path, monkeypatch):
    api, run = lehr
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(RUN))
    with monkeypatch.context() as patch:
        patch.setattr("lehr.faces.client.client.gather_provenance", interrupted)
        done = run("submit", "run.yaml")
    assert (done.returncode, done.stderr) == (130, "\nNothing was recorded.\n")
    send, sent = Transport.post, []

    def interrupted_once_sent(self, path, *args, **options):
        answer = send(self, path, *args, **options)
        sent.append(path)
        return interrupted() if sent == ["/runs"] else answer

    monkeypatch.setattr(Transport, "post", interrupted_once_sent)
    done = run("submit", "run.yaml")
    assert done.returncode == 130
    [recorded] = api.store.runs.page().items
    assert f"first ({recorded.id}) is recorded, and goes on." in done.stderr
    assert f"lehr watch {recorded.id}        Stop it: lehr cancel {recorded.id}" in done.stderr
    for command in (("submit", "run.yaml"), ("seeds", recorded.id, "--yes")):
        sent[:] = []
        with monkeypatch.context() as patch:
            patch.setattr(
                Transport, "post", lambda *_, **options: sent.append(options) or interrupted()
            )
            done = run(*command)
        assert (done.returncode, done.stderr) == (130, "\nIt may be recorded: lehr ls\n")
        first, second = sent
        assert (second.pop("within_s"), second.pop("again"), second) == (5.0, False, first)
    monkeypatch.setattr("lehr.faces.cli.launch._first_word", interrupted)
    assert "is recorded, and goes on." in run("submit", "run.yaml").stderr


def test_ctrl_c_while_modules_load_ends_with_130_and_no_traceback(monkeypatch):
    monkeypatch.setattr(main, "run", interrupted)
    with pytest.raises(SystemExit) as end:
        entry()
    assert end.value.code == 130


def test_metrics_are_not_written_into_a_file_for_something_else(lehr, tmp_path):
    api, run = lehr
    seeding.start(api.store, api.store.runs.create(seeding.run_spec("first"))).train(range(1, 4))
    done = run("export", "first", "-o", "model.safetensors")
    assert done.returncode == 2
    assert "model.safetensors has the suffix .safetensors" in done.stderr
    assert "lehr checkpoints export" in done.stderr
    assert not (tmp_path / "model.safetensors").exists()
    assert run("export", "first", "-o", "any.name", "--format", "jsonl").returncode == 0
    assert (tmp_path / "any.name").read_text().count("\n") == 3
