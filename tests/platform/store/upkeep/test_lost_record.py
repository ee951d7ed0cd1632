"""A home whose lehr.db is lost: it is not started as if it were new."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.base import home as homes
from lehr.errors import HomeUnusable
from lehr.store import Store
from lehr.store.upkeep import lost_record


def without_record(store: Store) -> Path:
    """Close the store, and lose its record."""
    store.close()
    for name in ("lehr.db", "lehr.db-wal", "lehr.db-shm"):
        (store.home / name).unlink(missing_ok=True)
    return store.home


@pytest.mark.parametrize("left", ["replica", "runs", "node"])
@pytest.mark.parametrize("record", ["missing", "a file without bytes", "tables without a run"])
def test_empty_record_beside_files_of_runs_is_refused(
    store: Store, tmp_path: Path, left: str, record: str
) -> None:
    home = without_record(store)
    if record == "tables without a run":
        Store.open(tmp_path / "new").close()
        (tmp_path / "new/lehr.db").rename(home / "lehr.db")
    elif record == "a file without bytes":
        (home / "lehr.db").touch()
    folder = {
        "replica": home / "replica/k3f9x2ab-1",
        "runs": homes.runs_dir(home) / "k3f9x2ab/attempt-1",
        "node": home / "node/n1/attempts/k3f9x2ab-1",
    }[left]
    folder.mkdir(parents=True)
    before = (home / "lehr.db").read_bytes() if (home / "lehr.db").exists() else None
    with pytest.raises(HomeUnusable) as refused:
        Store.open(home)
    kind = "attempt" if left == "node" else "run"
    assert f"1 {kind} in {home / left}" in refused.value.message
    for command in ("lehr db rebuild", "lehr db restore"):
        assert command in (refused.value.hint or "")
    assert ((home / "lehr.db").read_bytes() if (home / "lehr.db").exists() else None) == before
    folder.rmdir()
    folder.parent.rmdir()
    Store.open(home).close()


def test_server_without_runs_starts_beside_a_folder_of_runs_that_servers_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEHR_RUNS", str(tmp_path / "shared"))
    (tmp_path / "shared/k3f9x2ab/attempt-1").mkdir(parents=True)
    for _ in range(2):
        Store.open(tmp_path / "home").close()
    assert not lost_record.is_lost(tmp_path / "home")
