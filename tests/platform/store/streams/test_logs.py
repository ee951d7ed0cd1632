"""Logs: any range, the last lines and a search, in complete characters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr.errors import NotFound, UserError
from lehr.store import Store
from lehr.store.streams import logs
from lehr_testing.stores import ingest, new_attempt, next_attempt

TEXT = st.text(st.sampled_from("aß€😀\n\r x"), max_size=200)


def reader(data: bytes) -> logs.ReadBytes:
    return lambda offset, limit: data[offset : offset + limit]


@given(text=TEXT, limit=st.integers(4, 60))
@settings(deadline=None)
def test_chunks_of_any_size_join_to_the_full_text(text: str, limit: int) -> None:
    data = text.encode()
    parts, offset = [], 0
    while offset < len(data):
        piece = data[offset : offset + limit]
        begin_at, part, end = logs.text_of(piece, offset, whole=offset + limit >= len(data))
        assert begin_at == offset
        parts.append(part)
        assert end > offset
        offset = end
    assert "".join(parts) == text


@given(text=TEXT, offset=st.integers(0, 60))
@settings(deadline=None)
def test_range_that_starts_within_a_character_starts_after_it(text: str, offset: int) -> None:
    data = text.encode()
    begin_at, part, _ = logs.text_of(data[offset:], offset, whole=True)
    assert data[begin_at:].decode() == part
    assert begin_at - min(offset, len(data)) < 4 or offset > len(data)


@given(text=TEXT, lines=st.integers(0, 30))
@settings(deadline=None)
def test_the_tail_is_the_last_lines(text: str, lines: int) -> None:
    data = text.encode()
    expected = data.splitlines(keepends=True) if b"\r" not in data else None
    if expected is None:
        expected = [part + b"\n" for part in data.split(b"\n")]
        expected[-1] = expected[-1][:-1]
        expected = [part for part in expected if part]
    start = logs.tail_start(reader(data), len(data), lines)
    assert data[start:] == b"".join(expected[len(expected) - min(lines, len(expected)) :])


@given(text=TEXT, wanted=st.text(st.sampled_from("aß x"), min_size=1, max_size=2))
@settings(deadline=None)
def test_search_finds_matching_lines(text: str, wanted: str) -> None:
    data = text.encode()
    expected = [line.rstrip("\r") for line in text.split("\n") if wanted.encode() in line.encode()]
    found = logs.search(reader(data), len(data), wanted, offset=0, limit=1000)
    assert [match.text for match in found] == expected
    for match in found:
        assert data[match.offset :].decode().startswith(match.text)
    assert logs.search(reader(data), len(data), wanted, offset=0, limit=1) == found[:1]


def test_search_finds_matches_across_chunk_boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_SEARCH_STRIDE", 7)
    text = "one two\nthree NEEDLE four\nfive\nneedle\n" + "z" * 100 + "needle"
    data = text.encode()
    found = logs.search(reader(data), len(data), "needle", offset=0, limit=10)
    assert [match.offset for match in found[:2]] == [8, 31]
    assert len(found) == 3


def test_search_stops_between_pieces_once_nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_SEARCH_STRIDE", 7)
    data, read = b"needle\n" * 10, []

    def piece(offset: int, limit: int) -> bytes:
        read.append(offset)
        return data[offset : offset + limit]

    found = logs.search(
        piece, len(data), "needle", offset=0, limit=10, stopped=lambda: len(read) == 3
    )
    assert read == [0, 7, 14]
    assert [match.offset for match in found] == [0, 7, 14]


def test_a_growing_log_is_followed_without_cutting_a_character(store: Store) -> None:
    attempt = new_attempt(store)
    data = "grüße 😀\n".encode()
    shown, offset = "", 0
    for byte in data:
        ingest(store, attempt.id, bytes([byte]), name="rank-0.log")
        chunk = store.logs.read(attempt.id, "rank-0.log", offset)
        assert not chunk.ended
        shown, offset = shown + chunk.text, chunk.next_offset
    assert (shown, offset) == (data.decode(), len(data))


def test_logs_are_listed_by_attempt_and_rank(store: Store) -> None:
    first = new_attempt(store)
    for name in ("rank-10.log", "launcher.log", "rank-2.log", "events.jsonl"):
        ingest(store, first.id, b"x\n", name=name)
    second = next_attempt(store, first.run_id)
    ingest(store, second.id, b"x\n", name="rank-0.log")
    assert [(log.attempt, log.name) for log in store.logs.of_run(first.run_id)] == [
        (2, "rank-0.log"),
        (1, "rank-2.log"),
        (1, "rank-10.log"),
        (1, "launcher.log"),
    ]


def test_unknown_stream_gets_a_suggestion(store: Store) -> None:
    attempt = new_attempt(store)
    with pytest.raises(NotFound, match="none yet"):
        store.logs.read(attempt.id, "rank-0.log")
    ingest(store, attempt.id, b"x\n", name="rank-0.log")
    with pytest.raises(NotFound, match=r"Did you mean rank-0\.log"):
        store.logs.read(attempt.id, "rank-o.log")


def test_invalid_ranges_are_named(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, b"x\n", name="rank-0.log")
    with pytest.raises(UserError, match="offset is -1"):
        store.logs.read(attempt.id, "rank-0.log", -1)
    with pytest.raises(UserError, match="limit is 0"):
        store.logs.read(attempt.id, "rank-0.log", 0, 0)
    with pytest.raises(UserError, match="tail is -3"):
        store.logs.tail(attempt.id, "rank-0.log", -3)
    with pytest.raises(UserError, match="is empty"):
        store.logs.search(attempt.id, "rank-0.log", "")
    beyond = store.logs.read(attempt.id, "rank-0.log", 99)
    assert (beyond.text, beyond.next_offset) == ("", 99)
