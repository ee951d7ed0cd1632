"""``lehr.db`` is migrated with its rows; unknown files are rejected."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine
from sqlmodel import SQLModel

from lehr.control.lifecycle import Desired
from lehr.errors import HomeUnusable, InternalError, UserError
from lehr.store import Store, tables
from lehr.store.changes import Changes
from lehr.store.database import Database, _engine
from lehr.store.maintenance import migrate
from lehr.store.maintenance.integrity import check
from lehr.store.records.access_tokens import digest
from lehr_testing.stores import begin, fresh_store, run_spec

assert tables


def older_file(path: Path, target: str) -> None:
    """Create a database of an older version of Lehr with a run in it."""
    raw = sqlite3.connect(path, isolation_level=None)
    engine = _engine(lambda: raw, "BEGIN IMMEDIATE", static=True)
    migrate.upgrade(engine, path, target)
    spec = json.dumps(run_spec("old").model_dump(mode="json"))
    add_run(raw, "oldrun22", spec, provenance=None if target >= "0008" else {})
    raw.execute(
        "INSERT INTO transitions (run_id, attempt, old, new, cause, actor, at)"
        " VALUES ('oldrun22', 0, NULL, 'queued', 'submitted', 'ada', 1.5)"
    )
    engine.dispose()


def add_run(
    raw: sqlite3.Connection, run_id: str, spec: str, provenance: dict[str, object] | None
) -> None:
    """A run's row; with ``provenance`` as revisions before 0008 have it."""
    column, value = ("", "") if provenance is None else (" provenance,", " :provenance,")
    raw.execute(
        "INSERT INTO runs (id, name, project, spec, tags, priority, state, desired, attempt,"
        " checkpoint_seq, user_failures, infrastructure_failures, preemptions, submitted_by,"
        f"{column} archived, created_at, queued_at)"
        " VALUES (:id, 'old', 'default', :spec, '[]', 0, 'queued', 'run', 0, 0, 0, 0, 0,"
        f" 'ada',{value} 0, 1.5, 1.5)",
        {"id": run_id, "spec": spec, "provenance": json.dumps(provenance)},
    )


@pytest.mark.parametrize("revision", migrate.REVISIONS)
def test_an_older_file_keeps_its_rows(tmp_path: Path, revision: str) -> None:
    older_file(tmp_path / "lehr.db", revision)
    with Store.open(tmp_path) as store:
        run = store.runs.find("old")
        assert (run.id, run.submitted_by, run.created_at) == ("oldrun22", "ada", 1.5)
        assert run_spec("old").model_validate(run.spec) == run_spec("old")
        store.requests.set_desired(run.id, Desired.PAUSE, actor="ada")
        store.requests.set_desired(run.id, Desired.RUN, actor="ada")
        assert begin(store, run.id).number == 1
        assert len(store.requests.of_run(run.id)) == 2
    assert check(tmp_path) == []
    kept = [path.name for path in tmp_path.glob("lehr.db.before-*")]
    assert kept == (
        [] if revision == migrate.HEAD else [f"lehr.db.before-{migrate.HEAD}-{revision}"]
    )


def test_failed_upgrade_changes_nothing(tmp_path: Path) -> None:
    older_file(tmp_path / "lehr.db", "0001")
    with closing(sqlite3.connect(tmp_path / "lehr.db")) as connection:
        connection.execute(
            "INSERT INTO cells (sweep_id, number, parameters, run_id)"
            " VALUES ('nosweep2', 1, '{}', 'oldrun22')"
        )
        connection.commit()
    with pytest.raises(InternalError, match="without their parent"):
        Store.open(tmp_path)
    assert migrate.revision(tmp_path / "lehr.db") == "0001"
    with closing(sqlite3.connect(tmp_path / "lehr.db")) as connection:
        tables_there = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    assert "requests" not in tables_there


def test_migrations_create_the_tables_of_the_code(tmp_path: Path) -> None:
    with fresh_store(tmp_path) as store:
        assert store.runs.page().total == 0
    engine = create_engine(f"sqlite:///{tmp_path / 'lehr.db'}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, SQLModel.metadata) == []
    engine.dispose()


def test_database_of_a_newer_version_is_rejected_unchanged(tmp_path: Path) -> None:
    fresh_store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "lehr.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num='9999'")
        connection.commit()
    before = (tmp_path / "lehr.db").read_bytes()
    with pytest.raises(HomeUnusable, match="newer version of Lehr"):
        Store.open(tmp_path)
    assert (tmp_path / "lehr.db").read_bytes() == before


def test_opened_database_is_durable_and_enforces_foreign_keys(tmp_path: Path) -> None:
    database = Database(tmp_path / "lehr.db", Changes())
    pragmas = {
        name: database._raw.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("journal_mode", "synchronous", "foreign_keys")
    }
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    with database.write(durable=False):
        assert database._raw.execute("PRAGMA synchronous").fetchone()[0] == 1
    assert database._raw.execute("PRAGMA synchronous").fetchone()[0] == 2
    with database.read() as session, pytest.raises(Exception, match="readonly"):
        session.connection().exec_driver_sql("DELETE FROM runs")
    database.close()


def test_stored_specs_take_the_names_of_this_version(tmp_path: Path) -> None:
    older_file(tmp_path / "lehr.db", "0006")
    run = run_spec("old").model_dump(mode="json", exclude_unset=True)
    run["train"]["recompute"] = {"policy": "block", "every": 2}
    listed = {"kind": "sweep", "name": "s", "method": "list", "run": run}
    listed["cells"] = [{"train.recompute.every": 4, "train.seed": 1}, {"train.seed": 2}]
    grid = {"kind": "sweep", "name": "g", "run": run}
    grid["parameters"] = {"train.recompute.policy": {"values": ["none", "block"]}}
    stages = {"one": {"gates": {"no_alarm": {"ignore": []}, "loss_falls": True}}}
    with closing(sqlite3.connect(tmp_path / "lehr.db")) as connection:
        connection.execute("UPDATE runs SET spec = ?", (json.dumps(run),))
        for name, spec in (("s", listed), ("g", grid)):
            connection.execute(
                "INSERT INTO sweeps (id, name, project, spec, tags, created_at, archived)"
                " VALUES (?, ?, 'default', ?, '[]', 1.5, 0)",
                (name, name, json.dumps(spec)),
            )
        connection.execute(
            "INSERT INTO rollouts (id, name, project, spec, tags, provenance, created_at, archived)"
            " VALUES ('r', 'r', 'default', ?, '[]', '{}', 1.5, 0)",
            (json.dumps({"kind": "rollout", "run": run, "stages": stages}),),
        )
        connection.commit()
    with Store.open(tmp_path) as store:
        spec = store.runs.find("old").spec
    with closing(sqlite3.connect(tmp_path / "lehr.db")) as connection:
        found = dict(connection.execute("SELECT name, spec FROM sweeps"))
        [(rollout,)] = connection.execute("SELECT spec FROM rollouts")
    policy = {"policy": "block", "every": 2}
    assert spec["train"]["activation_checkpointing"] == policy
    assert "recompute" not in spec["train"]
    assert json.loads(found["s"])["points"] == [
        {"train.activation_checkpointing.every": 4, "train.seed": 1},
        {"train.seed": 2},
    ]
    assert "cells" not in json.loads(found["s"])
    assert list(json.loads(found["g"])["parameters"]) == ["train.activation_checkpointing.policy"]
    assert json.loads(found["g"])["run"]["train"]["activation_checkpointing"] == policy
    gates = json.loads(rollout)["stages"]["one"]["gates"]
    assert gates == {"no_alerts": {"ignore": []}, "loss_falls": True}


def test_a_stored_synthetic_exit_report_stays_one(tmp_path: Path) -> None:
    older_file(tmp_path / "lehr.db", "0006")
    text = 'the log had "stand_in": true'
    report = {"code": None, "log_tail": text, "stand_in": True, "node": "n2"}
    with closing(sqlite3.connect(tmp_path / "lehr.db")) as connection:
        connection.execute(
            "INSERT INTO attempts (id, run_id, number, placement, token_sha256, open, created_at,"
            " events_applied, exit) VALUES ('oldrun22-1', 'oldrun22', 1, '[]', '', 0, 1.5, 0, ?)",
            (json.dumps(report, separators=(",", ":")),),
        )
        connection.commit()
    with Store.open(tmp_path) as store:
        found = store.attempts.get("oldrun22-1").exit
    assert found == {"code": None, "log_tail": text, "synthetic": True, "node": "n2"}


def test_provenance_of_older_runs_is_stored_once_for_those_that_share_it(tmp_path: Path) -> None:
    older_file(tmp_path / "lehr.db", "0007")
    spec = json.dumps(run_spec("old").model_dump(mode="json"))
    shared = {"git": {"commit": "abc", "diff": "+\ud800 \u20ac\n"}, "n": [10**30, None]}
    with closing(sqlite3.connect(tmp_path / "lehr.db")) as connection:
        for number in range(450):
            add_run(connection, f"shared{number}", spec, shared)
        add_run(connection, "turned", spec, dict(reversed(shared.items())))
        add_run(connection, "alone", spec, {"host": "n1"})
        connection.commit()
    with Store.open(tmp_path) as store:
        found = {
            run_id: store.runs.provenance(store.runs.get(run_id))
            for run_id in ("oldrun22", "shared0", "shared449", "turned", "alone")
        }
        new = store.runs.create(run_spec("new"), provenance={"host": "n1"})
    assert found == {
        "oldrun22": {},
        **dict.fromkeys(("shared0", "shared449", "turned"), shared),
        "alone": {"host": "n1"},
    }
    assert new.provenance_sha256 is not None
    with closing(sqlite3.connect(tmp_path / "lehr.db")) as connection:
        assert connection.execute("SELECT count(*) FROM provenance").fetchone() == (2,)
        without = "SELECT id FROM runs WHERE provenance_sha256 IS NULL"
        assert connection.execute(without).fetchall() == [("oldrun22",)]
        columns = {row[1] for row in connection.execute("PRAGMA table_info(runs)")}
    assert "provenance" not in columns
    assert [one for one in check(tmp_path) if not one.where.startswith("run ")] == []


def test_sweeps_of_seeds_name_the_run_that_they_repeat(tmp_path: Path) -> None:
    older_file(tmp_path / "lehr.db", "0015")
    with closing(sqlite3.connect(tmp_path / "lehr.db", isolation_level=None)) as raw:
        raw.execute(
            "INSERT INTO sweeps (id, name, project, spec, tags, note, created_at, archived)"
            " VALUES ('s2', 'old-seeds', 'default', '{}', '[]', '', 1.5, 0)"
        )
        raw.execute('INSERT INTO provenance VALUES (\'x\', \'{"seeds_of": {"run": "base"}}\')')
        raw.execute("UPDATE runs SET sweep_id = 's2', provenance_sha256 = 'x'")
    with Store.open(tmp_path) as store:
        assert store.sweeps.seeds_of(["base"]) == [("base", "s2")]


def test_keys_of_older_requests_keep_what_they_made(tmp_path: Path) -> None:
    older_file(tmp_path / "lehr.db", "0007")
    with closing(sqlite3.connect(tmp_path / "lehr.db")) as connection:
        connection.execute(
            "INSERT INTO idempotency_keys (key, request_sha256, status, body, created_at)"
            " VALUES ('k', 'sha', 201, ?, 2.5)",
            (json.dumps({"id": "oldrun22", "name": "old", "spec": {"id": "not this one"}}),),
        )
        connection.commit()
    with Store.open(tmp_path) as store:
        found = store.idempotency.answer("k", "sha")
        assert found is not None
        assert (found.status, found.made) == (201, "oldrun22")


def test_tokens_limited_to_projects_end_with_the_limit(tmp_path: Path) -> None:
    older_file(tmp_path / "lehr.db", "0014")
    limits = {"all": None, "one": '["mine"]', "none": "[]", "ended": '["mine"]'}
    with sqlite3.connect(tmp_path / "lehr.db") as raw:
        raw.executemany(
            "INSERT INTO access_tokens (name, role, sha256, created_at, projects, revoked_at)"
            " VALUES (?, 'researcher', ?, 1, ?, ?)",
            [
                (name, digest(name), limit, 2.5 if name == "ended" else None)
                for name, limit in limits.items()
            ],
        )
    with Store.open(tmp_path) as store:
        tokens = store.access_tokens
        assert {row.name: tokens.valid(row) for row in tokens.all()} == {
            "all": True,
            "one": False,
            "none": False,
            "ended": False,
        }
        ended = tokens.of_name("ended")
        assert ended is not None
        assert ended.revoked_at == 2.5
        with pytest.raises(UserError, match="revoked"):
            tokens.rotate("one", "new")
