"""Damage inside of values and streams is found, and stops neither a check nor a backup."""

from __future__ import annotations

import math
import random
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lehr.code.archive import SourceFile
from lehr.code.capsule_store import CapsuleStore
from lehr.store import Store
from lehr.store.upkeep import backup
from lehr.store.upkeep.integrity import check
from lehr_testing.stores import fresh_store, ingest, line, metrics, new_attempt, run_spec

FLIPS = 8
VALUES = [
    ("blocks", "vals", "rowid"),
    ("metrics", "value", "run, metric, attempt, step"),
    ("latest", "value", "run, metric, attempt"),
    ("latest", "low", "run, metric, attempt"),
    ("records", "body", "rowid"),
]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with fresh_store(tmp_path / "home") as store:
        attempt = new_attempt(store).id
        ingest(
            store, attempt, line("started"), *[metrics(n, train_loss=1 / n) for n in range(1, 60)]
        )
        ingest(store, attempt, *[metrics(n, train_loss=1 / n) for n in range(60, 65)])
        ingest(store, attempt, line("notice", 1.0, phase="x", message="hello"))
        ingest(store, attempt, b"words\n" * 50, name="rank-0.log")
    assert errors(tmp_path / "home") == []
    return tmp_path / "home"


def errors(home: Path) -> list[str]:
    return [f"{one.where}: {one.message}" for one in check(home) if one.level == "error"]


def flipped(value: bytes, rng: random.Random) -> bytes:
    changed = bytearray(value)
    changed[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def another(value: Any, rng: random.Random) -> Any:
    if isinstance(value, bytes):
        return flipped(value, rng)
    changed = math.nan
    while math.isnan(changed):  # SQLite stores NaN as NULL.
        (changed,) = struct.unpack("<d", flipped(struct.pack("<d", value), rng))
    return changed


def test_flipped_bit_of_a_stream_is_found_also_after_a_rebuild(home: Path) -> None:
    rng = random.Random(1)
    files = sorted(home.glob("replica/*/*"))
    for number in range(FLIPS * 5):
        path = files[number % 2]
        before = path.read_bytes()
        path.write_bytes(flipped(before, rng))
        [error] = errors(home)
        assert error.startswith(f"{path.parent.name}/{path.name}: its bytes in the replica are not")
        if number < len(files):
            backup.rebuild(home)
            assert len(errors(home)) == 1
        path.write_bytes(before)
        if number < len(files):
            backup.rebuild(home)
            assert errors(home) == []


@pytest.mark.parametrize(("table", "column", "key"), VALUES)
def test_flipped_bit_of_a_value_in_the_index_is_found(
    home: Path, table: str, column: str, key: str
) -> None:
    rng = random.Random(2)
    where = " AND ".join(f"{name}=?" for name in key.split(", "))
    with closing(sqlite3.connect(home / "streams.db")) as connection:
        rows = connection.execute(f"SELECT {key}, {column} FROM {table}").fetchall()
        for _ in range(FLIPS):
            *of_row, value = rng.choice(rows)
            change = f"UPDATE {table} SET {column}=? WHERE {where}"
            connection.execute(change, (another(value, rng), *of_row))
            connection.commit()
            [error] = errors(home)
            assert "streams.db differs from it in" in error
            connection.execute(change, (value, *of_row))
            connection.commit()


def test_damaged_spec_is_a_finding_and_stops_no_backup(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "a.py"
    source.write_text("a = 1")
    code = CapsuleStore(store.home).make([SourceFile("project/a.py", str(source), 0o644)])
    whole, damaged = (
        store.runs.create(run_spec(name, code={"digest": code})).id for name in ("one", "two")
    )
    text = "UPDATE runs SET spec=CAST(X'FF' || substr(spec, 2) AS TEXT) WHERE id=?"
    with closing(sqlite3.connect(store.home / "lehr.db")) as connection, connection:
        connection.execute(text, (damaged,))
    assert f"runs {damaged}: its spec is damaged" in errors(store.home)
    made = backup.backup(store.home, tmp_path / "backup")
    assert made.missing == (f"the spec of run {damaged} is damaged in lehr.db",)
    assert f"capsules/{code}.tar" in made.files
    backup.restore(tmp_path / "backup", tmp_path / "other")
    with Store.open(tmp_path / "other") as other:
        assert other.runs.get(whole).name == "one"


@pytest.mark.parametrize("column", ["state", "id", "spec", "provenance_sha256"])
def test_check_of_any_damaged_value_ends_without_a_traceback(store: Store, column: str) -> None:
    store.runs.create(run_spec(), provenance={"host": "a"})
    with closing(sqlite3.connect(store.home / "lehr.db")) as connection, connection:
        connection.execute(f"UPDATE runs SET {column}=CAST(X'FFFE' AS TEXT)")
    assert errors(store.home)
