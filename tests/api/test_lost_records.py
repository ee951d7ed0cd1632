"""What a run did and what is not on record is an alert, and a note of ``lehr db check``."""

from __future__ import annotations

import pytest

from lehr.base import home as homes
from lehr.control.lifecycle import RunState
from lehr.store.upkeep.integrity import check
from lehr_testing.api import begin, end, finished, ingest, line, metrics, started, submit


@pytest.mark.parametrize(
    ("logged", "resumed_at", "saved_at", "lost"),
    [
        (range(1, 150), 600, None, (150, 600)),
        (range(1, 150), 149, None, None),
        (range(10, 150, 10), 145, None, None),  # Every tenth step is logged.
        (range(10, 150, 10), 160, None, (141, 160)),
        (range(1, 150), 600, 600, None),  # It saved there, and logged nothing on the way.
    ],
)
def test_resume_above_the_last_step_on_record_raises_an_alert(
    api, logged, resumed_at, saved_at, lost
):
    api_, client = api
    store, run = api_.store, submit(client)["id"]
    data = started() + b"".join(metrics(step, step) for step in logged)
    path = f"attempt-1/checkpoints/step-{resumed_at:08d}"
    if saved_at:
        data += line("checkpoint", step=saved_at, path=path, size_bytes=1, digest="0" * 64)
    ingest(store, begin(store, run), data)
    end(store, run, RunState.QUEUED)
    resumed = line("resumed", step=resumed_at, checkpoint=path)
    second = begin(store, run, 2)
    ingest(store, second, started(2) + resumed + finished(resumed_at))
    alerts = client.get(f"/api/v1/runs/{run}/alerts").json()
    expected = [] if lost is None else [("lost_records", lost[0])]
    lost_records = [one for one in alerts if one["code"] == "lost_records"]
    assert [(one["code"], one["step"]) for one in lost_records] == expected
    notes = []
    if lost:
        notes.append((f"{run}-1", f"steps {lost[0]} to {lost[1]} are not on record"))
    if saved_at:
        folder = homes.runs_dir(store.home) / run
        (folder / "attempt-1").mkdir(parents=True)
        notes.append((f"run {run}", f"the checkpoint {path} is not in {folder}"))
    found = check(store.home)
    assert [(note.where, note.message) for note in found if note.level == "note"] == notes
