"""The index has what the replica has, after any cuts, repeated sends, crashes and rebuilds."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lehr.errors import OffsetMismatch
from lehr.store import Store
from lehr.store.streams import index, points
from lehr.store.upkeep.integrity import check
from lehr_testing.properties import examples
from lehr_testing.stores import (
    crashed_copy,
    fresh_store,
    ingest,
    line,
    memory_folder,
    metrics,
    new_attempt,
    next_attempt,
    picture,
    replica,
    same,
)

SLOW = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


VALUES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(-(10**6), 10**6),
    st.sampled_from(["NaN", "Infinity", "-Infinity"]),
)


@st.composite
def stories(draw: st.DrawFn) -> bytes:
    """What a trainer might write, malformed lines and repeated steps included."""
    lines: list[bytes] = []
    step = 0
    for _ in range(draw(st.integers(1, 25))):
        what = draw(st.sampled_from(["step", "step", "step", "back", "evaluation", "other", "bad"]))
        if what in {"step", "back"}:
            step = step + 1 if what == "step" else draw(st.integers(0, max(step, 1)))
            names = draw(st.lists(st.sampled_from(["train/loss", "train/lr", "mfu"]), unique=True))
            values = {name: draw(VALUES) for name in names}
            lines.append(line("metrics", float(len(lines)), step=step, tokens=step, values=values))
        elif what == "evaluation":
            lines.append(
                line("evaluation", len(lines), step=step, tokens=step, values={"val/loss": 1.5})
            )
        elif what == "other":
            lines.append(line("notice", float(len(lines)), phase="x", message="grüße"))
        else:
            lines.append(b"{broken\n")
    return b"".join(lines)


@given(story=stories(), data=st.data())
@SLOW
def test_index_matches_the_file_after_any_cuts_retries_and_crashes(
    story: bytes, data: st.DataObject
) -> None:
    with memory_folder() as folder:
        with fresh_store(folder / "whole") as store:
            run_id = new_attempt(store).run_id
            ingest(store, f"{run_id}-1", story)
            expected = picture(store, run_id)
            shutil.copytree(store.home, folder / "home", ignore=shutil.ignore_patterns("lehr.lock"))
        shutil.rmtree(folder / "home" / "replica" / f"{run_id}-1")
        index.remove(folder / "home" / "streams.db")
        store, lives, offset = Store.open(folder / "home"), 0, 0
        while offset < len(story):
            what = data.draw(st.sampled_from(["send", "send", "send", "again", "crash", "torn"]))
            size = data.draw(st.integers(1, len(story)))
            chunk = story[offset : offset + size]
            if what == "send":
                offset = store.streams.append(f"{run_id}-1", "events.jsonl", offset, chunk)
            elif what == "again":
                late = data.draw(st.integers(0, offset))
                if late != offset:
                    with pytest.raises(OffsetMismatch) as mismatch:
                        store.streams.append(f"{run_id}-1", "events.jsonl", late, chunk)
                    assert mismatch.value.expected == offset
            else:
                lives += 1
                home = crashed_copy(store, folder / f"life-{lives}")
                store.close()
                if what == "torn":
                    # Written, but the process died before the index knew.
                    (home / "replica" / f"{run_id}-1").mkdir(parents=True, exist_ok=True)
                    file = home / "replica" / f"{run_id}-1" / "events.jsonl"
                    with file.open("ab") as stream:
                        stream.write(chunk)
                store = Store.open(home)
                offset = store.streams.sizes(f"{run_id}-1").get("events.jsonl", 0)
        with store:
            assert replica(store, f"{run_id}-1") == story
            assert same(picture(store, run_id), expected)
            assert not [one for one in check(store.home) if one.level == "error"]


@given(story=stories())
@SLOW
def test_rebuilt_index_is_the_same(story: bytes) -> None:
    with memory_folder() as folder:
        with fresh_store(folder / "home") as store:
            first = new_attempt(store)
            ingest(store, first.id, line("started"), story)
            second = next_attempt(store, first.run_id)
            ingest(store, second.id, line("resumed", step=3, checkpoint="attempt-1/x"), story)
            ingest(store, second.id, b"torn and no more", name="rank-0.log")
            expected = picture(store, first.run_id)
            home = crashed_copy(store, folder / "copy")
        index.remove(home / "streams.db")
        with Store.open(home) as store:
            assert same(picture(store, first.run_id), expected)


@pytest.mark.parametrize("found", ["another version", "no database"])
def test_index_that_this_version_cannot_read_is_rebuilt(tmp_path: Path, found: str) -> None:
    with fresh_store(tmp_path / "home") as store:
        attempt = new_attempt(store)
        ingest(store, attempt.id, metrics(1, train_loss=5.0))
    if found == "no database":
        (tmp_path / "home" / "streams.db").write_bytes(b"garbage " * 1000)
    else:
        connection = index.open_writer(tmp_path / "home" / "streams.db")
        connection.execute("DELETE FROM metrics")
        connection.execute(f"PRAGMA user_version={index.VERSION + 1}")
        connection.close()
    with Store.open(tmp_path / "home") as store:
        assert store.series.read(attempt.run_id, "train/loss").y == [5.0]


def test_truncated_file_is_indexed_again_and_the_gap_recorded(tmp_path: Path) -> None:
    with fresh_store(tmp_path / "home") as store:
        attempt = new_attempt(store)
        lines = [metrics(step, train_loss=float(step)) for step in (1, 2, 3)]
        ingest(store, attempt.id, *lines)
        ingest(store, attempt.id, b"some words", name="rank-0.log")
        home = crashed_copy(store, tmp_path / "copy")
    file = home / "replica" / attempt.id / "events.jsonl"
    file.write_bytes(b"".join(lines)[:-5])
    (home / "replica" / attempt.id / "rank-0.log").unlink()
    with Store.open(home) as store:
        assert store.series.read(attempt.run_id, "train/loss").y == [1.0, 2.0]
        assert [(gap.name, gap.offset, gap.expected) for gap in store.streams.gaps(attempt.id)] == [
            ("events.jsonl", len(b"".join(lines)) - 5, len(b"".join(lines))),
            ("rank-0.log", 0, 10),
        ]
        # A sender that is still there sends the rest again.
        ingest(store, attempt.id, b"".join(lines)[-5:])
        assert store.series.read(attempt.run_id, "train/loss").y == [1.0, 2.0, 3.0]


def test_nul_bytes_after_a_power_cut_are_dropped(tmp_path: Path) -> None:
    with fresh_store(tmp_path / "home") as store:
        attempt = new_attempt(store)
        ingest(store, attempt.id, metrics(1, train_loss=5.0))
        home = crashed_copy(store, tmp_path / "copy")
    more = metrics(2, train_loss=4.0)
    with (home / "replica" / attempt.id / "events.jsonl").open("ab") as stream:
        stream.write(more[:9] + b"\0" * 5000)
    with Store.open(home) as store:
        assert ingest(store, attempt.id, more[9:]) == len(metrics(1, train_loss=5.0) + more)
        assert store.series.read(attempt.run_id, "train/loss").y == [5.0, 4.0]
        assert store.streams.of_attempt(attempt.id)[0].malformed == 0


@pytest.mark.parametrize("at_once", [1, 30, 60, 1000])
def test_rows_and_blocks_read_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """However few come at a time, and whether or not they were sealed into blocks."""
    monkeypatch.setattr(points, "BLOCK", 64)
    monkeypatch.setattr(points, "SMALL", 20)
    monkeypatch.setattr(points, "ROWS", 10)
    steps = [*range(1, 321), *range(330, 500, 7)]
    lines = [metrics(step, train_loss=step / 3 if step % 50 else "NaN") for step in steps]
    with fresh_store(tmp_path / "home") as store:
        attempt = new_attempt(store)
        for begin_at in range(0, len(lines), at_once):
            ingest(store, attempt.id, *lines[begin_at : begin_at + at_once])
        store._appender.call(lambda indexer: indexer.seal_all()).result()
        with store.index.read() as connection:  # Of train/loss, tokens and time each.
            assert connection.execute("SELECT count(*) FROM metrics").fetchone()[0] < 3 * 10
        # A stray step, into what is sealed by now.
        ingest(store, attempt.id, metrics(5, train_loss=-1.0))
        before = store.series.read(attempt.run_id, "train/loss", exact=True)
        store._appender.call(lambda indexer: indexer.seal_all()).result()
        after = store.series.read(attempt.run_id, "train/loss", exact=True)
        with store.index.read() as connection:
            full, loose = connection.execute(
                # What comes at once is one block, which the idle thread may leave as it is.
                "SELECT (SELECT count(*) FROM blocks WHERE count >= 64),"
                " (SELECT max(loose) FROM latest)"
            ).fetchone()
        assert full >= 3  # Of train/loss, tokens and time each.
        assert loose < 64
        info = store.series.metrics(attempt.run_id)[0]
    expected = {step: step / 3 if step % 50 else float("nan") for step in steps} | {5: -1.0}
    for series in (before, after):
        assert series.step == list(expected)
        assert repr(series.y) == repr(list(expected.values()))
    assert (info.points, info.last_step, info.minimum) == (len(steps), steps[-1], -1.0)


def test_the_index_survives_reading_while_it_is_written(store: Store) -> None:
    """A reader sees whole commits only: never a step without the ones before it."""
    attempt = new_attempt(store)
    done = threading.Event()
    wrong: list[object] = []

    def read() -> None:
        while not done.is_set():
            if store.series.metrics(attempt.run_id):
                steps = store.series.read(attempt.run_id, "train/loss", exact=True).step
                if steps != list(range(1, len(steps) + 1)):
                    wrong.append(steps)

    thread = threading.Thread(target=read)
    thread.start()
    for step in range(1, 150):
        ingest(store, attempt.id, metrics(step, train_loss=1.0))
    done.set()
    thread.join()
    assert wrong == []
