"""What one attempt may store: streams, events, logs, metrics; and what is left for the database."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lehr.errors import StoreUnavailable
from lehr.store import Store
from lehr.store.streams import limits
from lehr_testing.stores import ingest, line, metrics, new_attempt

EVENTS = "events.jsonl"


def test_events_over_their_cap_are_confirmed_but_not_stored(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = new_attempt(store)
    first, second, third = (metrics(step, train_loss=2.0) for step in (1, 2, 3))
    size = ingest(store, attempt.id, first)
    monkeypatch.setattr(limits, "EVENTS_CAP", size + 1)
    assert store.streams.append(attempt.id, EVENTS, size, second) == size + len(second)
    end = size + len(second) + len(third)
    assert store.streams.append(attempt.id, EVENTS, size + len(second), third) == end
    # A short piece must not be stored after a gap.
    assert store.streams.append(attempt.id, EVENTS, end, b"\n") == end + 1
    [stream] = store.streams.of_attempt(attempt.id)
    assert (stream.size, stream.stored) == (end + 1, size)
    assert store.series.read(attempt.run_id, "train/loss").step == [1]
    [gap] = store.streams.gaps(attempt.id)
    assert (gap.offset, gap.expected) == (size, size + len(second))
    assert f"more than {size + 1:,} bytes" in gap.cause
    store.close()
    with Store.open(tmp_path / "home") as again:
        assert again.streams.sizes(attempt.id) == {EVENTS: end + 1}
        assert again.series.read(attempt.run_id, "train/loss").step == [1]


def test_media_have_a_limit_of_their_own(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MEDIA_CAP", 10)
    attempt = new_attempt(store)
    for name in ("media.bin", "rank-0.log"):
        assert ingest(store, attempt.id, b"x" * 16, name=name) == 16
    stored = {stream.name: stream.stored for stream in store.streams.of_attempt(attempt.id)}
    assert stored == {"media.bin": 10, "rank-0.log": 16}


def test_metrics_with_too_many_names_are_dropped_and_the_others_continue(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two of them are the axes: tokens and time.
    monkeypatch.setattr(limits, "MAX_METRICS", 5)
    attempt = new_attempt(store)

    def log(step: int, *names: str) -> None:
        ingest(
            store,
            attempt.id,
            line("metrics", step=step, tokens=step, values=dict.fromkeys(names, float(step))),
        )

    log(1, "a", "b")
    log(2, "a", "c", "d", "e")
    log(3, "a", "c", "f")
    names = {"a": [1, 2, 3], "b": [1], "c": [2, 3]}
    assert {name: store.series.read(attempt.run_id, name).step for name in names} == names
    found = store.index.read
    with found() as connection:
        assert {name for (name,) in connection.execute("SELECT name FROM names")} >= set(names)
        assert not connection.execute("SELECT 1 FROM names WHERE name IN ('d','e','f')").fetchall()
    [stream] = store.streams.of_attempt(attempt.id)
    assert stream.malformed == 3


def disk_with(monkeypatch: pytest.MonkeyPatch, folder: Path, *, mib: int, free: int) -> None:
    """Pretend that every disk has ``mib`` MiB, of which ``free`` bytes are free."""
    fields = list(os.statvfs(folder))
    fields[1], fields[2], fields[4] = 1, mib << 20, free  # f_frsize, f_blocks, f_bavail
    found = os.statvfs_result(fields)
    monkeypatch.setattr(os, "statvfs", lambda _: found)


@pytest.mark.parametrize(
    ("mib", "free", "enough"),
    [
        (1 << 20, 256 << 20, True),
        (1 << 20, (256 << 20) - 1, False),
        (100, 5 << 20, True),
        (100, (5 << 20) - 1, False),
    ],
)
def test_reserve_of_a_small_disk_is_a_share_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mib: int, free: int, enough: bool
) -> None:
    disk_with(monkeypatch, tmp_path, mib=mib, free=free)
    if enough:
        limits.require_room(tmp_path)
    else:
        with pytest.raises(StoreUnavailable):
            limits.require_room(tmp_path)


def test_all_logs_of_an_attempt_share_a_cap_and_small_ones_are_always_stored(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LOGS_CAP", 10)
    monkeypatch.setattr(limits, "SMALL_LOG", 3)
    attempt = new_attempt(store).id
    for name, data in (
        ("rank-0.log", b"0123456"),
        ("rank-1.log", b"0123456"),
        ("rank-2.log", b"012"),
    ):
        assert store.streams.append(attempt, name, 0, data) == len(data)
    store.streams.append(attempt, EVENTS, 0, metrics(1, train_loss=2.0))
    stored = {stream.name: stream.stored for stream in store.streams.of_attempt(attempt)}
    assert {name: size for name, size in stored.items() if name != EVENTS} == {
        "rank-0.log": 7,
        "rank-1.log": 3,
        "rank-2.log": 3,
    }
