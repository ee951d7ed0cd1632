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
from lehr.errors import HomeUnusable, InternalError
from lehr.store import Store
from lehr.store.changes import Changes
from lehr.store.database import Database
from lehr.store.upkeep import migrate
from lehr.store.upkeep.integrity import check
from lehr_testing.paths import ROOT
from lehr_testing.stores import begin, fresh_store, run_spec

LATER = f"{int(migrate.HEAD) + 1:04}"
NEXT = f"""
import sqlalchemy as sa
from alembic import op

revision, down_revision = "{LATER}", "{migrate.HEAD}"


def upgrade() -> None:
    op.add_column("runs", sa.Column("later", sa.String(), nullable=True))
    op.execute("UPDATE runs SET later = id")
"""


def first_version(path: Path) -> None:
    """Create a database of version 0.1.0 with a run in it."""
    with closing(sqlite3.connect(path)) as raw:
        raw.executescript((ROOT / "tests/data/lehr_0019.sql").read_text())
        raw.execute(
            "INSERT INTO runs (id, name, project, spec, tags, priority, state, desired, attempt,"
            " checkpoint_seq, user_failures, infrastructure_failures, preemptions, submitted_by,"
            " archived, created_at, queued_at)"
            " VALUES ('oldrun22', 'old', 'default', ?, '[]', 0, 'queued', 'run', 0, 0, 0, 0, 0,"
            " 'ada', 0, 1.5, 1.5)",
            [json.dumps(run_spec("old").model_dump(mode="json"))],
        )
        raw.execute(
            "INSERT INTO transitions (run_id, attempt, old, new, cause, actor, at)"
            " VALUES ('oldrun22', 0, NULL, 'queued', 'submitted', 'ada', 1.5)"
        )
        raw.commit()


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute(query).fetchall()


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A version of Lehr with one revision more; return its file."""
    folder = tmp_path / "migrations"
    (folder / "versions").mkdir(parents=True)
    for path in migrate._MIGRATIONS.glob("**/*.py"):
        (folder / path.relative_to(migrate._MIGRATIONS)).write_bytes(path.read_bytes())
    (folder / f"versions/{LATER}_next.py").write_text(NEXT)
    monkeypatch.setattr(migrate, "_MIGRATIONS", folder)
    monkeypatch.setattr(migrate, "HEAD", LATER)
    return folder / f"versions/{LATER}_next.py"


def test_a_home_of_the_first_version_keeps_its_rows_and_has_the_tables_of_the_code(
    tmp_path: Path,
) -> None:
    first_version(tmp_path / "lehr.db")
    with Store.open(tmp_path) as store:
        run = store.runs.find("old")
        assert (run.id, run.submitted_by, run.created_at) == ("oldrun22", "ada", 1.5)
        assert run_spec("old").model_validate(run.spec) == run_spec("old")
        store.requests.set_desired(run.id, Desired.PAUSE, actor="ada")
        store.requests.set_desired(run.id, Desired.RUN, actor="ada")
        assert begin(store, run.id).number == 1
        assert len(store.requests.of_run(run.id)) == 2
    assert check(tmp_path) == []
    engine = create_engine(f"sqlite:///{tmp_path / 'lehr.db'}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, SQLModel.metadata) == []
    engine.dispose()
    fresh_store(tmp_path / "new").close()
    triggers = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
    assert rows(tmp_path / "lehr.db", triggers) == rows(tmp_path / "new/lehr.db", triggers) != []


def test_an_upgrade_keeps_the_rows_and_a_copy_of_the_file(
    tmp_path: Path, next_version: Path
) -> None:
    first_version(tmp_path / "lehr.db")
    Store.open(tmp_path).close()
    assert migrate.revision(tmp_path / "lehr.db") == LATER
    assert rows(tmp_path / "lehr.db", "SELECT later FROM runs") == [("oldrun22",)]
    assert migrate.revision(tmp_path / f"lehr.db.before-{LATER}-0019") == "0019"


def test_failed_upgrade_changes_nothing(tmp_path: Path, next_version: Path) -> None:
    next_version.write_text(NEXT + '    op.execute("DELETE FROM runs")\n')
    first_version(tmp_path / "lehr.db")
    with pytest.raises(InternalError, match="without their parent"):
        Store.open(tmp_path)
    assert migrate.revision(tmp_path / "lehr.db") == "0019"
    assert rows(tmp_path / "lehr.db", "SELECT id FROM runs") == [("oldrun22",)]


@pytest.mark.parametrize(
    ("revision", "message"),
    [("9999", "another version of Lehr"), ("0018", r"another version of Lehr \(revision 0018")],
)
def test_database_of_another_version_is_rejected_unchanged(
    tmp_path: Path, revision: str, message: str
) -> None:
    fresh_store(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "lehr.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num=?", [revision])
        connection.commit()
    before = (tmp_path / "lehr.db").read_bytes()
    with pytest.raises(HomeUnusable, match=message):
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
