"""Acknowledged data survives a power cut: flushed to disk before the index, and both before the answer.

A killed process proves nothing here, since the page cache outlives it. So the calls are recorded
in their order.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lehr.store import Store
from lehr_testing.stores import begin_append, fresh_store, metrics, new_attempt, run_spec


class Recorder:
    """Record the calls that write to disk, in their order, by path relative to the home."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = home
        self.calls: list[tuple[str, str]] = []
        for name in ("pwrite", "write", "fdatasync", "fsync", "mkdir"):
            self._record(name, monkeypatch)

    def _record(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        real = getattr(os, name)

        def recorded(target, *args, **fields):
            done = real(target, *args, **fields)
            path = Path(f"/proc/self/fd/{target}").readlink() if isinstance(target, int) else target
            if Path(path).is_relative_to(self.home):
                self.calls.append((name, str(Path(path).relative_to(self.home))))
            return done

        monkeypatch.setattr(os, name, recorded)

    def follow(self, store: Store) -> None:
        """Also the commits of the index."""
        store._index_writer.set_trace_callback(
            lambda statement: self.calls.append(("commit", "")) if statement == "COMMIT" else None
        )

    def at(self, what: str, path: str = "") -> int:
        """Return the position of this call; the last one, if there are several."""
        return max(place for place, call in enumerate(self.calls) if call == (what, path))


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with fresh_store(tmp_path / "home") as store:
        recorder = Recorder(tmp_path / "home", monkeypatch)
        recorder.follow(store)
        yield store, recorder


def append(store: Store, recorder: Recorder, attempt: str, name: str, data: bytes) -> None:
    offset = store.streams.sizes(attempt).get(name, 0)
    answer = begin_append(store, attempt, name, offset, data)
    answer.add_done_callback(lambda _: recorder.calls.append(("answer", f"{attempt}/{name}")))
    answer.result()


def test_new_stream_is_flushed_before_the_commit_and_the_answer(recorded) -> None:
    store, recorder = recorded
    attempt = new_attempt(store).id
    append(store, recorder, attempt, "events.jsonl", metrics(1, train_loss=1.0))
    path = f"replica/{attempt}/events.jsonl"
    assert (
        recorder.at("pwrite", path)
        < recorder.at("fdatasync", path)
        < recorder.at("commit")
        < recorder.at("answer", f"{attempt}/events.jsonl")
    )
    # The file's name is in its folder, and the folder's in the replica's.
    for folder in (f"replica/{attempt}", "replica"):
        assert recorder.at("fsync", folder) < recorder.at("commit")
    assert recorder.at("mkdir", f"replica/{attempt}") < recorder.at("fsync", "replica")


def test_group_of_appends_is_flushed_before_any_answer(recorded) -> None:
    store, recorder = recorded
    attempts = [new_attempt(store, name).id for name in "abc"]
    hold, held = threading.Event(), threading.Event()

    def wait(_indexer) -> None:
        held.set()
        hold.wait(20)

    waiting = store._appender.call(wait)
    assert held.wait(20)
    recorder.calls.clear()
    answers = []
    for attempt in attempts:
        answer = begin_append(store, attempt, "rank-0.log", 0, b"hello\n")
        answer.add_done_callback(lambda _: recorder.calls.append(("answer", "")))
        answers.append(answer)
    hold.set()
    waiting.result()
    assert [answer.result() for answer in answers] == [6, 6, 6]
    what = [name for name, _ in recorder.calls]
    # They came while the appender was busy, so they are one group: one commit.
    assert what.count("commit") == 1
    assert what.index("commit") < what.index("answer")
    for attempt in attempts:
        flushed = recorder.at("fdatasync", f"replica/{attempt}/rank-0.log")
        assert flushed < recorder.at("commit")


def test_bytes_that_a_killed_server_left_are_flushed_before_they_count(
    recorded, tmp_path: Path
) -> None:
    """It was killed after the write and before the flush: the page cache has the bytes."""
    store, recorder = recorded
    attempt = new_attempt(store).id
    store.close()
    folder = tmp_path / "home" / "replica" / attempt
    folder.mkdir()
    (folder / "rank-0.log").write_bytes(b"one\n")
    recorder.calls.clear()
    with Store.open(tmp_path / "home") as again:
        assert again.streams.sizes(attempt) == {"rank-0.log": 4}
    assert [call for call in recorder.calls if call[1].startswith("replica")] == [
        ("fdatasync", f"replica/{attempt}/rank-0.log"),
        ("fsync", f"replica/{attempt}"),
        ("fsync", "replica"),
    ]


def test_bytes_that_cannot_be_flushed_at_the_start_do_not_count(
    recorded, tmp_path: Path, monkeypatch
) -> None:
    store, _ = recorded
    attempt, other = new_attempt(store).id, new_attempt(store, "b").id
    store.close()
    replica = tmp_path / "home" / "replica"
    for one in (attempt, other):
        (replica / one).mkdir()
        (replica / one / "rank-0.log").write_bytes(b"one\n")
    broken = replica / attempt / "rank-0.log"
    flush = os.fdatasync

    def refuse(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").resolve() == broken:
            raise OSError(5, "Input/output error")
        flush(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        with Store.open(tmp_path / "home") as again:
            assert again.streams.sizes(attempt) == {}
            assert again.streams.sizes(other) == {"rank-0.log": 4}
            assert again.streams.gaps(attempt) == []
    with Store.open(tmp_path / "home") as again:
        assert again.streams.append(attempt, "rank-0.log", 4, b"two\n") == 8


def test_file_that_cannot_be_flushed_fails_only_its_own_append(recorded, monkeypatch) -> None:
    """Also when files of a group are flushed at the same time."""
    store, _ = recorded
    attempts = [new_attempt(store, name).id for name in "abcdef"]
    broken = store.home / "replica" / attempts[2] / "rank-0.log"
    flush, flushing = os.fdatasync, threading.Semaphore(0)

    def refuse(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        if path == broken:
            flushing.release(10)
            raise OSError(5, "Input/output error")
        if path.name == "rank-0.log":
            flushing.acquire(timeout=20)  # The others go on after the error.
        flush(descriptor)

    hold = threading.Event()
    waiting = store._appender.call(lambda _: hold.wait(20))
    ends = [begin_append(store, attempt, "rank-0.log", 0, b"one\n") for attempt in attempts]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", refuse)
        hold.set()
        waiting.result()
        errors = [end.exception(timeout=60) for end in ends]
    assert [error is None for error in errors] == [True, True, False, True, True, True]
    assert "Input/output error" in str(errors[2])


FULL, NORMAL = 2, 1


def test_all_commits_are_flushed_except_those_that_may_be_lost(recorded) -> None:
    """SQLite flushes its log at each commit while ``synchronous`` is FULL, and not with NORMAL."""
    store, _ = recorded
    levels: list[int] = []

    def note(statement: str) -> None:
        if statement == "COMMIT":
            levels.append(raw.execute("PRAGMA synchronous").fetchone()[0])

    raw = store.db._raw
    attempt = new_attempt(store)
    raw.set_trace_callback(note)
    store.runs.create(run_spec("another"))
    assert levels == [FULL]
    store.attempts.record_heartbeats({attempt.id: (1.0, 1)})
    assert levels == [FULL, NORMAL]
    store.attempts.update(attempt.id, exited_at=1.0)
    assert levels == [FULL, NORMAL, FULL]
    raw.set_trace_callback(None)
    assert store._index_writer.execute("PRAGMA synchronous").fetchone()[0] == FULL
