"""Training programs that know nothing of Lehr, on the real platform: swept, killed, resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lehr_testing.program_attempts import prepare_chars
from lehr_testing.server import events

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("platform"),
]
PROGRAMS = Path(__file__).parents[1] / "lehr_testing/programs"


@pytest.fixture
def project(tmp_path) -> Path:
    (tmp_path / "project").mkdir()
    (tmp_path / "project/input.txt").write_text("to be or not to be, that is the question. " * 50)
    prepare_chars(tmp_path / "project")
    for script in PROGRAMS.glob("*.py"):
        (tmp_path / "project" / script.name).write_bytes(script.read_bytes())
    return tmp_path / "project"


NANO = {
    "script": "nano.py",
    "data": ["data"],
    "args": {
        "learning_rate": 0.01,
        "max_iters": 12,
        "eval_interval": 4,
        "device": "cpu",
        "compile": False,
        "wandb_log": True,
        "pause_s": 0.5,
    },
    "steps_arg": "max_iters",
    "saves": ["out/ckpt.pt"],
    "resume_args": {"init_from": "resume"},
}


def written(folder: Path, spec: dict) -> Path:
    path = folder / f"{spec['name']}.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


EVERYBODYS: dict[str, tuple[dict, str, list[int], list[int], str]] = {
    # The trainer of a spec, its argument for the rate, steps of train/loss, of which some are those
    # of checkpoints, and the reason of a wrong argument.
    "nano": (
        NANO, "learning_rate",
        [0, 4, 8, 12], [4, 8, 12], "ValueError: Unknown config key: wrong",
    ),
    "lightning": (
        {"script": "pl_own.py", "args": {"max_steps": 6, "pause_s": 0.3}, "steps_arg": "max_steps",
        "saves": ["out/*.ckpt"], "saves_newest": True},
        "lr", [0, 1, 2, 3, 4, 5], [1, 3, 5], "unrecognized arguments: --wrong=1",
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
