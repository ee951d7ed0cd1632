"""Repetitions of a run with other seeds."""

from __future__ import annotations

import pytest

from lehr.analysis.compare import ComparedRun, compare, differences
from lehr.analysis.sweep_figure import sweep_figure
from lehr.analysis.sweep_result import sweep_fit
from lehr.app.services.archive import delete_run, set_run_archived
from lehr.app.services.compare import compare_runs
from lehr.app.services.context import Context, once
from lehr.app.services.extend import extend_sweep, repeat_run
from lehr.app.services.submit import launch_sweep, submit_run
from lehr.control.lifecycle import RunState
from lehr.errors import Conflict, UserError
from lehr.specs import RunSpec
from lehr.store.tables import RunRow, SweepRow
from lehr_testing import api
from lehr_testing.api import RUN_SPEC, SWEEP_SPEC, begin, end, ingest, line, metrics


def submitted(context: Context, **changes: object) -> RunRow:
    spec = {**RUN_SPEC, "tags": ["first"], **changes}
    made = once(context.store, None, submit_run(context, spec, {}, {}), status=201)
    return context.store.runs.get(made.body["id"])


def repeated(context: Context, run: RunRow, n: int = 3, key: str | None = None) -> list[RunRow]:
    operation = repeat_run(context, run, n=n, provenance={"host": "h"})
    made = once(context.store, key, operation, status=201)
    return context.store.sweeps.runs(made.body["id"])


def swept(context: Context, **changes: object) -> tuple[SweepRow, list[RunRow]]:
    operation = launch_sweep(context, {**SWEEP_SPEC, **changes}, {}, {})
    made = once(context.store, None, operation, status=201).body["id"]
    return context.store.sweeps.get(made), context.store.sweeps.runs(made)


def seeds(runs: list[RunRow]) -> list[int]:
    return [run.spec["train"]["seed"] for run in runs]


def test_repetitions_differ_in_the_seed_alone_and_compare_groups_them(context: Context) -> None:
    run = submitted(context)
    runs = repeated(context, run)
    assert [one.name for one in runs] == ["one-seeds-1", "one-seeds-2", "one-seeds-3"]
    assert {one.state for one in runs} == {"queued"}
    for one in runs:
        found = differences([run.spec, one.spec])
        assert [d.path for d in found if d.factor or d.path == "train.seed"] == ["train.seed"]
        assert one.tags == ["first"]
        assert context.store.runs.provenance(one)["seeds_of"] == {"run": run.id, "name": "one"}
    curves = [[(10.0, 3.0 + 0.1 * n)] for n in range(4)]
    compared = [
        ComparedRun(one.id, one.name, one.spec, curve)
        for one, curve in zip([run, *runs], curves, strict=True)
    ]
    [mean] = compare(compared).means
    assert mean.endswith("(mean of 4 seeds).")


def test_seeds_of_a_program_are_ranked_by_a_metric_that_it_logs(context: Context) -> None:
    program = {"module": "mine.train", "args": {"lr": 0.1, "seed": 0}}
    run = submitted(context, train=None, trainer=program)
    attempt = begin(context.store, run.id)
    ingest(context.store, attempt, line("started", device="cpu", total_steps=0) + metrics(1, 3))
    operation = repeat_run(context, run, n=2, provenance={})
    made = once(context.store, None, operation, status=201).body
    assert made["metric"] == "train/loss"
    assert [one["parameters"] for one in made["trials"]] == [
        {"trainer.args.seed": 1},
        {"trainer.args.seed": 2},
    ]


def test_each_request_takes_seeds_that_none_had(context: Context) -> None:
    run = submitted(context, train={**RUN_SPEC["train"], "seed": 2})
    assert seeds(repeated(context, run)) == [0, 1, 3]
    assert seeds(repeated(context, run, 2)) == [4, 5]


def trained(context: Context, run: RunRow, loss: float) -> None:
    attempt = begin(context.store, run.id)
    ingest(context.store, attempt, api.started() + api.evaluation(100, loss))
    end(context.store, run.id, RunState.COMPLETED)


def test_repetitions_count_for_the_rate_of_the_trial_that_they_repeat(context: Context) -> None:
    sweep, runs = swept(context, parameters={"train.optimizer.lr": {"values": [3e-4, 1e-3, 3e-3]}})
    for run, loss in zip(runs, [2.6, 2.2, 2.5], strict=True):
        trained(context, run, loss)
    first, failed, _ = more = repeated(context, runs[1])
    more += repeated(context, first, 1)
    assert seeds(more) == [1, 2, 3, 4]
    trained(context, first, 2.1)
    trained(context, more[3], 2.3)
    begin(context.store, failed.id)
    end(context.store, failed.id, RunState.FAILED)

    shown = context.presenter.sweeps.detail(sweep)
    [point] = [one for one in shown.points if one.rank == 1]
    assert point.run_ids == [runs[1].id, first.id, more[3].id]
    assert (shown.best_run_id, shown.best_value) == (runs[1].id, pytest.approx(2.2))
    assert [one.run.id for one in shown.repetitions] == [one.id for one in more]
    assert (sum(shown.counts.values()), shown.trials_total) == (3, 3)
    outline = context.presenter.sweeps.outline(sweep)
    fit = sweep_fit(outline, "train.optimizer.lr")
    assert fit.noise == pytest.approx(0.1)
    drawn = sweep_figure(
        outline
    ).points  # Also those that failed or wait, and the ring of the best.
    assert sum(list(points.x).count(1e-3) for points in drawn if points.texts) == 6


@pytest.mark.parametrize("n", [0, -1, 21])
def test_a_number_out_of_range_is_an_error(context: Context, n: int) -> None:
    run = submitted(context)
    with pytest.raises(UserError, match=f"n is {n}; it must be 1 to 20"):
        repeat_run(context, run, n=n, provenance={})


def test_archived_and_deleted_runs_are_refused(context: Context) -> None:
    run = submitted(context)
    begin(context.store, run.id)
    end(context.store, run.id, RunState.FAILED)
    set_run_archived(context, run, True)
    with pytest.raises(Conflict, match="is archived"):
        repeated(context, run)
    delete_run(context, context.store.runs.get(run.id))
    with pytest.raises(Conflict, match="was deleted"):
        repeated(context, run)
    assert context.store.sweeps.page().items == []


def test_a_fork_is_refused_and_its_origin_named(context: Context) -> None:
    run = submitted(context)
    fork = context.store.runs.create(
        RunSpec.model_validate({**run.spec, "name": "fork"}), forked_from=run.id, resume_from="/x"
    )
    with pytest.raises(Conflict, match="is a fork"):
        repeated(context, fork)


def test_a_seed_that_the_sweep_has_itself_counts_once(context: Context) -> None:
    sweep, trials = swept(context, seeds=[0, 1])
    repeated(context, trials[0], 2)
    added = {"train.seed": [2]}
    once(context.store, None, extend_sweep(context, sweep, parameters=added), status=200)
    found = context.store.sweeps.repetitions(context.store.sweeps.outlines(sweep.id))
    assert [one.parameters["train.seed"] for one in found] == [3]


def test_seeds_of_the_same_training_in_another_sweep_tell_the_noise(context: Context) -> None:
    def ended(losses: list[float], **changes: object) -> SweepRow:
        sweep, runs = swept(context, **changes)
        for run, loss in zip(runs, losses, strict=True):
            trained(context, run, loss)
        return sweep

    rate = {"train.optimizer.lr": {"values": [1e-3]}}
    ended([3.0, 3.1, 3.2], name="seeds", seeds=[0, 1, 2], parameters=rate)
    rates = {"train.optimizer.lr": {"values": [1e-3, 2e-3, 4e-3]}}
    same = ended([3.1, 3.0, 3.2], name="rates", parameters=rates)
    noise = context.presenter.sweeps.detail(same).noise_elsewhere
    assert (noise.deviation, noise.freedom) == (pytest.approx(0.1), 2)
    longer = {**SWEEP_SPEC["run"], "train": {**SWEEP_SPEC["run"]["train"], "steps": 99}}
    other = ended([3.1, 3.0, 3.2], name="other", parameters=rates, run=longer)
    assert context.presenter.sweeps.detail(other).noise_elsewhere is None


def test_runs_out_of_a_sweep_have_its_noise_where_it_compares_its_trials(context: Context) -> None:
    _, runs = swept(context, seeds=[0, 1])
    attempts = {run.id: begin(context.store, run.id) for run in runs}
    for run, loss in zip(runs, (3.0, 3.2, 2.0, 2.4, 5.0, 5.0), strict=True):
        ingest(context.store, attempts[run.id], metrics(49, 50) + api.evaluation(50, loss))
    pair = [runs[0].id, runs[2].id]
    found = compare_runs(context, pair, metric="val/loss", x_axis="step")
    assert (found.noise, found.noise_note) == (pytest.approx((0.1 / 3) ** 0.5), "from sweep grid")
    assert "(1 seed each; noise 0.18 between seeds, from sweep grid)" in found.gaps[0].sentence
    other = [pair[0], submitted(context).id]
    for ids, metric, x in ((pair, "train/loss", "step"), (pair, "", "time"), (other, "", "step")):
        assert compare_runs(context, ids, metric=metric, x_axis=x).noise is None
    for run_id in pair:  # They are compared there, and the sweep where half of its trials are.
        ingest(context.store, attempts[run_id], api.evaluation(60, 2.0))
    assert compare_runs(context, pair, metric="", x_axis="step").noise is None
