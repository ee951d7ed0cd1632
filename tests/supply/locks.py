"""The locks: every package of an image, in one version, with the digests of its files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lehr_testing.paths import ROOT

DEPLOY = ROOT / "deploy"
IMAGES = {"server": ("server",), "trainer": ("server", "trainer", "gpu")}
"""Image -> the extras of Lehr that it has."""


@dataclass(frozen=True)
class Locked:
    name: str
    version: str
    digests: tuple[str, ...]
    """SHA-256 of each file that may be installed."""

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def path(image: str) -> Path:
    return DEPLOY / f"{image}.lock"


def read(text: str) -> list[Locked]:
    """Return the packages of a lock.

    Raises:
        ValueError: a line is none of a name, a version and digests.
    """
    found = []
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for entry in "\n".join(lines).replace("\\\n", " ").splitlines():
        if not entry.strip():
            continue
        head, *options = re.split(r"\s--hash=", entry.strip())
        requirement = Requirement(head)
        pins = [one for one in requirement.specifier if one.operator == "=="]
        digests = tuple(one.strip().removeprefix("sha256:") for one in options)
        if not pins or not digests or not all(re.fullmatch("[0-9a-f]{64}", d) for d in digests):
            raise ValueError(f"not a version with digests: {head}")
        found.append(Locked(canonicalize_name(requirement.name), pins[0].version, digests))
    return found


def packages(image: str) -> list[Locked]:
    return read(path(image).read_text())
