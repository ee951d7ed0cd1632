"""The pinned versions: one for each dependency of pyproject.toml, within its bounds."""

from __future__ import annotations

import re
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


def requirements(*extras: str) -> Iterator[Requirement]:
    """Yield the requirements of an install with these extras, including nested extras."""
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][e] for e in extras)]
    for text in (text for texts in lists for text in texts):
        requirement = Requirement(text)
        if requirement.name == PROJECT["name"]:
            yield from requirements(*requirement.extras)
        else:
            yield requirement


@pytest.mark.parametrize("extra", ["dev", "server", "trainer", "notebook"])
def test_every_dependency_is_pinned_to_an_allowed_version(extra: str) -> None:
    for requirement in requirements(extra):
        if requirement.name == "torch":  # Installed before, in the exact version.
            continue
        pin = PINS.get(canonicalize_name(requirement.name))
        assert pin, f"{requirement.name} is not in deploy/constraints.txt: make constraints"
        assert requirement.specifier.contains(pin), f"{requirement} does not accept {pin}"


@pytest.mark.parametrize(
    ("image", "extras"), [("server", ["server"]), ("trainer", ["server", "trainer", "gpu"])]
)
def test_lock_has_every_dependency_of_its_image_in_the_tested_version(
    image: str, extras: list[str]
) -> None:
    lock = (ROOT / "deploy" / f"{image}.lock").read_text()
    locked = dict(re.findall(r"^([a-z0-9._-]+)==(\S+) \\\n    --hash=sha256:", lock, re.MULTILINE))
    assert len(locked) == len(re.findall(r"^\w", lock, re.MULTILINE)), "a line without a digest"
    for requirement in requirements(*extras):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}: make locks"
    shared = locked.keys() & PINS.keys()
    assert {n: locked[n] for n in shared} == {n: PINS[n] for n in shared}, "make locks"


@pytest.mark.parametrize("image", ["server", "trainer"])
def test_image_installs_its_own_lock_by_digests_and_runs_as_a_user(image: str) -> None:
    text = (ROOT / "deploy" / f"{image}.Dockerfile").read_text()
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE)
    names = [name for names in copied for name in names.split()]
    assert [name for name in names if not (ROOT / name).exists()] == []
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    roots = {name.partition("/")[0] for name in packages["targets"]["wheel"]["packages"]}
    assert {*roots, "pyproject.toml", PROJECT["readme"], *PROJECT["license-files"]} <= {*names}
    assert f"--require-hashes --no-deps -r {image}.lock" in text
    assert re.findall(r"^USER (\w+)", text, re.MULTILINE)[-1] == "lehr"
    # Ray refuses a node whose patch version of Python differs.
    server = (ROOT / "deploy/server.Dockerfile").read_text()
    python = re.search(r"^ARG PYTHON=3\.11\.\d+\S*$", server, re.MULTILINE)
    assert f"\n{python[0]}\n" in text


def test_constraint_lines_have_only_a_name_and_a_version() -> None:
    for line in LINES:
        (pin,) = Requirement(line).specifier
        assert pin.operator == "=="
        assert "+" not in pin.version, f"{line}: a build that only one index has"
    assert "torch" not in PINS
    assert len(PINS) == len(LINES)
