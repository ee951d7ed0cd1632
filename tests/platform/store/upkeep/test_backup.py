"""Backups, restores, rebuilds and check-ups of a home."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from lehr.base import home as homes
from lehr.control.lifecycle import Desired
from lehr.errors import Conflict, HomeUnusable, NotFound, UserError
from lehr.store import Store
from lehr.store.secret_store import SecretStore
from lehr.store.upkeep import backup, migrate
from lehr.store.upkeep.integrity import check
from lehr_testing.stores import ingest, line, metrics, new_attempt, picture, run_spec, same


def recorded_run(store: Store) -> str:
    """Record a run with data of every kind."""
    attempt = new_attempt(store, "told")
    ingest(
        store, attempt.id, line("started"), *[metrics(n, train_loss=1 / n) for n in range(1, 50)]
    )
    ingest(store, attempt.id, b"some words\n", name="rank-0.log")
    store.event_applier.apply(attempt.id)
    store.requests.set_desired(attempt.run_id, Desired.PAUSE, actor="ada")
    return attempt.run_id


def test_a_backup_taken_while_running_restores_everything(store: Store, tmp_path: Path) -> None:
    run_id = recorded_run(store)
    expected, moves = picture(store, run_id), store.transitions.of_run(run_id)
    found = backup.backup(store.home, tmp_path / "backup")
    assert (found.runs, found.revision) == (1, migrate.HEAD)
    assert {"lehr.db", f"replica/{run_id}-1/events.jsonl"} <= set(found.files)
    backup.restore(tmp_path / "backup", tmp_path / "other")
    assert check(tmp_path / "other") == [
        finding for finding in check(tmp_path / "other") if finding.level == "note"
    ]
    with Store.open(tmp_path / "other") as other:
        assert same(picture(other, run_id), expected)
        assert [vars(row)["new"] for row in other.transitions.of_run(run_id)] == [
            row.new for row in moves
        ]
        assert other.runs.get(run_id).desired == "pause"


def test_backup_names_what_it_leaves_out_and_a_restored_home_is_held(
    store: Store, tmp_path: Path
) -> None:
    recorded_run(store)
    SecretStore(store.home).set("hf", "hidden", by="ada", at=1.0)
    SecretStore(store.home).set("team", "https://hooks.example/hidden", by="ada", at=1.0)
    made = backup.backup(store.home, tmp_path / "backup")
    assert made.left_out == {"secrets": ["hf", "team"]}
    assert "hidden" not in (tmp_path / "backup/backup.json").read_text()
    (tmp_path / "other").mkdir()
    SecretStore(tmp_path / "other").set("team", "https://hooks.example/other", by="ada", at=1.0)
    put = backup.restore(tmp_path / "backup", tmp_path / "other")
    assert put.left_out == {"secrets": ["hf"]}
    assert "lehr db release" in (homes.held(tmp_path / "other") or "")
    (store.home / "secrets.json").write_text("{")
    made = backup.backup(store.home, tmp_path / "second")
    assert made.left_out["secrets"] == ["(unreadable)"]


def test_shipper_continues_from_the_offset_of_the_backup(store: Store, tmp_path: Path) -> None:
    attempt = new_attempt(store)
    events = [metrics(step, train_loss=float(step)) for step in range(1, 6)]
    ingest(store, attempt.id, *events[:2])
    backup.backup(store.home, tmp_path / "backup")
    ingest(store, attempt.id, *events[2:])
    backup.restore(tmp_path / "backup", tmp_path / "other")
    with Store.open(tmp_path / "other") as other:
        offset = other.streams.sizes(attempt.id)["events.jsonl"]
        assert offset == len(b"".join(events[:2]))
        other.streams.append(attempt.id, "events.jsonl", offset, b"".join(events)[offset:])
        assert same(picture(other, attempt.run_id), picture(store, attempt.run_id))


def test_damaged_backup_is_rejected_before_any_change(store: Store, tmp_path: Path) -> None:
    run_id = recorded_run(store)
    store.close()
    before = (store.home / "lehr.db").read_bytes()
    for number, damage in enumerate([b"", b"longer than before and not the same\n" * 99]):
        folder = tmp_path / f"backup-{number}"
        backup.backup(store.home, folder)
        (folder / "replica" / f"{run_id}-1" / "rank-0.log").write_bytes(damage)
        with pytest.raises(UserError, match="damaged"):
            backup.restore(folder, store.home, replace=True)
    (tmp_path / "backup-0" / "replica" / f"{run_id}-1" / "rank-0.log").unlink()
    with pytest.raises(UserError, match="missing"):
        backup.restore(tmp_path / "backup-0", store.home, replace=True)
    with pytest.raises(NotFound, match="not a backup"):
        backup.restore(tmp_path, store.home, replace=True)
    assert (store.home / "lehr.db").read_bytes() == before


def test_restore_needs_replace_and_keeps_the_old_files(store: Store, tmp_path: Path) -> None:
    run_id = recorded_run(store)
    backup.backup(store.home, tmp_path / "backup")
    later = store.runs.create(run_spec("later")).id
    with pytest.raises(Conflict, match="already"):
        backup.restore(tmp_path / "backup", store.home)
    store.close()
    backup.restore(tmp_path / "backup", store.home, replace=True)
    (kept,) = store.home.glob("replaced-*")
    with closing(sqlite3.connect(kept / "lehr.db")) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM runs")}
    assert names == {"told", "later"}
    with Store.open(store.home) as again:
        assert again.runs.get(run_id).name == "told"
        with pytest.raises(NotFound):
            again.runs.get(later)


def test_interrupted_restore_is_detected_and_can_be_repeated(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = recorded_run(store)
    backup.backup(store.home, tmp_path / "backup")
    store.close()

    def cut(_: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(backup, "_set_aside", cut)
        with pytest.raises(KeyboardInterrupt):
            backup.restore(tmp_path / "backup", store.home, replace=True)
    with pytest.raises(HomeUnusable, match="restore was interrupted"):
        Store.open(store.home)
    backup.restore(tmp_path / "backup", store.home)
    with Store.open(store.home) as again:
        assert again.runs.get(run_id).name == "told"


# --------------------------------------------------------------------------------- check-up


UNREAL_MOVE = """
INSERT INTO transitions (run_id, attempt, old, new, cause, actor, at)
SELECT id, 1, 'running', 'cancelled', 'x', 'x', 0 FROM runs
"""


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            "UPDATE runs SET state='completed'",
            "is completed, but its last transition was to running",
        ),
        ("UPDATE runs SET attempt=2", "is at attempt 2, but has"),
        (UNREAL_MOVE, "has an invalid transition from running to cancelled"),
        (
            "DELETE FROM transitions WHERE new='starting'",
            "has a transition from starting to running while",
        ),
        ("UPDATE transitions SET attempt=7 WHERE new='running'", "of attempt 7, but 1 was"),
    ],
)
def test_illegal_history_is_found(store: Store, damage: str, message: str) -> None:
    run_id = recorded_run(store)
    with closing(sqlite3.connect(store.home / "lehr.db")) as connection:
        connection.execute(damage)
        connection.commit()
    findings = check(store.home)
    assert any(message in finding.message for finding in findings), findings
    assert {finding.where for finding in findings} == {f"run {run_id}"}


def test_lost_bytes_and_broken_files_are_found(store: Store) -> None:
    run_id = recorded_run(store)
    ingest(store, f"{run_id}-1", b"{broken\n", b'{"torn')
    notes = check(store.home)
    assert [finding.level for finding in notes] == ["note", "note"]
    (store.home / "replica" / f"{run_id}-1" / "rank-0.log").write_bytes(b"")
    (error,) = [finding for finding in check(store.home) if finding.level == "error"]
    assert "has 0 of the 11 bytes" in error.message
    store.close()
    path = store.home / "lehr.db"
    data = bytearray(path.read_bytes())
    for page in range(3, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xaa" * 64
    path.write_bytes(bytes(data))
    assert any(finding.where == "lehr.db" for finding in check(store.home))


def test_dated_backups_are_rotated_and_nothing_else_is_removed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backups"
    (folder / "20200101T000000Z").mkdir(parents=True)  # Not a complete backup: not touched.
    (folder / "mine").mkdir()
    removed = []
    for day in range(4):
        monkeypatch.setattr(time, "time", lambda day=day: 86_400.0 * day)
        made, old = backup.backup_and_rotate(store.home, folder, keep=2)
        removed += old
        assert backup.read_backup(made.folder).runs == made.runs
    assert [path.name for path in removed] == ["19700101T000000Z", "19700102T000000Z"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "19700103T000000Z",
        "19700104T000000Z",
        "20200101T000000Z",
        "mine",
    ]


def test_home_in_use_is_neither_restored_nor_rebuilt_by_another_process(
    store: Store, tmp_path: Path
) -> None:
    recorded_run(store)
    with pytest.raises(Exception, match="already open"):
        backup.rebuild(store.home)
