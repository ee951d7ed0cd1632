"""Scores: what evaluations report, in the curves of the runs that they evaluate."""

from __future__ import annotations

import json

from lehr.analysis.curve_files.names import metric_of
from lehr.control.evaluations import Evaluates
from lehr.control.lifecycle import RunState
from lehr.store.ids import attempt_id
from lehr.store.store import Store
from lehr.store.streams.replica import SCORES
from lehr_trainer.contract.records import Metrics

_OF_PROCESS = ("system/", "step_time_s", "tokens_per_s")


def report_scores(store: Store, run_id: str, state: RunState | None = None) -> None:
    """Add the values of a completed evaluation to the curves of its run, once; else do nothing.

    They are a record in a stream of the attempt that saved the checkpoint, with the evaluation's
    id: what is there already is not written again. ``state``: that it is about to get.
    """
    run = store.runs.get(run_id)
    if run.evaluates is None or (state or run.state) != RunState.COMPLETED:
        return
    of = Evaluates.parse(run.evaluates)
    latest = store.series.latest([run_id])[run_id]
    # A supervisor also records what a name usually means.
    usual = {meant[0] for own in latest if (meant := metric_of(own)) and meant[0] != own}
    values = {
        own if own.startswith(f"{of.name}/") else f"{of.name}/{own}": one.value
        for own, one in latest.items()
        if own not in usual and not own.startswith(_OF_PROCESS)
    }
    points = store.checkpoints.of_run(of.run_id, removed=True)
    saved = [one.created_at for one in points if (one.attempt, one.step) == of[1:3]]
    if not values or not saved or store.runs.is_deleted(of.run_id):
        return
    tokens = store.runs.get(of.run_id).stored.tokens_at(of.step)
    record = Metrics(time=saved[0], step=of.step, tokens=tokens, values=values)
    line = json.dumps({**record.model_dump(mode="json"), "evaluation": run_id}).encode() + b"\n"
    name = attempt_id(of.run_id, of.attempt)
    size = store.streams.sizes(name).get(SCORES, 0)
    known = store.streams.read(name, SCORES, limit=size) if size else b""
    if f'"evaluation": "{run_id}"'.encode() not in known:
        store.streams.append(name, SCORES, size, line)
