"""Run a tier of the tests, and record in tests/TIERS.md when it last passed.

    python tests/lehr_testing/tiers.py test [arguments for pytest]

Only a whole tier is noted, at a commit without changes: else the note would not be true of it.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[2]
DEFINITIONS = ROOT / "tests" / "tiers.toml"
RECORD = ROOT / "tests" / "TIERS.md"

HEAD = """\
# Last green run of each tier

Written by `make <tier>` when the whole tier passes at a commit without changes.

| Tier | Date (UTC) | Commit | Passed | Skipped | Minutes | Machine |
|---|---|---|---|---|---|---|
"""
NEVER = "| {name} | not yet run at a commit | | | | | |"


@dataclass(frozen=True)
class Tier:
    name: str
    about: str
    select: str
    """pytest's ``-m``."""
    options: tuple[str, ...]

    def command(self, arguments: list[str]) -> list[str]:
        """Return the command of the tier, limited to the tests that the arguments name."""
        return [
            *(sys.executable, "-m", "pytest", "-m", self.select),
            *(arguments or [*self.options, "--durations", "30", "tests"]),
        ]


@dataclass(frozen=True)
class Outcome:
    passed: int
    skipped: int
    seconds: float


def tiers() -> dict[str, Tier]:
    defined = tomllib.loads(DEFINITIONS.read_text())
    return {
        name: Tier(name, values["about"], values["select"], tuple(values["options"]))
        for name, values in defined.items()
    }


def run(tier: Tier, arguments: list[str]) -> int:
    command = tier.command(arguments)
    print(shlex.join(command), flush=True)
    before = commit()
    environment = dict(os.environ)
    # Without compiled files each of hundreds of processes compiles the sources again.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        done = subprocess.run(
            [*command, f"--junitxml={report}"], cwd=ROOT, env=environment, check=False
        )
        if done.returncode == 0 and not arguments and before is not None and before == commit():
            record(tier.name, before, outcome(report))
    return done.returncode


def outcome(report: Path) -> Outcome:
    [suite] = ET.parse(report).getroot().iter("testsuite")
    count = {name: int(suite.get(name, 0)) for name in ("tests", "skipped")}
    return Outcome(count["tests"] - count["skipped"], count["skipped"], float(suite.get("time", 0)))


def commit(root: Path = ROOT) -> str | None:
    """Return the current commit; None if files other than the record differ from it."""
    changed = git(root, "status", "--porcelain", "--untracked-files=no")
    others = [line for line in changed.splitlines() if not line.endswith(RECORD.name)]
    return None if others else git(root, "rev-parse", "--short=12", "HEAD").strip() or None


def git(root: Path, *arguments: str) -> str:
    """Return what git prints; nothing where it fails, or is not installed, as on some GPU machines."""
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout


def record(name: str, commit: str, outcome: Outcome, path: Path = RECORD) -> None:
    """Replace the row of a tier."""
    known = dict.fromkeys(tiers())
    lines = path.read_text().splitlines() if path.exists() else []
    rows = {line.split("|")[1].strip(): line for line in lines if line.startswith("| ")}
    rows[name] = (
        f"| {name} | {datetime.now(UTC):%Y-%m-%d %H:%M} | {commit} | {outcome.passed} "
        f"| {outcome.skipped} | {outcome.seconds / 60:.0f} | {machine()} |"
    )
    text = "\n".join(rows.get(tier) or NEVER.format(name=tier) for tier in known)
    path.write_text(f"{HEAD}{text}\n")


def machine() -> str:
    """Describe the hardware, on which times depend."""
    cores = f"{len(os.sched_getaffinity(0))} cores"
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError:
        return cores
    return ", ".join([cores, *done.stdout.splitlines()])


if __name__ == "__main__":
    _, name, *arguments = sys.argv
    raise SystemExit(run(tiers()[name], arguments))
