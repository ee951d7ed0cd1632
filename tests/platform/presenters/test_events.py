"""The messages of the records in a run's history."""

from __future__ import annotations

from pathlib import Path

from lehr.presenters.events import events
from lehr_testing.stores import begin, fresh_store, ingest, line, run_spec


def test_resumption_names_the_versions_that_changed_since_the_checkpoint(tmp_path: Path) -> None:
    with fresh_store(tmp_path / "home") as store:
        run = store.runs.create(run_spec())
        attempt = begin(store, run.id)
        same = {"step": 4, "checkpoint": "attempt-1/c"}
        other = {**same, "step": 8, "changed": ["torch 2.12 -> 2.13", "numpy 1 -> 2"]}
        ingest(store, attempt.id, line("resumed", **same), line("resumed", **other))
        messages = [event.message for event in events(store, run) if event.kind == "resumed"]
    assert messages == [
        "resumes from step 4 (attempt-1/c)",
        "resumes from step 8 (attempt-1/c); changed since then: torch 2.12 -> 2.13, numpy 1 -> 2",
    ]
