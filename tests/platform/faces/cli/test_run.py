"""``lehr run``: a command becomes the spec of a run, and passes the same words."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lehr.errors import UserError
from lehr.faces.cli.run import program
from lehr.specs.program import COMMAND, Program, arguments
from lehr_testing.api import TOKEN, served
from lehr_testing.cli import call
from lehr_testing.waiting import until


@pytest.mark.parametrize(
    ("words", "args", "passed"),
    [
        ("--lr 1e-3 --epochs 3", {"lr": 1e-3, "epochs": 3}, "--lr 0.001 --epochs 3"),
        ("--lr=1e-3 --compile=False c.py", {"lr": 1e-3, "compile": False}, "c.py --lr=0.001 --compile=False"),
        ("lr=1e-3 model.layers=2", {"lr": 1e-3, "model.layers": 2}, "lr=0.001 model.layers=2"),
        ("c.py -b 32 --lr 0.1 --betas 0.9 -1 --amp", {"lr": 0.1, "betas": [0.9, -1], "amp": True}, "c.py -b 32 --lr 0.1 --betas 0.9 -1 --amp"),
        ("--tag a --tag b --lr 1", {"lr": 1}, "--tag a --tag b --lr 1"),
        ("--version 3.10 --lr 0.0010 --x=007", {"version": "3.10", "lr": 1e-3, "x": "007"}, "--version 3.10 --lr 0.001 --x 007"),
        ("a -- --lr 1", {}, "a -- --lr 1"),
        ("", {}, ""),
    ],
)  # fmt: skip
def test_words_of_a_command_become_arguments(words, args, passed):
    for entry in (["python3", "-u", "train.py"], ["python", "-m", "train"]):
        made = Program(**program([*entry, *words.split()]))
        assert (made.entry.removesuffix(".py"), made.args) == ("train", args)
        assert arguments(made, file="", checkpoint=None) == passed.split()


@pytest.mark.parametrize(
    ("words", "args"),
    [
        ("torchrun --nproc_per_node=2 train.py --lr 0.1", {"lr": 0.1}),
        ("bash -x ./train.sh 5 --lr=0.1", {"lr": 0.1}),
        ("python -X dev train.py --amp", {"amp": True}),
        ("torchrun --nproc_per_node=2 -m train --lr 0.1", {}),
    ],
)
def test_any_command_gets_the_same_words(tmp_path, monkeypatch, words, args):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "train.sh"):
        (tmp_path / name).touch()
    made = Program(**program(words.split()))
    assert (made.module, made.args) == (COMMAND, args)
    assert arguments(made, file="", checkpoint=None) == words.split()


def test_script_outside_of_the_folder_is_refused():
    with pytest.raises(UserError, match="outside of the current folder"):
        program(["python", "/tmp/train.py"])


@pytest.mark.parametrize(
    ("command", "ranks", "ends"),
    [
        ("import os, sys; print(*sorted({'RANK', 'LOCAL_RANK'} & {*os.environ})); sys.exit(3)", "0", (3, "\n")),
        ("print(1)", "1", (0, "")),
        (None, "0", (1, "")),
    ],
)  # fmt: skip
def test_first_process_of_a_node_becomes_the_command(command, ranks, ends):
    words = ["gone"] if command is None else ["python", "-c", command]
    done = subprocess.run(
        [sys.executable, "-m", COMMAND, *words],
        env={**os.environ, "RANK": ranks, "LOCAL_RANK": ranks, "PATH": os.defpath},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == ends
    assert command is not None or done.stderr == "gone: No such file or directory\n"


def test_command_is_submitted_and_its_specs_are_planned(tmp_path, caplog):
    script = 'parser.add_argument("--lr", default=0.1)\nprint(f"iter {i}: loss {loss}")'
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool/main.py").write_text("")
    with served(tmp_path / "home") as (_, address):

        def lehr(*args):
            known = {"LEHR_SERVER": address, "LEHR_TOKEN": TOKEN}
            return call(*args, cwd=tmp_path, LEHR_HOME=str(tmp_path / "home"), **known)

        command = ["python", "train.py", "--lr", "0.2", "--max-steps", "9"]
        done = lehr("run", "--name", "a", "--json", "--", *command)
        run = json.loads(done.stdout)["run"]
        trainer = run["spec"]["trainer"]
        assert (run["name"], trainer["args"]["lr"], run["total_steps"]) == ("a", 0.2, 9)
        assert trainer["prints"] == ["iter {step}: loss {loss}"]
        assert "Reads its lines: iter {step}: loss {loss}" in done.stderr
        logs = lehr("run", "--json", "--", "python", "train.py", "--wandb_log=True")
        assert "prints" not in json.loads(logs.stdout)["run"]["spec"]["trainer"]
        # Without --, too; a module of the project brings its files.
        assert lehr("run", "python", "-m", "tool.main", "--x=1").returncode == 0
        shown = json.loads(lehr("code", "show", "tool.main", "--json").stdout)["capsule"]
        assert "project/tool/main.py" in {file["name"] for file in shown["files"]}
        for words, warned in (("sh tool/train.sh", False), ("env python train.py", True)):
            (tmp_path / "tool/train.sh").touch()
            done = lehr("run", "--dry-run", "--prints", "no {x}", "--", *words.split())
            assert (done.returncode, "no text in the code gives" in caplog.text) == (0, warned)
    for kind in ("run", "sweep"):
        done = lehr("spec", "new", kind, "--script", "train.py", "-o", f"tool/{kind}.yaml")
        assert done.returncode == 0, done.stderr
        planned = lehr("plan", f"tool/{kind}.yaml")
        assert (planned.returncode, "train.py, steps not known" in planned.stdout) == (0, True)
    refused = lehr("spec", "new", "rollout", "--script", "train.py")
    assert "A rollout takes no script." in refused.stderr
    assert "--log needs the script" in lehr("spec", "new", "--log", "x").stderr


def here(folder: Path, address: str, source: str, *more: str) -> subprocess.Popen:
    """Start ``lehr run --here`` for a script; its standard output is JSON."""
    (folder / "train.py").write_text(source)
    known = {"LEHR_SERVER": address, "LEHR_TOKEN": TOKEN, "LEHR_HOME": str(folder / "none")}
    lehr = Path(sys.executable).with_name("lehr")
    command = [lehr, "run", "--here", "--json", *more, "--", sys.executable, "train.py", "--lr=0.1"]
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **known},
        stdout=subprocess.PIPE,
        stderr=(folder / "stderr").open("w"),
        start_new_session=True,
    )


@pytest.mark.parametrize(
    ("source", "ends", "steps"),
    [
        ("for i in range(1, 4): print(f'iter {i}: loss {3 / i}')", (0, "completed", None), [1, 2, 3]),
        (
            "import wandb\nwandb.init()\nwandb.log({'loss': 1}, step=5)\nraise ValueError('no data')",
            (1, "failed", "ValueError: no data (train.py exited with code 1; lehr logs "),
            [5],
        ),
    ],
)  # fmt: skip
def test_command_runs_here_and_is_recorded_with_its_end(tmp_path, source, ends, steps):
    with served(tmp_path / "home") as (api, address):
        process = here(tmp_path, address, source)
        answer = json.loads(process.communicate(timeout=100)[0])["run"]
        code, state, reason = ends
        assert (process.returncode, answer["outcome"]) == (code, state)
        assert (answer["reason"] or "").startswith(reason or "")
        run = until(lambda: api.store.runs.page(states=[state]).items, within_s=30, what=state)[0]
        assert (run.id, run.stored.config["args"]) == (answer["id"], {"lr": 0.1})
        assert list(api.store.series.read(run.id, "train/loss", exact=True).step) == steps
        printed = (Path(answer["folder"]) / "rank-0.log").read_text()
        assert printed in (tmp_path / "stderr").read_text()


def test_command_without_a_server_ends_at_ctrl_c_and_is_kept(tmp_path):
    source = "import time\nprint('iter 1: loss 2')\ntime.sleep(100)"
    process = here(tmp_path, "http://127.0.0.1:9", source)
    printed = lambda: "iter 1" in (tmp_path / "stderr").read_text()  # noqa: E731
    until(printed, within_s=60, what="output")
    os.killpg(process.pid, signal.SIGINT)
    answer = json.loads(process.communicate(timeout=100)[0])["run"]
    assert (process.returncode, answer["outcome"]) == (130, "stopped")
    events = Path(answer["folder"]) / "events.jsonl"
    told = lambda: events.exists() and "interrupted by Ctrl-C" in events.read_text()  # noqa: E731
    until(told, within_s=60, what="its end")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--gpus", "2", "python"], "takes no --gpus."),
        (["--prints", "loss {loss", "python"], "trainer.prints: 'loss {loss': expected '}'"),
        (["python3.99"], "python3.99: there is no such command."),
    ],
)
def test_command_that_cannot_run_here_is_not_recorded(tmp_path, args, message):
    done = call("run", "--here", *args, "gone.py", cwd=tmp_path, LEHR_HOME=str(tmp_path))
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "lehr-runs").exists()
