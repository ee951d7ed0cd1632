"""Streams by offset: every byte is stored once, despite repeated sends and crashes."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lehr.errors import NotFound, OffsetMismatch, StoreUnavailable, UserError
from lehr.store import Change, Store
from lehr.store.streams import compaction, index, indexer
from lehr_testing.properties import examples
from lehr_testing.stores import (
    begin,
    begin_append,
    crashed_copy,
    fresh_store,
    ingest,
    line,
    memory_folder,
    metrics,
    new_attempt,
    next_attempt,
    picture,
    run_spec,
    same,
)
from lehr_trainer.contract.records import Evaluation, Started

SLOW = settings(
    max_examples=examples(25),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def replica(store: Store, attempt_id: str, name: str = "events.jsonl") -> bytes:
    return (store.home / "replica" / attempt_id / name).read_bytes()


def test_stored_bytes_are_read_back_unchanged(store: Store) -> None:
    attempt = new_attempt(store)
    assert store.streams.append(attempt.id, "rank-0.log", 0, b"\xff\x00abc") == 5
    assert store.streams.append(attempt.id, "rank-0.log", 5, b"def") == 8
    assert store.streams.read(attempt.id, "rank-0.log") == b"\xff\x00abcdef"
    assert store.streams.read(attempt.id, "rank-0.log", 3, 2) == b"bc"
    assert store.streams.read(attempt.id, "rank-0.log", 8) == b""
    assert replica(store, attempt.id, "rank-0.log") == b"\xff\x00abcdef"
    assert store.streams.sizes(attempt.id) == {"rank-0.log": 8}


@pytest.mark.parametrize("offset", [0, 3, 7, 100])
def test_wrong_offset_is_rejected_with_the_expected_one(store: Store, offset: int) -> None:
    attempt = new_attempt(store)
    store.streams.append(attempt.id, "rank-0.log", 0, b"12345")
    with pytest.raises(OffsetMismatch) as mismatch:
        store.streams.append(attempt.id, "rank-0.log", offset, b"12345")
    assert mismatch.value.expected == 5
    assert replica(store, attempt.id, "rank-0.log") == b"12345"


def test_incomplete_line_is_indexed_when_it_is_complete(store: Store) -> None:
    attempt = new_attempt(store)
    whole = metrics(1, train_loss=5.0) + metrics(2, train_loss=4.0)
    ingest(store, attempt.id, whole[:-10])
    assert store.series.read(attempt.run_id, "train/loss").y == [5.0]
    ingest(store, attempt.id, whole[-10:-1])
    assert store.series.read(attempt.run_id, "train/loss").y == [5.0]
    ingest(store, attempt.id, whole[-1:])
    assert store.series.read(attempt.run_id, "train/loss").y == [5.0, 4.0]


MALFORMED = [
    b"not json\n",
    b"\n",
    b"[1, 2]\n",
    b'{"kind": "metrics"}\n',
    b'{"kind": 3, "time": 1.0}\n',
    b'{"kind": "notice", "time": "soon"}\n',
    b'{"kind": "metrics", "time": 1.0, "step": -1, "tokens": 1, "values": {}}\n',
    b'{"kind": "metrics", "time": 1.0, "step": true, "tokens": 1, "values": {}}\n',
    b'{"kind": "metrics", "time": 1.0, "step": 1e3, "tokens": 1, "values": {}}\n',
    b'{"kind": "metrics", "time": 1.0, "step": 99999999999999999999, "values": {}}\n',
    b'{"kind": "metrics", "time": 1.0, "step": 7, "tokens": 1, "values": {"": 1.0}}\n',
    b'{"kind": "metrics", "time": 1.0, "step": 7, "tokens": 1, "values": {"a": null}}\n',
    b'{"kind": "metrics", "time": 1.0, "step": 7, "tokens": 1, "values": {"a": true}}\n',
    b'{"kind": "checkpoint", "time": 1.0, "step": 5}\n',
    b'{"kind": "evaluation", "time": 1.0, "step": -5, "tokens": 0, "values": {"v": 1}}\n',
    b'{"kind": "started", "time": NaN}\n',
    b"\xff\xfe\x00\n",
    b"[" * 100_000 + b"\n",
]


@pytest.mark.parametrize("bad", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_line_is_stored_counted_and_skipped(store: Store, bad: bytes) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, metrics(1, train_loss=5.0), bad, metrics(2, train_loss=4.0))
    assert store.series.read(attempt.run_id, "train/loss").y == [5.0, 4.0]
    (stream,) = store.streams.of_attempt(attempt.id)
    assert stream.malformed == 1
    assert bad in replica(store, attempt.id)
    assert store.events.records(attempt.run_id) == []


def test_valid_values_of_a_damaged_record_count(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, metrics(1, train_loss=5.0, train_lr=None), metrics(2, train_loss=4))
    assert store.series.read(attempt.run_id, "train/loss").y == [5.0, 4.0]
    assert [info.name for info in store.series.metrics(attempt.run_id)] == ["train/loss"]
    assert store.streams.of_attempt(attempt.id)[0].malformed == 1


def test_overlong_line_is_skipped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexer, "MAX_LINE", 1000)
    attempt = new_attempt(store)
    for _ in range(5):
        ingest(store, attempt.id, b"x" * 300)
    ingest(store, attempt.id, b"\n" + metrics(1, train_loss=5.0))
    assert store.streams.of_attempt(attempt.id)[0].malformed == 1
    assert store.series.read(attempt.run_id, "train/loss").y == [5.0]


def test_record_kinds_of_a_newer_trainer_are_stored_and_skipped(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, line("hologram", 1.0, shape="cat"), line("started", 2.0, news="yes"))
    assert [type(record) for _, record in store.events.records(attempt.run_id)] == [Started]
    assert store.streams.of_attempt(attempt.id)[0].malformed == 0


def test_records_are_ordered_by_attempt_and_can_be_filtered(store: Store) -> None:
    first = new_attempt(store)
    ingest(store, first.id, line("started", 1.0), line("notice", 2.0, phase="data", message="m"))
    second = next_attempt(store, first.run_id)
    ingest(store, second.id, line("started", 9.0))
    ingest(store, first.id, line("stopping", 3.0, step=3, reason="signal"))
    kinds = [(attempt, record.kind) for attempt, record in store.events.records(first.run_id)]
    assert kinds == [(1, "started"), (1, "notice"), (1, "stopping"), (2, "started")]
    some = store.events.records(first.run_id, ["started", "stopping"], after={1: 1})
    assert [(attempt, record.kind) for attempt, record in some] == [(1, "stopping"), (2, "started")]


def test_evaluation_is_stored_as_record_and_as_points(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(
        store,
        attempt.id,
        metrics(10, time=1.0, train_loss=5.0),
        line("evaluation", 2.0, step=10, tokens=1000, values={"val/loss": "NaN"}),
    )
    (found,) = store.events.records(attempt.run_id)
    assert isinstance(found.record, Evaluation)
    series = store.series.read(attempt.run_id, "val/loss", x_axis="tokens")
    assert (series.x, series.nonfinite) == ([1000.0], [10])


@pytest.mark.parametrize(
    "name",
    ["../events.jsonl", "a/b.log", "..", ".hidden", "", "a\0b", "x" * 101, "a..b", "ä.log", "a b"],
)
def test_stream_name_with_a_path_is_rejected(store: Store, name: str) -> None:
    attempt = new_attempt(store)
    with pytest.raises(UserError, match="not a stream's name"):
        store.streams.append(attempt.id, name, 0, b"x")
    with pytest.raises(UserError):
        store.streams.read(attempt.id, name)


@pytest.mark.parametrize("attempt_id", ["nosuchid-1", "../../etc", "x", "", "nosuchid-0"])
def test_an_attempt_that_does_not_exist_has_no_streams(store: Store, attempt_id: str) -> None:
    with pytest.raises(NotFound):
        store.streams.append(attempt_id, "events.jsonl", 0, b"x")
    assert list((store.home / "replica").iterdir()) == []


def test_a_replica_file_that_is_a_link_is_not_followed(store: Store, tmp_path: Path) -> None:
    attempt = new_attempt(store)
    folder = store.home / "replica" / attempt.id
    folder.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    (folder / "rank-0.log").symlink_to(tmp_path / "secret")
    with pytest.raises(StoreUnavailable):
        store.streams.append(attempt.id, "rank-0.log", 0, b"x")
    assert (tmp_path / "secret").read_bytes() == b"secret"


def test_log_over_its_limit_is_acknowledged_but_not_stored(tmp_path: Path) -> None:
    with fresh_store(tmp_path / "home", log_cap_bytes=10) as store:
        attempt = new_attempt(store)
        assert ingest(store, attempt.id, b"12345678", name="rank-0.log") == 8
        assert ingest(store, attempt.id, b"90abc", name="rank-0.log") == 13
        assert ingest(store, attempt.id, b"more", name="rank-0.log") == 17
        assert replica(store, attempt.id, "rank-0.log") == b"1234567890"
        (log,) = store.logs.of_run(attempt.run_id)
        assert (log.size_bytes, log.cut) == (10, True)
        assert "cut after 10 bytes" in store.logs.read(attempt.id, "rank-0.log").text
        # Events are never cut.
        events = b"".join(metrics(step, train_loss=1.0) for step in range(1, 20))
        ingest(store, attempt.id, events)
        assert replica(store, attempt.id) == events
        home = crashed_copy(store, tmp_path / "copy")
    with Store.open(home, log_cap_bytes=10) as again:
        assert again.streams.sizes(attempt.id)["rank-0.log"] == 17


def test_subscribers_are_notified_after_the_bytes_are_readable(store: Store) -> None:
    attempt = new_attempt(store)
    published: list[tuple[Change, object]] = []

    def listen(change: Change) -> None:
        if change.kind == "metrics":
            published.append((change, store.series.read(change.id, "train/loss").y))
        elif change.kind == "log":
            published.append((change, store.streams.read(f"{change.id}-1", change.name or "")))

    def broken(_: Change) -> None:
        raise ValueError("a listener's own fault")

    store.subscribe(broken)
    stop = store.subscribe(listen)
    ingest(store, attempt.id, metrics(1, train_loss=2.5))
    ingest(store, attempt.id, b"hello", name="rank-0.log")
    stop()
    ingest(store, attempt.id, metrics(2, train_loss=2.0))
    run_id = attempt.run_id
    assert published == [
        (Change("metrics", run_id, 1), [2.5]),
        (Change("log", run_id, 1, "rank-0.log", 5), b"hello"),
    ]


def test_many_senders_at_once_lose_nothing(store: Store) -> None:
    run_ids = [store.runs.create(run_spec(f"r{n}")).id for n in range(8)]
    attempts = [begin(store, run_id) for run_id in run_ids]
    failures: list[BaseException] = []

    def send(attempt_id: str) -> None:
        try:
            events, log = 0, 0
            for step in range(1, 41):
                data = metrics(step, train_loss=step / 7)
                assert store.streams.append(attempt_id, "events.jsonl", events, data) == (
                    events := events + len(data)
                )
                log = store.streams.append(attempt_id, "rank-0.log", log, f"{step}\n".encode())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=send, args=(attempt.id,)) for attempt in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    for attempt in attempts:
        series = store.series.read(attempt.run_id, "train/loss", exact=True)
        assert series.y == [step / 7 for step in range(1, 41)]
        assert replica(store, attempt.id, "rank-0.log") == b"".join(
            f"{step}\n".encode() for step in range(1, 41)
        )


def test_two_senders_of_one_stream_store_each_byte_once(store: Store) -> None:
    """Two shippers of one attempt (a restart that overlaps): both get to the end."""
    attempt = new_attempt(store)
    source = b"".join(metrics(step, train_loss=float(step)) for step in range(1, 201))
    barrier = threading.Barrier(4)

    def ship() -> None:
        barrier.wait()
        offset = 0
        while offset < len(source):
            try:
                offset = store.streams.append(
                    attempt.id, "events.jsonl", offset, source[offset : offset + 777]
                )
            except OffsetMismatch as mismatch:
                offset = mismatch.expected

    threads = [threading.Thread(target=ship) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert replica(store, attempt.id) == source
    assert store.series.read(attempt.run_id, "train/loss", exact=True).step == list(range(1, 201))


# ------------------------------------------------------------------ any cuts, retries, crashes

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


def test_index_of_another_version_is_rebuilt(tmp_path: Path) -> None:
    with fresh_store(tmp_path / "home") as store:
        attempt = new_attempt(store)
        ingest(store, attempt.id, metrics(1, train_loss=5.0))
    connection = index.open_writer(tmp_path / "home" / "streams.db")
    connection.execute("DELETE FROM metrics")
    connection.execute(f"PRAGMA user_version={index.VERSION + 1}")
    connection.close()
    with Store.open(tmp_path / "home") as store:
        assert store.series.read(attempt.run_id, "train/loss").y == [5.0]


def test_index_that_is_not_a_database_is_rebuilt(tmp_path: Path) -> None:
    with fresh_store(tmp_path / "home") as store:
        attempt = new_attempt(store)
        ingest(store, attempt.id, metrics(1, train_loss=5.0))
    (tmp_path / "home" / "streams.db").write_bytes(b"garbage " * 1000)
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


def test_truncation_of_a_senders_file_is_recorded(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, metrics(1, train_loss=5.0))
    store.streams.record_gap(attempt.id, "events.jsonl", 3)
    (gap,) = store.streams.gaps(attempt.id)
    assert (gap.name, gap.offset, gap.expected) == (
        "events.jsonl",
        3,
        len(metrics(1, train_loss=5.0)),
    )


@pytest.mark.parametrize("at_once", [1, 30, 60, 1000])
def test_rows_and_blocks_read_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """However few come at a time, and whether or not they were sealed into blocks."""
    monkeypatch.setattr(compaction, "BLOCK", 64)
    monkeypatch.setattr(compaction, "SMALL", 20)
    steps = [*range(1, 301), *range(310, 500, 7)]
    lines = [metrics(step, train_loss=step / 3 if step % 50 else "NaN") for step in steps]
    with fresh_store(tmp_path / "home") as store:
        attempt = new_attempt(store)
        for begin_at in range(0, len(lines), at_once):
            ingest(store, attempt.id, *lines[begin_at : begin_at + at_once])
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


def test_closed_store_raises_a_clear_error(tmp_path: Path) -> None:
    store = fresh_store(tmp_path / "home")
    attempt = new_attempt(store)
    store.close()
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        begin_append(store, attempt.id, "events.jsonl", 0, b"x")


def test_records_can_be_converted_to_json(store: Store) -> None:
    attempt = new_attempt(store)
    ingest(store, attempt.id, line("sample", 1.0, step=3, prompt="The meaning", text="ü\n42"))
    (found,) = store.events.records(attempt.run_id, ["sample"])
    assert json.loads(found.record.model_dump_json())["text"] == "ü\n42"
