"""Training programs that know nothing of Lehr, on the real platform: swept, killed, resumed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from lehr.node.procfs import start_time
from lehr_testing.program_attempts import prepare_chars
from lehr_testing.server import events, marked_processes
from lehr_testing.waiting import until
from lehr_trainer.contract import layout

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("platform"),
]
PROGRAMS = Path(__file__).parents[1] / "lehr_testing/programs"


@pytest.fixture
def project(tmp_path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/conf").mkdir()
    (tmp_path / "project/conf/config.yaml").write_text("{lr: 0.1, steps: 6, pause_s: 0}")
    (tmp_path / "project/input.txt").write_text("to be or not to be, that is the question. " * 50)
    prepare_chars(tmp_path / "project")
    for script in PROGRAMS.glob("*.py"):
        (tmp_path / "project" / script.name).write_bytes(script.read_bytes())
    return tmp_path / "project"


NANO = {
    "learning_rate": 0.01,
    "max_iters": 12,
    "eval_interval": 4,
    "device": "cpu",
    "compile": False,
}


def nano(name: str, **args) -> dict:
    return {
        "kind": "run",
        "name": name,
        "trainer": {
            "script": "nano.py",
            "data": ["data"],
            "args": {**NANO, "wandb_log": True, **args},
            "steps_arg": "max_iters",
            "saves": ["out/ckpt.pt"],
            "resume_args": {"init_from": "resume"},
        },
        "code": {"include": ["*.py"]},
        "resources": {"gpus": 1},
    }


def written(folder: Path, spec: dict) -> Path:
    path = folder / f"{spec['name']}.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


@pytest.mark.nightly  # The next test trains the same script.
def test_script_with_wandb_is_swept_over_8_rates_with_pruning(server, project):
    client = server.client()
    run = nano("nano", pause_s=1.0)
    del run["kind"]
    spec = {
        "kind": "sweep",
        "name": "nano",
        "metric": {"name": "val/loss", "goal": "minimize"},
        "parameters": {
            "trainer.args.learning_rate": {"values": [1.0, 0.3, 3.0, 0.1, 10.0, 3e-2, 1e-2, 3e-3]}
        },
        "pruning": {"name": "median", "startup_trials": 4, "min_steps": 4},
        "max_concurrent": 2,
        "run": run,
    }
    sweep = client.sweep(written(project, spec))
    diverged = client.submit(written(project, nano("diverged", learning_rate=1e20)))
    sweep.wait(timeout_s=800)
    trials = [client.run(f"nano-{n}") for n in range(1, 9)]
    states = [trial.state for trial in trials]
    assert set(states) <= {"completed", "pruned"}, [trial.reason for trial in trials]
    assert "pruned" in states
    best = sweep.best()
    assert 0.3 <= best.detail.spec["trainer"]["args"]["learning_rate"] <= 3.0
    losses = best.history("train/loss", "val/loss", "train/lr", "program/mfu")
    assert list(losses.dropna()["step"]) == [0, 4, 8, 12]
    assert any(
        note.startswith("The best learning rate is probably near") and "with 95 %" in note
        for note in sweep.refresh().notes
    ), sweep.notes
    diverged.wait(timeout_s=300)
    [nan] = [alert for alert in diverged.alerts() if alert.code == "nan"]
    assert (nan.step, nan.sure) == (4, "certain")
    assert "nan" not in [alert.code for alert in best.alerts()]
    compared = client.compare(*trials[:2])
    assert [d.path for d in compared.differences if d.factor] == ["trainer.args.learning_rate"]


EVERYBODYS: dict[str, tuple[dict, str, list[int], list[int], str]] = {
    # The trainer of a spec, its argument for the rate, steps of train/loss, of which some are those
    # of checkpoints, and the reason of a wrong argument.
    "nano": (
        nano("x", pause_s=0.5)["trainer"], "learning_rate",
        [0, 4, 8, 12], [4, 8, 12], "ValueError: Unknown config key: wrong",
    ),
    "clm": (
        {"script": "hf_own.py", "data": ["input.txt"], "steps_arg": "max_steps",
        "saves": ["out/checkpoint-*"], "saves_newest": True,
        "args": {"train_file": "input.txt", "do_train": True, "use_cpu": True, "output_dir": "out",
        "max_steps": 6, "logging_steps": 1, "save_steps": 3, "report_to": "wandb"}},
        "learning_rate", [1, 2, 3, 4, 5, 6], [3, 6],
        "ValueError: Some specified arguments are not used by the HfArgumentParser: ['--wrong=1']",
    ),
    "lightning": (
        {"script": "pl_own.py", "args": {"max_steps": 6, "pause_s": 0.3}, "steps_arg": "max_steps",
        "saves": ["out/*.ckpt"], "saves_newest": True},
        "lr", [0, 1, 2, 3, 4, 5], [1, 3, 5], "unrecognized arguments: --wrong=1",
    ),
    "hydra": (
        {"script": "hydra_own.py", "style": "hydra", "data": ["conf"], "saves": ["outputs/**/*.ckpt"],
        "saves_newest": True, "args": {"steps": 6, "pause_s": 1.5}, "steps_arg": "steps"},
        "lr", [1, 2, 3, 4, 5, 6], [2, 4, 6], "Key 'wrong' is not in struct",
    ),
    "chargpt": (
        {"script": "chargpt.py", "data": ["input.txt"], "saves": ["out/chargpt/model.pt"],
        "args": {"trainer.max_iters": 1001}},
        "trainer.learning_rate", [], [0], "AssertionError: trainer.wrong is not an attribute that exists",
    ),
}  # fmt: skip


@pytest.mark.nightly  # test_supervisor.py has the first; the others take a minute or more each.
@pytest.mark.parametrize("name", EVERYBODYS)
def test_script_that_everybody_starts_with_is_swept_over_two_rates(server, project, name):
    """Each file shows in its first lines what the real one does. Lehr had passed gentler ones."""
    trainer, rate, curve, saves, wrong = EVERYBODYS[name]
    if name == "lightning":
        pytest.importorskip("lightning")  # Of the dev extra.
    client, run = server.client(), {"trainer": trainer, "code": {"include": ["*.py"]}}
    spec = {
        "kind": "sweep",
        "name": f"two-{name}",
        "metric": {"name": "train/loss", "goal": "minimize"},
        "parameters": {f"trainer.args.{rate}": {"values": [1e-3, 1e-2]}},
        "run": run,
    }
    sweep = client.sweep(written(project, spec))
    argument = f"{rate.rpartition('.')[0]}.wrong".lstrip(".")
    broken = {**trainer, "args": {**trainer["args"], argument: 1}}
    spec = {"kind": "run", "name": f"wrong-{name}", **run, "trainer": broken}
    failed = client.submit(written(project, {**spec, "retries": {"user": 0}}))
    sweep.wait(timeout_s=600)
    for trial in (client.run(f"two-{name}-{number}") for number in (1, 2)):
        assert trial.state == "completed", trial.reason
        if curve:
            assert list(trial.history("train/loss")["step"]) == curve
        records = events(server.home, f"{trial.id}-1")
        kept = {record["step"] for record in records if record["kind"] == "checkpoint"}
        assert max(saves) in kept <= set(saves)
    failed.wait(timeout_s=300)
    assert failed.state == "failed"
    assert wrong in failed.reason


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    """Load the weights and the optimizer's state of a checkpoint of the script."""
    saved = torch.load(path)
    state = saved["optimizer"]["state"]
    return saved["model"] | {f"{n}.{name}": x for n in state for name, x in state[n].items()}


@pytest.mark.nightly  # test_supervisor.py and test_resume.py pause, kill and resume programs.
def test_killed_script_resumes_from_what_it_saved_with_its_pinned_code(server, project):
    client = server.client()
    outside = project.parent / "outside"
    shutil.copytree(project, outside)
    command = [sys.executable, "nano.py", *(f"--{name}={value}" for name, value in NANO.items())]
    subprocess.run(command, cwd=outside, check=True, timeout=300)
    whole = client.submit(written(project, nano("whole")))
    killed = client.submit(written(project, nano("killed", pause_s=2.0)))
    until(
        lambda: killed.refresh().view.step and killed.view.step >= 6,
        within_s=200,
        what="six steps",
    )
    (project / "nano.py").write_text("raise SystemExit('edited')")
    for pid, command in marked_processes(f"{killed.id}-1").items():
        if "lehr.programs" in command or "nano.py" in command:
            os.kill(pid, signal.SIGKILL)
    killed.wait(timeout_s=300)
    whole.wait(timeout_s=300)
    assert (whole.state, killed.state) == ("completed", "completed"), killed.reason
    assert len(killed.detail.attempts) == 2
    kinds = [event.kind for event in killed.events()]
    assert kinds.count("resumed") == 1
    expected, found = (run.history("train/loss")["train/loss"] for run in (whole, killed))
    assert list(found) == list(expected)
    expected = tensors_of(outside / "out/ckpt.pt")
    for run in (whole, killed):
        attempt = layout.attempt_dir(server.home / "runs" / run.id, len(run.detail.attempts))
        found = tensors_of(attempt / "work/out/ckpt.pt")
        assert [name for name in expected if not torch.equal(found[name], expected[name])] == []

    fork = killed.fork(changes={"trainer.args.max_iters": 16, "trainer.args.pause_s": 0.0})
    fork.wait(timeout_s=300)
    assert fork.state == "completed", fork.reason
    assert fork.detail.spec["code"]["digest"] == killed.detail.spec["code"]["digest"]
    [resumed] = [one for one in events(server.home, f"{fork.id}-1") if one["kind"] == "resumed"]
    assert resumed["step"] == 12
    config = (server.home / "runs" / killed.id / layout.CONFIG).read_text()
    assert killed.detail.spec["code"]["digest"] in config


FAILS_ONCE = """
import lehr_log
for step in range(lehr_log.resume_step + 1, 7):
    lehr_log.log({"loss": 1.0 / step}, step=step)
    if step == 3:
        with open("saved.txt", "w") as file:
            file.write(str(step))
        lehr_log.checkpoint("saved.txt", step=step)
    if step == 4 and lehr_log.resume_from is None:
        raise SystemExit("the data is not there")
"""


@pytest.mark.nightly  # The test before this one resumes another script with its pinned code.
def test_failed_script_that_a_user_retries_resumes_with_its_pinned_code(server, project):
    (project / "fails.py").write_text(FAILS_ONCE)
    spec = {
        "kind": "run",
        "name": "retried",
        "trainer": {"script": "fails.py", "steps": 6},
        "code": {"include": ["*.py"]},
        "retries": {"user": 0},
    }
    run = server.client().submit(written(project, spec))
    (project / "fails.py").write_text("raise SystemExit('edited')")
    run.wait(timeout_s=300)
    assert run.state == "failed"
    run.retry()
    run.wait(timeout_s=300)
    assert run.state == "completed", run.reason
    assert list(run.history("loss")["loss"]) == [1.0 / step for step in range(1, 7)]
    [resumed] = [one for one in events(server.home, f"{run.id}-2") if one["kind"] == "resumed"]
    assert resumed["step"] == 3
    written_by = [one for number in (1, 2) for one in events(server.home, f"{run.id}-{number}")]
    digests = {one["code"] for one in written_by if one["kind"] == "started"}
    assert digests == {run.detail.spec["code"]["digest"]}


@pytest.mark.nightly  # test_platform.py ends processes that a trainer has started.
def test_daemon_that_a_script_has_left_is_ended_with_it(server, project):
    spec = {
        "kind": "run",
        "name": "daemon",
        "trainer": {"script": "daemon.py", "steps": 1},
        "code": {"include": ["*.py"]},
    }
    run = server.client().submit(written(project, spec))
    run.wait(timeout_s=300)
    assert run.state == "completed", run.reason
    assert list(run.history("loss")["loss"]) == [1.0]
    assert not marked_processes(f"{run.id}-1")
    work = layout.attempt_dir(server.home / "runs" / run.id, 1) / "work"
    pids = [int((work / name).read_text()) for name in ("marked.pid", "cleared.pid")]
    assert [start_time(pid) for pid in pids] == [None, None]


def lightning(name: str, **args) -> dict:
    return {
        "kind": "run",
        "name": name,
        "trainer": {
            "script": "pl_own.py",
            "args": {"lr": 0.1, "max_steps": 12, **args},
            "steps_arg": "max_steps",
            "saves": ["out/*.ckpt"],
            "saves_newest": True,
            "resume_args": {"ckpt_path": "{checkpoint}"},
        },
        "code": {"include": ["*.py"]},
        "resources": {"gpus": 1},
    }


def swept_over_eight_rates(client, project, run: dict, argument: str, metric: dict, rates: list):
    """Sweep with pruning; return the best trial. The rate is all that differs."""
    name = run["name"]
    spec = {
        "kind": "sweep",
        "name": name,
        "metric": metric,
        "parameters": {f"trainer.args.{argument}": {"values": rates}},
        "pruning": {"name": "median", "startup_trials": 2, "min_steps": 3},
        "max_concurrent": 2,
        "run": {key: value for key, value in run.items() if key != "kind"},
    }
    sweep = client.sweep(written(project, spec))
    sweep.wait(timeout_s=800)
    trials = [client.run(f"{name}-{n}") for n in range(1, len(rates) + 1)]
    assert {trial.state for trial in trials} == {"completed", "pruned"}, [t.reason for t in trials]
    compared = client.compare(*trials[:2])
    assert [d.path for d in compared.differences if d.factor] == [f"trainer.args.{argument}"]
    return sweep.best()


def resumed_like_an_undisturbed_one(server, project, whole: dict, killed: dict) -> int:
    """Kill a run after six steps; it ends with the other's losses. Return where it resumed."""
    client, script = server.client(), whole["trainer"]["script"]
    one, other = (client.submit(written(project, spec)) for spec in (whole, killed))
    until(
        lambda: other.refresh().view.step and other.view.step >= 6,
        within_s=200,
        what="six steps",
    )
    for pid, command in marked_processes(f"{other.id}-1").items():
        if "lehr.programs" in command or script in command:
            os.kill(pid, signal.SIGKILL)
    for run in (one, other):
        run.wait(timeout_s=300)
        assert run.state == "completed", run.reason
    expected, found = (run.history("train/loss")["train/loss"] for run in (one, other))
    assert list(found.items()) == list(expected.items())
    [resumed] = [r for r in events(server.home, f"{other.id}-2") if r["kind"] == "resumed"]
    return int(resumed["step"])


@pytest.mark.nightly  # tests/platform/programs/test_lightning.py has the same script without Ray.
def test_lightning_with_its_own_logger_is_swept_with_pruning_killed_and_resumed(server, project):
    pytest.importorskip("lightning")  # Of the dev extra.
    rates = [1e-1, 3e-2, 3e-1, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4]
    metric = {"name": "val/loss", "goal": "minimize"}
    run = lightning("pl", pause_s=1.0)
    best = swept_over_eight_rates(server.client(), project, run, "lr", metric, rates)
    assert best.detail.spec["trainer"]["args"]["lr"] >= 3e-2
    losses = best.history("train/loss", "val/loss")
    assert list(losses["train/loss"].dropna().index) == list(range(12))
    assert list(losses["val/loss"].dropna().index) == [3, 7, 11]
    pair = lightning("pl-whole"), lightning("pl-killed", pause_s=2.0)
    assert resumed_like_an_undisturbed_one(server, project, *pair) >= 3


def transformers(name: str, **args) -> dict:
    return {
        "kind": "run",
        "name": name,
        "trainer": {
            "script": "hf.py",
            "args": {"learning_rate": 1e-3, "max_steps": 12, **args},
            "steps_arg": "max_steps",
            "resume_args": {"resume_from_checkpoint": "{checkpoint}"},
        },
        "code": {"include": ["*.py"]},
        "resources": {"gpus": 1},
    }


@pytest.mark.nightly  # test_supervisor.py has the same script without Ray.
def test_trainer_of_transformers_is_swept_with_pruning_killed_and_resumed(server, project):
    rates = [1e-2, 3e-3, 3e-2, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5]
    metric = {"name": "loss", "goal": "minimize"}
    run = transformers("hf", pause_s=1.0)
    best = swept_over_eight_rates(server.client(), project, run, "learning_rate", metric, rates)
    assert best.detail.spec["trainer"]["args"]["learning_rate"] >= 3e-3
    found = best.history("loss", "train/loss")
    assert list(found["step"]) == list(range(1, 13))
    assert list(found["loss"].dropna()) == list(found["train/loss"].dropna())
    pair = transformers("hf-whole"), transformers("hf-killed", pause_s=2.0)
    assert resumed_like_an_undisturbed_one(server, project, *pair) >= 4
