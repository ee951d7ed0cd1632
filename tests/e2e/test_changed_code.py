"""Parts and environments of projects on the real platform."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

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


@pytest.mark.nightly  # tests/platform/node/test_environments.py builds them, without Ray.
def test_two_runs_of_a_script_train_with_two_versions_of_a_package(server, tmp_path):
    client = server.client()
    (tmp_path / "train.py").write_text(SCRIPT)
    for version in ("1.0", "2.0"):
        wheel(tmp_path / "wheels", version)
        (tmp_path / f"{version}.txt").write_text(
            f"--no-index\n--find-links {tmp_path}/wheels\nlehr-dummy=={version}\n"
        )
    (tmp_path / "3.0.txt").write_text("--no-index\nlehr-dummy==3.0\n")
    runs = {}
    for version in ("1.0", "2.0", "3.0"):
        spec = {
            "kind": "run",
            "name": f"with-{version}",
            "trainer": {"script": "train.py", "steps": 1},
            "code": {"include": ["*.py"], "environment": f"{version}.txt"},
        }
        (tmp_path / f"{version}.yaml").write_text(yaml.safe_dump(spec))
        runs[version] = client.submit(tmp_path / f"{version}.yaml")
    for version in ("1.0", "2.0"):
        run = runs[version].wait(timeout_s=300)
        assert run.state == "completed", run.reason
        assert list(run.history("loss")["loss"]) == [float(version)]
        recorded = events(server.home, f"{run.id}-1")
        [started] = [one for one in recorded if one["kind"] == "started"]
        assert started["versions"]["lehr-dummy"] == version
        assert "torch" in started["versions"]
        notices = [one["message"] for one in recorded if one["kind"] == "notice"]
        assert f"building the environment of {version}.txt by uv" in notices
    failed = runs["3.0"].wait(timeout_s=300)
    assert failed.state == "failed"
    assert failed.view.cause == "environment_failed"
    assert "the environment of its code could not be built" in failed.reason
    assert len(failed.detail.attempts) == 1
    exit_report = server.home / "runs" / failed.id / "attempt-1/exit.json"
    assert "uv pip install ended with 1" in exit_report.read_text()
    assert "you require lehr-dummy==3.0" in exit_report.read_text()
