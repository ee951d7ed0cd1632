"""Releases of Lehr: wheels of this tree with another version number, installed as a user would."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from lehr.store.streams import index
from lehr.store.upkeep import migrate
from lehr_testing.faults.hosts import Host
from lehr_testing.paths import ROOT

_FILES = ("pyproject.toml", "README.md", "LICENSE")
_PACKAGES = ("platform/lehr", "trainer/lehr_trainer", "trainer/lehr_log", "api/lehr_api")
NEW_REVISION = f"{int(migrate.HEAD) + 1:04}"
_MIGRATION = f'''"""A column that only the next release has."""

import sqlalchemy as sa
from alembic import op

revision = "{NEW_REVISION}"
down_revision = "{migrate.HEAD}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("of_the_next_release", sa.String(), nullable=True))
'''


def this_release(folder: Path) -> Path:
    """Build the wheel of this tree."""
    return _wheel(_tree(folder), folder)


def next_release(folder: Path, version: str) -> Path:
    """Build a wheel of this tree with another version, one revision more, and another index."""
    tree = _tree(folder)
    _replace(tree / "pyproject.toml", 'version = "0.1.0"', f'version = "{version}"')
    _replace(
        tree / "platform/lehr/__init__.py", '__version__ = "0.1.0"', f'__version__ = "{version}"'
    )
    maintenance = tree / "platform/lehr/store/upkeep"
    _replace(maintenance / "migrate.py", f'HEAD = "{migrate.HEAD}"', f'HEAD = "{NEW_REVISION}"')
    (maintenance / f"migrations/versions/{NEW_REVISION}_next_release.py").write_text(_MIGRATION)
    _replace(
        tree / "platform/lehr/store/streams/index.py",
        f"VERSION = {index.VERSION}",
        f"VERSION = {index.VERSION + 1}",
    )
    return _wheel(tree, folder)


class Installation:
    """A virtual environment on a host with one release of Lehr, and all else of this environment."""

    def __init__(self, host: Host, folder: str) -> None:
        self.host = host
        self.python = f"{folder}/bin/python"
        host.run(sys.executable, "-m", "venv", "--without-pip", folder)
        site = host.run(
            self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
        ).stdout.strip()
        # A folder that a .pth file names has no .pth files of its own: not this tree's packages.
        host.run(
            *("sh", "-c", 'echo "$1" > "$2"', "sh"),
            *(sysconfig.get_path("purelib"), f"{site}/everything-else.pth"),
        )
        host.program = f"{folder}/bin/lehr"

    def install(self, wheel: str) -> None:
        self._pip("install", "--no-deps", "--no-index", "--force-reinstall", wheel)

    def uninstall(self) -> None:
        self._pip("uninstall", "--yes", "lehr")

    def _pip(self, *arguments: str) -> None:
        pip = ("-m", "pip", "--disable-pip-version-check", "--quiet", "--python", self.python)
        self.host.run(sys.executable, *pip, *arguments)


def _tree(folder: Path) -> Path:
    tree = folder / "tree"
    for package in _PACKAGES:
        shutil.copytree(
            ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in _FILES:
        shutil.copy(ROOT / name, tree / name)
    return tree


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path}: {old!r} is there {text.count(old)} times"
    path.write_text(text.replace(old, new))


def _wheel(tree: Path, folder: Path) -> Path:
    built = folder / "built"
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    done = subprocess.run(
        [*build, "--directory", str(built)],
        cwd=tree,
        check=False,
        timeout=600,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel] = built.glob("lehr-*.whl")
    return wheel
