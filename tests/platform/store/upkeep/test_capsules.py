"""Capsules in backups, restores and check-ups of a home."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lehr.code.archive import SourceFile
from lehr.code.capsule_store import CapsuleStore
from lehr.control.lifecycle import RunState
from lehr.store import Store
from lehr.store.upkeep import backup
from lehr.store.upkeep.integrity import check
from lehr_testing.stores import run_spec


def capsule(home: Path, text: str) -> str:
    path = home / "source.py"
    path.write_text(text)
    digest = CapsuleStore(home).make([SourceFile("project/train.py", str(path), 0o644)])
    path.unlink()
    return digest


def recorded(store: Store, name: str, digest: str) -> str:
    return store.runs.create(run_spec(name, code={"digest": digest})).id


def errors(home: Path) -> list[str]:
    return [f"{one.where}: {one.message}" for one in check(home) if one.level == "error"]


def test_backup_has_the_capsules_of_its_runs_and_a_restore_brings_them_back(
    store: Store, tmp_path: Path
) -> None:
    mine, unused = capsule(store.home, "a = 1"), capsule(store.home, "b = 2")
    recorded(store, "one", mine)
    made = backup.backup(store.home, tmp_path / "backup")
    assert f"capsules/{mine}.tar" in made.files
    assert f"capsules/{unused}.tar" not in made.files
    assert made.missing == ()
    put = backup.restore(tmp_path / "backup", tmp_path / "other")
    assert put.missing == ()
    assert CapsuleStore(tmp_path / "other").digests() == [mine]
    assert errors(tmp_path / "other") == []
    assert not (tmp_path / "other/.restoring").exists()


def test_missing_capsule_is_named_with_its_runs_by_backup_restore_and_check(
    store: Store, tmp_path: Path
) -> None:
    digest = capsule(store.home, "a = 1")
    ids = [recorded(store, f"r{n}", digest) for n in range(5)]
    CapsuleStore(store.home).path(digest).unlink()
    text = f"capsule {digest[:12]} is missing; run {ids[0]}, run {ids[1]}, run {ids[2]} and 2 more"
    made = backup.backup(store.home, tmp_path / "backup")
    assert made.missing == (f"{text} need it",)
    assert backup.restore(tmp_path / "backup", tmp_path / "other").missing == made.missing
    assert errors(store.home) == [f"code: {text} need it"]


def test_damaged_capsule_is_found_and_that_of_a_deleted_run_is_not_needed(store: Store) -> None:
    digest, gone = capsule(store.home, "a = 1"), capsule(store.home, "b = 2")
    recorded(store, "one", digest)
    run_id = recorded(store, "two", gone)
    assert errors(store.home) == []
    store.transitions.apply(
        run_id,
        old=RunState.QUEUED,
        new=RunState.CANCELLED,
        attempt=0,
        cause="cancel",
        message=None,
        actor="ada",
    )
    store.runs.mark_deleted(run_id)
    CapsuleStore(store.home).path(gone).unlink()
    with CapsuleStore(store.home).path(digest).open("ab") as file:
        file.write(b"x")
    assert errors(store.home) == [f"code: capsule {digest[:12]} does not match its digest"]


def test_capsules_that_no_run_needs_are_removed_from_time_to_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    used, new, old = (capsule(store.home, f"a = {n}") for n in range(3))
    recorded(store, "one", used)
    for digest in (used, old):
        os.utime(CapsuleStore(store.home).path(digest), (0, 0))
    queued = threading.Event()
    store._appender.call(lambda _: queued.wait(20))
    store._appender._rest_at = 0.0
    seen = store._appender.call(lambda _: CapsuleStore(store.home).digests())
    queued.set()
    assert seen.result() == sorted([used, new])
