"""Known vulnerabilities of locked packages, by pip-audit and the databases that it asks."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PIP_AUDIT = "pip-audit==2.10.1"
ACCEPTED = Path(__file__).with_name("accepted.toml")


@dataclass(frozen=True)
class Audit:
    asked: int
    vulnerable: list[str]
    """Package, vulnerability and the version that mends it."""
    accepted: list[str]
    not_audited: list[str]
    """Packages of which the database said nothing: no finding is no proof for them."""


def audit(lock: Path) -> Audit:
    """Ask the database about every package of a lock.

    Raises:
        RuntimeError: pip-audit gave no answer.
    """
    command = [
        *(sys.executable, "-m", "uv", "tool", "run", PIP_AUDIT),
        *("--requirement", str(lock), "--require-hashes", "--disable-pip"),
        *("--format", "json", "--progress-spinner", "off"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        raise RuntimeError(f"pip-audit gave no answer: {done.stderr.strip()[-500:]}") from error
    return judge(answer, tomllib.loads(ACCEPTED.read_text()))


def judge(answer: dict[str, Any], accepted: dict[str, str]) -> Audit:
    """Sort pip-audit's answer. It exits with 0 although it skipped packages, so these are counted."""
    vulnerable, tolerated, skipped = [], [], []
    for package in answer["dependencies"]:
        if "skip_reason" in package:
            skipped.append(f"{package['name']}: {package['skip_reason']}")
        for one in package.get("vulns", []):
            names = {one["id"], *one.get("aliases", [])}
            mended = ", ".join(one.get("fix_versions", [])) or "no version yet"
            line = f"{package['name']} {package['version']}: {one['id']}, mended in {mended}"
            (tolerated if names & accepted.keys() else vulnerable).append(line)
    return Audit(len(answer["dependencies"]), vulnerable, tolerated, skipped)
