"""Scores: what evaluations report, in the curves of the runs that they evaluate."""

from __future__ import annotations

import json
from contextlib import suppress

from lehr.analysis.curve_files.names import metric_of
from lehr.control.evaluations import EvaluatedRun, Evaluates, EvaluationRun
from lehr.control.lifecycle import Desired, RunState
from lehr.errors import OffsetMismatch
from lehr.specs.evaluations import OF_TASKS
from lehr.specs.run import RunSpec
from lehr.store.ids import attempt_id
from lehr.store.store import Store
from lehr.store.streams.replica import SCORES
from lehr_trainer.contract.records import Evaluation, Metrics

_OF_PROCESS = ("system/", "step_time_s", "tokens_per_s")


def evaluated_run(store: Store, run_id: str) -> EvaluatedRun:
    """Read what decides on a run's evaluations."""
    run, own, parse = store.runs.get(run_id), store.runs.evaluations(run_id), Evaluates.parse
    return EvaluatedRun(
        run_id,
        RunSpec.model_validate(run.spec),
        RunState(run.state),
        Desired(run.desired),
        run.archived,
        store.checkpoints.of_run(run_id),
        [EvaluationRun(e.id, parse(e.evaluates or ""), RunState(e.state)) for e in own],
    )


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
    record: Metrics | Evaluation
    record = Metrics(time=saved[0], step=of.step, tokens=tokens, values=values)
    if of.name == OF_TASKS:  # What a training records of them.
        made = [one.record for one in store.events.records(run_id, {"evaluation"})]
        tasks = {n: d for one in made if isinstance(one, Evaluation) for n, d in one.tasks.items()}
        record = Evaluation(**record.model_dump(exclude={"kind"}), tasks=tasks)
    line = json.dumps({**record.model_dump(mode="json"), "evaluation": run_id})
    add_score(store, attempt_id(of.run_id, of.attempt), line, mark=f'"evaluation": "{run_id}"')


def add_score(store: Store, attempt_id: str, line: str, mark: str) -> None:
    """Append a record to the scores of an attempt, unless ``mark`` is in them already."""
    streams = store.streams
    while True:
        size = streams.sizes(attempt_id).get(SCORES, 0)
        if size and mark.encode() in streams.read(attempt_id, SCORES, limit=size):
            return
        with suppress(OffsetMismatch):  # Another evaluation came first.
            streams.append(attempt_id, SCORES, size, f"{line}\n".encode())
            return
