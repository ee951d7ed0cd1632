"""Idempotency keys are remembered for seven days, then removed."""

from __future__ import annotations

from pathlib import Path

from lehr.store import Store
from lehr_testing.stores import fresh_store

KEYS = "SELECT key FROM idempotency_keys ORDER BY rowid"
DAY = 24 * 3600.0


def keys(store: Store) -> list[str]:
    with store.db.read() as session:
        return [str(row[0]) for row in session.connection().exec_driver_sql(KEYS).all()]


def test_idempotency_keys_are_removed_after_seven_days_and_not_before(tmp_path: Path) -> None:
    now = [1e9]
    with fresh_store(tmp_path / "home", clock=lambda: now[0]) as store:
        old = [f"old-{n}" for n in range(5)]
        for key in old:
            store.idempotency.remember(key, "sha", 201, key)
        now[0] += 3 * DAY
        store.idempotency.remember("new", "sha", 201, "new")
        now[0] += 4 * DAY
        assert store.idempotency.expire() == 0
        assert keys(store) == [*old, "new"]
        now[0] += 1.0
        assert store.idempotency.expire() == 5
        assert keys(store) == ["new"]
        assert store.idempotency.answer("old-0", "sha") is None
        store.idempotency.remember("old-0", "other", 201, "again")
        assert keys(store) == ["new", "old-0"]
