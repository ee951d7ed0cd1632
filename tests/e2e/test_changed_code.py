"""Parts and environments of projects on the real platform."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lehr.node import environment_builder
from lehr_testing.server import Server, events
from lehr_testing.wheels import wheel

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("platform"),
]
SCRIPT = """
import lehr_dummy, lehr_log, torch
lehr_log.log({"loss": float(lehr_dummy.VERSION)}, step=1)
"""


def lehr(server: Server, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / "lehr"), *arguments],
        env=server.environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


@pytest.mark.nightly  # tests/trainer/test_parts.py trains each part, test_new.py sends one.
def test_written_project_trains_by_its_capsule_and_is_not_exported(server, tmp_path):
    assert lehr(server, tmp_path, "new", "trainer", "mine").returncode == 0
    done = lehr(server, tmp_path, "submit", "mine/run.yaml", "train.steps=20")
    assert done.returncode == 0, done.stderr
    (tmp_path / "mine/my_model.py").write_text("raise SystemExit('edited')")
    run = server.client().run("my-model").wait(timeout_s=300)
    assert run.state == "completed", run.reason
    assert run.view.parameters == 131_392 - 2 * 64 * 192
    assert run.view.flops_per_token is None
    refused = lehr(server, tmp_path, "checkpoints", "export", "my-model", "out")
    assert refused.returncode != 0
    words = " ".join(refused.stderr.split())
    assert "export is not possible: model class my_model:MyModel is not Lehr's" in words


def spec_of(folder: Path, name: str) -> Path:
    """Write a run of the script in the environment that a file names; return its path."""
    spec = {
        "kind": "run",
        "name": f"in-{name.partition('.')[0].replace('/', '-')}",
        "trainer": {"script": "train.py", "steps": 1},
        "code": {"include": ["*.py"], "environment": name},
    }
    path = folder / f"{spec['name']}.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def notices(server: Server, attempt: str) -> list[str]:
    return [one["message"] for one in events(server.home, attempt) if one["kind"] == "notice"]


@pytest.mark.nightly  # tests/platform/node/test_environments.py builds them, without Ray.
def test_runs_of_a_script_train_in_environments_that_are_built_once(server, tmp_path):
    client = server.client()
    (tmp_path / "train.py").write_text(SCRIPT)
    for version in ("1.0", "2.0"):
        wheel(tmp_path / "wheels", version)
    found = f"--no-index\n--find-links {tmp_path}/wheels\n"
    (tmp_path / "old.txt").write_text(f"{found}lehr-dummy==1.0\n")
    (tmp_path / "none.txt").write_text("--no-index\nlehr-dummy==3.0\n")
    (tmp_path / "new").mkdir()
    (tmp_path / "new/pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.11"\n'
        'dependencies = ["lehr-dummy"]\n'
        f'[tool.uv]\nno-index = true\nfind-links = ["{tmp_path}/wheels"]\n'
    )
    lock = [environment_builder.find_uv(), "lock", "--project", str(tmp_path / "new")]
    subprocess.run(lock, check=True, capture_output=True)
    expected = {"old.txt": "1.0", "new/uv.lock": "2.0"}
    # The two that share a file start together: one builds, the other one waits or finds it built.
    runs = [(name, client.submit(spec_of(tmp_path, name))) for name in [*expected, "old.txt"]]
    failed = client.submit(spec_of(tmp_path, "none.txt"))
    built = []
    for name, run in runs:
        run.wait(timeout_s=300)
        assert run.state == "completed", run.reason
        assert list(run.history("loss")["loss"]) == [float(expected[name])]
        [started] = [e for e in events(server.home, f"{run.id}-1") if e["kind"] == "started"]
        assert started["versions"]["lehr_dummy"] == expected[name]
        assert "torch" in started["versions"]
        built += [m for m in notices(server, f"{run.id}-1") if m.startswith("building ")]
    assert sorted(built) == [
        f"building the environment of {name} by uv" for name in sorted(expected)
    ]

    # A spec with a digest trains with that code, and with its environment, which is there.
    (tmp_path / "new/uv.lock").write_text("edited")
    again = client.submit({**runs[1][1].detail.spec, "name": "in-again"})
    again.wait(timeout_s=300)
    assert again.state == "completed", again.reason
    assert list(again.history("loss")["loss"]) == [2.0]
    assert not notices(server, f"{again.id}-1")

    failed.wait(timeout_s=300)
    assert failed.state == "failed"
    assert failed.view.cause == "environment_failed"
    assert "the environment of its code could not be built" in failed.reason
    assert len(failed.detail.attempts) == 1
    exit_report = server.home / "runs" / failed.id / "attempt-1/exit.json"
    assert "uv pip install ended with 1" in exit_report.read_text()
    assert "you require lehr-dummy==3.0" in exit_report.read_text()
