"""The pinned versions: one for everything that pyproject.toml asks for, and one that it accepts."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lehr_testing.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = [
    line
    for line in (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    if not line.startswith("#")
]
PINS = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in LINES}


def asked(*extras: str) -> Iterator[Requirement]:
    """What an install with these extras asks for, through the extras that they name."""
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][e] for e in extras)]
    for text in (text for texts in lists for text in texts):
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            yield from asked(*requirement.extras)
        else:
            yield requirement


@pytest.mark.parametrize("extra", ["dev", "server", "trainer", "notebook"])
def test_all_that_is_asked_for_is_pinned_to_a_version_that_is_accepted(extra: str) -> None:
    for requirement in asked(extra):
        if requirement.name == "torch":  # Installed before, in the exact version.
            continue
        pin = PINS.get(canonicalize_name(requirement.name))
        assert pin, f"{requirement.name} is not in deploy/constraints.txt: make constraints"
        assert requirement.specifier.contains(pin), f"{requirement} does not accept {pin}"


def test_a_line_is_a_name_and_a_version_and_names_no_place() -> None:
    for line in LINES:
        (pin,) = Requirement(line).specifier
        assert pin.operator == "=="
        assert "+" not in pin.version, f"{line}: a build that only one index has"
    assert "torch" not in PINS
    assert len(PINS) == len(LINES)
