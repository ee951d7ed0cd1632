"""The sweep that comes with Lehr: recorded whole, once, and labelled."""

from __future__ import annotations

import json
import lzma

import pytest
from sqlmodel import select

from lehr.errors import Conflict, StoreUnavailable
from lehr.specs.examples import LR_GRID_SMALL, RECORDED
from lehr.specs.load import load_spec
from lehr.store.recording import TABLES, add_recording
from lehr_testing.stores import fresh_store

PACKED = RECORDED.read_bytes()
RECORDING = json.loads(lzma.decompress(PACKED))


@pytest.fixture
def store(tmp_path):
    with fresh_store(tmp_path / "home") as opened:
        yield opened


def contents(store):
    """Return the rows and the streams of the recording as the store has them."""
    with store.db.read() as session:
        counts = {table.__tablename__: len(session.exec(select(table)).all()) for table in TABLES}
    streams = {
        attempt: {s.name: s.stored for s in store.streams.of_attempt(attempt)}
        for attempt in RECORDING["streams"]
    }
    return counts, streams


WHOLE = (
    {name: len(rows) for name, rows in RECORDING["rows"].items()},
    {
        attempt: {name: len(text.encode()) for name, text in streams.items()}
        for attempt, streams in RECORDING["streams"].items()
    },
)


def test_recorded_sweep_has_eight_complete_curves_and_says_that_it_is_recorded(store):
    sweep = store.sweeps.get(add_recording(store, PACKED))
    runs = store.sweeps.runs(sweep.id)
    assert [run.state for run in runs] == ["completed"] * 8
    for run in runs:
        curve = store.series.read(run.id, "train/loss", exact=True)
        assert list(curve.step) == list(range(1, 401))
        assert store.checkpoints.of_run(run.id) == []
    for row in (sweep, *runs):
        assert row.tags == ["recorded"]
        assert row.note.startswith("Recorded, not trained here: `lehr demo` trained it on 20")
    assert store.attempts.list_open() == []


def test_recorded_sweep_is_that_of_the_demo():
    """A change of the demo's spec needs a new recording: docs/generate/recording.py."""
    [sweep] = RECORDING["rows"]["sweeps"]
    recorded, wanted = load_spec(sweep["spec"]), load_spec(LR_GRID_SMALL)
    assert recorded.parameters == wanted.parameters
    assert recorded.run.train == wanted.run.train


def test_recording_names_no_folder_of_the_machine_that_made_it():
    text = json.dumps(RECORDING)
    assert [name for name in ("/tmp", "/home", "/root", ".venv") if name in text] == []
    assert len(PACKED) < 300_000


def test_interrupted_call_is_completed_by_the_next_and_a_third_changes_nothing(store, monkeypatch):
    append, left = store.streams.append, [3]

    def failing(*arguments):
        if not left[0]:
            raise StoreUnavailable("the disk is full")
        left[0] -= 1
        return append(*arguments)

    monkeypatch.setattr(store.streams, "append", failing)
    with pytest.raises(StoreUnavailable):
        add_recording(store, PACKED)
    assert contents(store) != WHOLE
    left[0] = 100
    for _ in range(2):
        add_recording(store, PACKED)
        assert contents(store) == WHOLE


def test_deleted_recording_is_not_recorded_again(store):
    sweep_id = add_recording(store, PACKED)
    run = store.sweeps.runs(sweep_id)[0]
    store.runs.mark_deleted(run.id, actor="user")
    with pytest.raises(Conflict, match=f"{sweep_id}. was deleted from this home"):
        add_recording(store, PACKED)
