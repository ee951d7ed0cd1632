"""``lehr support-bundle``: its output, its file, its errors."""

from __future__ import annotations

import json
import tarfile

import pytest

from lehr.check import Check
from lehr.cli import checks
from lehr_testing import cli
from lehr_testing.stores import fresh_store, new_attempt


@pytest.fixture
def lehr(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "run_checks", lambda: [Check("Python", "ok", "3.11")])
    with fresh_store(tmp_path / "home") as store:
        new_attempt(store, "taught")

    def run(*args):
        home = str(tmp_path / "home")
        return cli.call("support-bundle", *args, cwd=tmp_path, LEHR_HOME=home, COLUMNS="200")

    return run


def test_bundle_is_written_and_its_files_are_listed(lehr, tmp_path):
    done = lehr("taught")
    assert done.returncode == 0, done.stderr
    [made] = tmp_path.glob("lehr-support-*.tar.gz")
    with tarfile.open(made) as archive:
        names = [name.partition("/")[2] for name in archive.getnames()]
    assert "machine.json" in names
    assert all(name in done.stdout for name in names)
    assert f"{made}: {len(names)} files" in done.stdout


def test_json_lists_the_same(lehr, tmp_path):
    done = lehr("--out", "b.tar.gz", "--json")
    found = json.loads(done.stdout)
    assert found["path"] == str(tmp_path / "b.tar.gz")
    assert {"name", "size_bytes", "error"} == set(found["files"][0])


def test_unknown_run_and_unknown_home_are_errors(lehr, tmp_path):
    done = lehr("taugth")
    assert done.returncode == 2
    assert "has no run 'taugth'" in done.stderr
    assert "Did you mean taught?" in done.stderr
    done = lehr("--home", str(tmp_path / "none"))
    assert "no Lehr server has run there" in done.stderr
    assert list(tmp_path.glob("*.tar.gz")) == []
