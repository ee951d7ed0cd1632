"""A support bundle has what helps, also of a broken home, and no secret."""

from __future__ import annotations

import json
import stat
import tarfile

import pytest

from lehr.check import Check
from lehr.errors import NotFound, UserError
from lehr.support import bundle
from lehr_testing.stores import fresh_store, ingest, line, new_attempt

TOKEN = "T0ken-of-this-server-abcdef"
WEBHOOK = "https://hooks.example/T000/B000/xyzzy"


def no_checks():
    return [Check("Python", "ok", "3.11")]


@pytest.fixture
def home(tmp_path):
    """A home with a run that logged, a log with secrets, and the secrets' files."""
    with fresh_store(tmp_path / "home") as store:
        attempt = new_attempt(store, "taught")
        ingest(store, attempt.id, line("started"))
        ingest(store, attempt.id, f"loss 2.0\nkey {TOKEN}\n".encode(), name="rank-0.log")
        store.event_applier.apply(attempt.id)
        where = store.home
    (where / "token").write_text(TOKEN + "\n")
    (where / "webhooks.json").write_text(json.dumps({"team": WEBHOOK}))
    (where / "logs").mkdir(exist_ok=True)
    (where / "logs" / "server.log").write_text(
        f"posted to {WEBHOOK} with {TOKEN}\nsk-{'a1' * 20}\n"
    )
    return where


def read(made):
    with tarfile.open(made.path) as archive:
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()
            for member in archive.getmembers()
        }


def test_bundle_describes_the_home_and_a_run_without_secrets(home, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_KEY", "loss 2.0")
    made = bundle.write(home, tmp_path / "b.tar.gz", ["taught"], checks=no_checks)
    found = read(made)
    assert [one.error for one in made.files] == [None] * len(found)
    assert found["logs/server.log"] == "posted to [removed] with [removed]\n[removed]\n"
    assert json.loads(found["checks.json"])[0]["found"] == "3.11"
    assert json.loads(found["database/check.json"]) == []
    assert json.loads(found["database/summary.json"])["rows"]["runs"] == 1
    [run] = json.loads(found[next(name for name in found if name.endswith("/runs.json"))])
    assert run["name"] == "taught"
    [attempt] = json.loads(found[f"runs/{run['id']}/attempts.json"])
    assert attempt["run_id"] == run["id"]
    assert "token_sha256" not in attempt
    # The variable's value is removed too, wherever it stands.
    assert found[f"runs/{run['id']}/{attempt['id']}/rank-0.log"] == "[removed]\nkey [removed]\n"
    everything = "".join(found.values())
    assert TOKEN not in everything
    assert WEBHOOK not in everything
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600


def test_home_whose_database_is_damaged_has_a_bundle_with_the_error(home, tmp_path):
    (home / "lehr.db").write_bytes(b"not a database" * 1000)
    made = bundle.write(home, tmp_path / "b.tar.gz", checks=no_checks)
    errors = {one.name: one.error for one in made.files if one.error}
    assert "file is not a database" in errors["database/summary.json"]
    found = read(made)
    assert "could not be collected" in found["database/summary.json"]
    assert "cannot be read as a database" in found["database/check.json"]
    assert "posted to" in found["logs/server.log"]


def test_only_whole_lines_at_the_end_of_a_long_log_are_taken(home, tmp_path):
    lines = [f"line {number:06d} of a log that says little\n" for number in range(120_000)]
    (home / "logs" / "server.log").write_text("".join(lines))
    found = read(bundle.write(home, tmp_path / "b.tar.gz", checks=no_checks))
    kept = found["logs/server.log"].splitlines(keepends=True)
    assert kept == lines[-len(kept) :]
    assert 3_900_000 < len(found["logs/server.log"]) <= 4_000_000


@pytest.mark.parametrize("wanted", ["taugth", "zz"])
def test_unknown_run_is_an_error_and_nothing_is_written(home, tmp_path, wanted):
    with pytest.raises(NotFound, match=f"has no run '{wanted}'") as caught:
        bundle.write(home, tmp_path / "b.tar.gz", [wanted], checks=no_checks)
    assert (wanted == "zz") or "Did you mean taught?" in str(caught.value.hint)
    assert not (tmp_path / "b.tar.gz").exists()


def test_name_of_two_runs_is_an_error_that_lists_them(tmp_path):
    with fresh_store(tmp_path / "home") as store:
        ids = sorted(new_attempt(store, "same").run_id for _ in range(2))
    with pytest.raises(UserError, match=f"names 2 runs: {ids[0]}, {ids[1]}"):
        bundle.write(tmp_path / "home", tmp_path / "b.tar.gz", ["same"], checks=no_checks)


def test_file_that_exists_is_kept(home, tmp_path):
    (tmp_path / "b.tar.gz").write_text("mine")
    with pytest.raises(UserError, match="File exists"):
        bundle.write(home, tmp_path / "b.tar.gz", checks=no_checks)
    assert (tmp_path / "b.tar.gz").read_text() == "mine"
