"""The wheel has all files of the packages, also those that are not Python, and works alone."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from lehr_testing.paths import ROOT

PACKAGES = {
    "lehr": ROOT / "platform" / "lehr",
    "lehr_trainer": ROOT / "trainer" / "lehr_trainer",
    "lehr_log": ROOT / "trainer" / "lehr_log",
    "lehr_api": ROOT / "api" / "lehr_api",
}


def run(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        check=False,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this tree and installed in a folder of its own."""
    built, target = tmp_path_factory.mktemp("wheel"), tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(built)]
    run(*pip, *build, str(ROOT), cwd=built)
    [wheel] = built.glob("lehr-*.whl")
    run(*pip, "install", "--no-deps", "--no-index", "--target", str(target), str(wheel), cwd=built)
    return target


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_of_a_package_is_in_the_wheel(installed: Path, package: str) -> None:
    source = PACKAGES[package]
    tracked = run("git", "ls-files", "-z", ".", cwd=source).split("\0")
    wanted = {name for name in tracked if name and (source / name).is_file()}
    assert len(wanted) > 2
    found = {
        str(path.relative_to(installed / package))
        for path in (installed / package).rglob("*")
        if path.is_file()
    }
    assert sorted(wanted - found) == []
    assert sorted(name for name in found - wanted if "__pycache__" not in name) == []


def test_the_wheel_states_the_version_the_licence_and_the_command(installed: Path) -> None:
    [found] = metadata.distributions(name="lehr", path=[str(installed)])
    assert found.version == metadata.version("lehr")
    assert any(path.name == "LICENSE" for path in found.files or [])
    assert [(entry.name, entry.value) for entry in found.entry_points] == [
        ("lehr", "lehr.faces.cli:run")
    ]


USES = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import lehr, lehr_api, lehr_trainer
for module in (lehr, lehr_api, lehr_trainer):
    assert Path(module.__file__).is_relative_to(sys.argv[1]), module.__file__

from lehr.store import Store
with Store.open(Path("home")) as store:  # By its migrations.
    assert store.runs.page(limit=1).items == []

from lehr_api.app import create_app
from lehr_api.settings import Settings
create_app(Settings(home=Path("home"), token="t"))  # Reads its templates and static files.

sys.argv = ["lehr", "spec", "presets"]
from lehr.faces.cli.main import run
run()
"""


def test_installed_wheel_opens_a_home_and_runs_a_command(installed: Path, tmp_path: Path) -> None:
    output = run(sys.executable, "-c", USES, str(installed), cwd=tmp_path, LEHR_HOME=str(tmp_path))
    assert "llama-1b" in output
