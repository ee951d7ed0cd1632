"""Many runs side by side: their values, groups and curves."""

from __future__ import annotations

import pytest

from lehr.app.presenters.streams import flops_per_token
from lehr.app.services.compare import compare_runs, values_of_runs
from lehr.app.services.context import Context
from lehr.app.services.many_runs import curves_of_runs
from lehr.errors import NotFound, UserError
from lehr.specs.sweep import Metric
from lehr_testing import seeding, stores
from lehr_trainer.contract.records import Metrics


def test_configs_are_parted_into_what_is_the_same_and_what_differs(context: Context):
    first = context.store.runs.create(seeding.run_spec("first", lr=1e-3))
    second = context.store.runs.create(seeding.run_spec("second", lr=3e-3, tags=["x"]))
    found = values_of_runs(context, [first.id, "second", first.id])
    assert found.runs == [first.id, second.id]
    assert found.differing["train.optimizer.lr"] == [1e-3, 3e-3]
    assert not {"name", "tags"} & (found.differing.keys() | found.same.keys())
    assert found.same["train.steps"] == seeding.STEPS
    assert not found.differing.keys() & found.same.keys()


def test_config_that_programs_logged_counts_as_their_arguments(context: Context):
    """Except for names that change no loss, and where they are compared, those that some lack."""
    for name, rate, more in (("first", 1e-3, {"width": 8}), ("second", 3e-3, {})):
        program = {"trainer": {"script": "train.py", "args": {"seed": 1}}, "train": None}
        run = context.store.runs.create(stores.run_spec(name, **program))
        logged = {"lr": rate, "seed": 2, "output_dir": name, **more}  # Of depth: no change.
        attempt = stores.begin(context.store, run.id)
        old, new = (
            stores.line("config", values={"lr": 0, "depth": 2}),
            stores.line("config", values=logged),
        )
        stores.ingest(context.store, attempt.id, old, new, stores.metrics(1, val_loss=2.0))
    found = values_of_runs(context, ["first", "second"])
    paths = ("trainer.args.lr", "trainer.args.width")
    assert [found.differing[path] for path in paths] == [[1e-3, 3e-3], [8, None]]
    assert found.same["trainer.args.depth"] == 2
    assert (found.same["trainer.args.seed"], "trainer.args.output_dir" in found.differing) == (
        1,
        False,
    )
    compared = compare_runs(context, ["first", "second"], metric="", x_axis="step", by="lr")
    assert [(one.path, one.factor) for one in compared.differences] == [
        ("name", False),
        ("trainer.args.lr", True),
    ]
    assert [group.count for group in compared.groups] == [1, 1]
    assert compared.common_x == 1
    assert compare_runs(context, ["first", "second"], metric="", x_axis="tokens").common_x is None


def test_newest_values_of_any_metric_are_returned(context: Context):
    run = context.store.runs.create(seeding.run_spec("trained"))
    waiting = context.store.runs.create(seeding.run_spec("waiting"))
    seeding.start(context.store, run).train(range(1, 6))
    found = values_of_runs(context, [run.id, waiting.id], ["data/epoch", "no/such"])
    assert found.metrics == {"data/epoch": [5 / 12_000, None], "no/such": [None, None]}
    by_metric = values_of_runs(context, [run.id, waiting.id], by="data/epoch<1, project")
    assert by_metric.groups == ["data/epoch below 1 · default", "no data/epoch · default"]
    assert values_of_runs(context, [run.id], by="data/epoch", configs=False).same == {}
    with pytest.raises(NotFound, match="none of these runs has a config path or a metric 'epocs'"):
        values_of_runs(context, [run.id], by="epocs")


def test_an_unknown_run_is_named(context: Context):
    with pytest.raises(NotFound, match="nosuch"):
        values_of_runs(context, ["nosuch"])


def test_config_that_programs_logged_parts_no_seeds(context: Context):
    for seed, name in enumerate(("first", "second")):
        program = {"trainer": {"script": "train.py", "args": {"seed": seed}}, "train": None}
        run = context.store.runs.create(stores.run_spec(name, **program))
        attempt = stores.begin(context.store, run.id)
        logged = stores.line("config", values={"host": name})
        stores.ingest(context.store, attempt.id, logged, stores.metrics(1, val_loss=2.0 + seed))
    compared = compare_runs(context, ["first", "second"], metric="val/loss", x_axis="step", by="")
    assert compared.noise == pytest.approx(0.5**0.5)
    assert "trainer.args.host" in {one.path for one in compared.differences if one.factor}


@pytest.fixture
def two(context: Context) -> list[str]:
    runs = [context.store.runs.create(seeding.run_spec(name)) for name in ("short", "long")]
    for run, steps in zip(runs, (5, 40), strict=True):
        seeding.start(context.store, run).train(range(1, steps + 1))
    return [run.id for run in runs]


def test_one_begin_counts_for_all_runs_or_each_has_its_own(context: Context, two: list[str]):
    def steps(*firsts: float) -> list[list[int]]:
        found = curves_of_runs(context.store, two, ["train/loss"], firsts=firsts)
        return [one.step for one in found]

    assert steps(4) == [[4, 5], list(range(4, 41))]
    assert steps(4, 39) == [[4, 5], [39, 40]]
    assert steps() == [list(range(1, 6)), list(range(1, 41))]


def test_curves_come_by_run_and_metric_and_missing_metrics_are_left_out(
    context: Context, two: list[str]
):
    found = curves_of_runs(context.store, two[::-1], ["train/lr", "no/such", "train/loss"])
    assert [(one.run_id, one.name) for one in found] == [
        (run, name) for run in two[::-1] for name in ("train/lr", "train/loss")
    ]


def test_refs_with_commas_are_the_mean_of_their_runs(context: Context, two: list[str]):
    short, long = two
    asked = [f"{short},{long},{short}", long, f"{long},{short}"]
    found = curves_of_runs(context.store, asked, ["train/loss"], firsts=[4, 39, 39], digits=6)
    assert [(one.run_id, one.members) for one in found] == [(short, 2), (long, 1), (long, 1)]
    mean = found[0]
    assert (mean.step[:3], mean.step[-1]) == ([4, 5, 6], 40)
    assert (mean.counts or [])[:3] == [2, 2, 1]
    assert (mean.low or [])[2] == mean.y[2] == (mean.high or [])[2], "of one value"
    with pytest.raises(NotFound, match="nosuch"):
        curves_of_runs(context.store, [f"{short},nosuch"], ["train/loss"])


def test_flops_are_tokens_times_their_cost_and_have_no_mean_where_costs_differ(context: Context):
    runs = []
    for name, layers in (("small", 1), ("large", 3)):
        model = {"preset": "llama-1b", "num_hidden_layers": layers}
        runs.append(context.store.runs.create(seeding.run_spec(name, model=model)))
        seeding.start(context.store, runs[-1]).train(range(1, 6))
    costs = [flops_per_token(run.spec["train"]) or 0.0 for run in runs]
    refs = [*(run.id for run in runs), ",".join(run.id for run in runs)]
    whole = curves_of_runs(context.store, refs, ["train/loss"], x_axis="flops")
    assert [one.x for one in whole] == [
        [step * seeding.TOKENS_PER_STEP * cost for step in range(1, 6)] for cost in costs
    ]
    part = curves_of_runs(
        context.store, refs[:1], ["train/loss"], x_axis="flops", firsts=[whole[0].x[3]]
    )
    assert part[0].step == [4, 5]


def test_values_are_rounded_and_buckets_lose_their_ranges_on_request(
    context: Context, two: list[str]
):
    (whole,) = curves_of_runs(context.store, two[1:], ["train/loss"], points=8)
    (part,) = curves_of_runs(
        context.store, two[1:], ["train/loss"], points=8, digits=3, ranges=False
    )
    assert len(whole.low or []) == 8
    assert part.low is part.high is None
    assert part.y == [float(f"{y:.3g}") for y in whole.y]


def test_begins_that_match_no_runs_and_unknown_runs_are_refused(context: Context, two: list[str]):
    with pytest.raises(UserError, match="2 values for 3 runs"):
        curves_of_runs(context.store, [*two, two[0]], ["train/loss"], firsts=[1, 2])
    with pytest.raises(NotFound, match="nosuch"):
        curves_of_runs(context.store, [two[0], "nosuch"], ["train/loss"])


def test_best_value_and_difference_to_the_reference_at_equal_tokens(context: Context):
    """The reference is that of the run's own project, and compared where both have tokens."""
    store = context.store
    losses = {"star": [4.0, 2.0, 3.0], "short": [5.0], "long": [6.0, 5.0, 4.0, 1.0], "none": []}
    for name, values in losses.items():
        run = store.runs.create(seeding.run_spec(name, tags=["reference"] * (name == "star")))
        attempt = seeding.start(store, run)
        for n, loss in enumerate(values, start=1):
            attempt.evaluate(n, loss)
        attempt.flush()
    other = store.runs.create(seeding.run_spec("other", project="elsewhere"))
    attempt = seeding.start(store, other)
    attempt.evaluate(1, 9.0)
    attempt.flush()
    metrics = ["best:val/loss", "versus:val/loss"]
    found = values_of_runs(context, [*losses, "other"], metrics)
    assert found.metrics == {
        "best:val/loss": [2.0, 5.0, 1.0, None, 9.0],
        "versus:val/loss": [None, 1.0, 1.0, None, None],
    }


def test_a_far_run_is_in_no_mean_of_its_quality_and_in_that_of_its_speed(context: Context):
    """Of rows, comparisons and curves. 3, 3.1, 3.2: 3.1. 90, 100, 110, 4 tokens a second: 76."""
    store = context.store
    spec = seeding.lr_sweep("far", [1e-3, 2e-3, 3e-3, 4e-3])
    spec = spec.model_copy(update={"metric": Metric(name="train/grad_norm")})
    trials = seeding.create_sweep(store, spec)[1]
    ends = [(3.0, 90.0), (3.1, 100.0), (3.2, 110.0), (1000.0, 4.0)]
    for run, (loss, speed) in zip(trials, ends, strict=True):
        attempt = seeding.start(store, run)
        for step, value in enumerate((3.3, loss), start=1):
            values = {
                "val/loss": value,
                "train/grad_norm": value,
                "bare": value,
                "tokens_per_s": speed,
            }
            attempt.add_record(Metrics(time=attempt.at, step=step, tokens=step, values=values))
        attempt.flush()
    ids = [run.id for run in trials]
    group, metrics = [",".join(ids)], ["val/loss", "train/grad_norm", "bare", "tokens_per_s"]
    # What has a goal by its name, or as its sweep declares it.
    quality = {"train/grad_norm": ids[3:], "val/loss": ids[3:]}
    row = values_of_runs(context, group, metrics, configs=False)
    assert (row.far, row.runs, row.same) == (quality, ids, {})
    assert values_of_runs(context, ids, metrics, by="project").far == quality
    assert values_of_runs(context, ids, ["bare"], by="project").far == {}, "only what is asked"
    expected = {
        "val/loss": (3.1, ids[3:]),
        "train/grad_norm": (3.1, ids[3:]),
        "tokens_per_s": (76.0, []),
    }
    for metric, (mean, far) in expected.items():
        view = compare_runs(context, ids, metric=metric, x_axis="step", by="project").groups[0]
        assert (view.mean, view.far, view.count) == (pytest.approx(mean), far, 4 - len(far))
        [curve] = curves_of_runs(store, group, [metric])
        assert (curve.y[-1], curve.far, curve.members) == (pytest.approx(mean), far, 4 - len(far))
        assert curve.dropouts == (f"1 far run left out: {trials[3].name}" if far else "")
