"""Idempotency keys are remembered for seven days, then removed, a few at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.store import Store
from lehr.store.records import idempotency
from lehr_testing.stores import fresh_store

KEYS = "SELECT key FROM idempotency_keys ORDER BY rowid"
DAY = 24 * 3600.0


def keys(store: Store) -> list[str]:
    with store.db.read() as session:
        return [str(row[0]) for row in session.connection().exec_driver_sql(KEYS).all()]


@pytest.mark.parametrize("number", [5, 50])
def test_idempotency_keys_are_removed_after_seven_days_and_not_before(
    tmp_path: Path, number: int
) -> None:
    now = [1e9]
    with fresh_store(tmp_path / "home", clock=lambda: now[0]) as store:
        store.idempotency.elapsed = lambda: now[0]
        old = [f"old-{n}" for n in range(number)]
        for key in old:
            store.idempotency.remember(key, "sha", 201, key)
        now[0] += 3 * DAY
        store.idempotency.remember("new", "sha", 201, "new")
        now[0] += 4 * DAY
        assert store.idempotency.expire() == 0
        assert keys(store) == [*old, "new"]
        now[0] += 1.0
        assert store.idempotency.expire() == number
        assert keys(store) == ["new"]
        assert store.idempotency.answer("old-0", "sha") is None
        store.idempotency.remember("old-0", "other", 201, "again")
        assert keys(store) == ["new", "old-0"]


def test_clock_that_is_set_forward_removes_no_fresh_key(tmp_path: Path) -> None:
    now, elapsed = [1e9], [1e9]
    with fresh_store(tmp_path / "home", clock=lambda: now[0]) as store:
        store.idempotency.elapsed = lambda: elapsed[0]
        assert store.idempotency.expire() == 0
        store.idempotency.remember("fresh", "sha", 201, "made")
        for jump in (8 * DAY, 0.0, -8 * DAY, 8 * DAY):
            now[0] += jump
            assert store.idempotency.expire() == 0
        for _ in range(2):
            now[0] += 4 * DAY
            elapsed[0] += 4 * DAY
        assert store.idempotency.expire() == 1


def test_a_call_removes_a_limited_number_of_keys_in_small_transactions(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idempotency, "_BATCH", 2)
    monkeypatch.setattr(idempotency, "_BATCHES", 3)
    monkeypatch.setattr(idempotency, "KEPT_S", -1.0)
    for number in range(8):
        store.idempotency.remember(f"k{number}", "sha", 201, "made")
    commits: list[str] = []
    store.db._raw.set_trace_callback(
        lambda said: commits.append(said) if said == "COMMIT" else None
    )
    assert store.idempotency.expire() == 6
    assert (len(commits), keys(store)) == (3, ["k6", "k7"])
