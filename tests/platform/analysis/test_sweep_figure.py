"""Figures of a sweep: the best, the fit, diverged trials, trials without a value."""

from __future__ import annotations

import math
import re
from itertools import product
from typing import Any

import pytest

from lehr.analysis import figure as colours
from lehr.analysis.figure import Figure, FigurePoints
from lehr.analysis.sweep_figure import drawn_sweep, sweep_figure
from lehr.analysis.sweep_result import ENOUGH, outcome, parameter_importance, sweep_verdict
from lehr.app.presenters import Presenter
from lehr.errors import NotFound
from lehr.schemas.runs import RunView
from lehr.schemas.sweeps import SweepDetail, TrialView
from lehr.specs import expand, load_spec
from lehr.store import Store
from lehr_testing.api import SWEEP_SPEC
from lehr_testing.paths import ROOT

LR = "train.optimizer.lr"


def trial(number: int, value: float | None, *, compared: bool = True, **changes: Any) -> TrialView:
    parameters = changes.pop("parameters")
    run = {"state": "completed", "cause": None, **changes}
    return TrialView(
        number=number,
        parameters=parameters,
        run=RunView(
            id=f"run{number}",
            name=f"grid-{number}",
            project="default",
            total_steps=100,
            tokens_per_step=10,
            created_at=0.0,
            **run,
        ),
        value=value,
        step=100,
        compared_value=value if compared and value is not None and math.isfinite(value) else None,
    )


def sweep(trials: list[TrialView], **changes: Any) -> SweepDetail:
    ranked = [c for c in trials if c.compared_value is not None]
    best = min(ranked, key=lambda c: c.compared_value, default=None)
    if best is not None:
        best.best = True
    fields = {
        "id": "s1",
        "name": "grid",
        "project": "default",
        "method": "grid",
        "metric": "val/loss",
        "goal": "minimize",
        "parameters": list(trials[0].parameters),
        "counts": {"completed": len(trials)},
        "state": "finished",
        "best_run_id": best.run.id if best else None,
        "best_value": best.compared_value if best else None,
        "best_parameters": best.parameters if best else None,
        "compared_at_step": 100,
        "created_at": 0.0,
        "spec": {},
        "trials": trials,
        **changes,
    }
    return SweepDetail(**fields)


def parabola(rates: list[float], at: float = 1e-3) -> list[TrialView]:
    return [
        trial(n, 3 + 0.2 * math.log(rate / at) ** 2, parameters={LR: rate})
        for n, rate in enumerate(rates, start=1)
    ]


def roles(figure: Figure) -> dict[str, FigurePoints]:
    return {points.role: points for points in figure.points}


def test_the_fit_is_drawn_with_its_minimum():
    grid = sweep(parabola([1e-4, 3e-4, 8e-4, 3e-3, 1e-2]))
    figure = sweep_figure(grid)
    best, fit = roles(figure)["best"], roles(figure)["fit"]
    assert (best.x, best.labels) == ([8e-4], ["best 8.0e-4"])
    assert fit.x[0] >= 1e-4
    [band], [minimum] = figure.bands, figure.marks
    assert all(low < y < high for low, y, high in zip(band.low, fit.y, band.high, strict=True))
    assert minimum.x == pytest.approx(1e-3, rel=0.05)
    assert (figure.x.kind, figure.x.ticks[0]) == ("log", (1e-4, "1.0e-4"))
    verdict = sweep_verdict(grid, LR)
    assert verdict.startswith("Best lr 8.0e-4: val/loss 3.010; with 95 % the best rate is between ")
    assert f"probably near {minimum.x:.1e}".replace("e-0", "e-") in verdict
    assert verdict.endswith("not at the edge of what was tried.")


def test_lowest_loss_outside_of_the_best_rates_interval_is_not_called_best():
    rates = [1e-4 * 10 ** (n / 6) for n in range(13)]
    lucky = trial(0, 2.99, parameters={LR: 2.5e-3})
    verdict = sweep_verdict(sweep([lucky, *parabola(rates)]), LR)
    assert verdict.startswith("Lowest val/loss 2.990 at lr 2.5e-3; with 95 % the best rate is ")


def test_best_at_the_edge_of_the_grid_has_a_note():
    grid = sweep(parabola([2e-3, 4e-3, 8e-3]))
    assert "it is the lowest that was tried" in sweep_verdict(grid, LR)
    assert sweep_figure(grid).marks == []
    far = sweep([*parabola([2e-3, 4e-3, 8e-3]), *parabola([1e-7])])
    assert "that was tried" not in sweep_verdict(far, LR)
    assert "too far off, so the best may lie between" in sweep_verdict(far, LR)


def test_best_of_a_live_sweep_is_not_at_the_edge_while_trials_beyond_are_behind():
    trials = [
        trial(0, 3.3, compared=False, parameters={LR: 1e-3}, state="running"),
        *parabola([2e-3, 4e-3, 8e-3]),
    ]
    assert "that was tried" not in sweep_verdict(sweep(trials, state="running"), LR)
    trials[0] = trial(0, None, compared=False, parameters={LR: 1e-2}, state="queued")
    assert "it is the lowest that was tried" in sweep_verdict(sweep(trials, state="running"), LR)


def test_best_below_pruned_rates_is_not_at_the_edge():
    trials = [
        *parabola([5e-4, 1e-3, 2e-3], at=2e-3),
        trial(4, 3.1, compared=False, parameters={LR: 4e-3}, state="pruned"),
        trial(5, 3.4, compared=False, parameters={LR: 8e-3}, state="pruned"),
    ]
    verdict = sweep_verdict(sweep(trials), LR)
    assert verdict.endswith("not at the edge of what was tried.")
    stopped = [trials[3].run.model_copy(update={"state": "failed"}), trials[4].run]
    trials[3] = trials[3].model_copy(update={"run": stopped[0]})
    assert "with 95 % the best rate is between" in sweep_verdict(sweep(trials), LR)
    trials[4] = trials[4].model_copy(update={"run": stopped[0]})
    assert "it is the highest that was tried" in sweep_verdict(sweep(trials), LR)


def of_seeds(values: list[float], **changes: Any) -> SweepDetail:
    trials = [trial(n, value, parameters={"train.seed": n}) for n, value in enumerate(values)]
    found = [value for value in values if math.isfinite(value)]
    mean = sum(found) / len(found) if len(found) == len(values) else None
    best = {"best_value": mean, "best_parameters": {} if mean else None, **changes}
    return sweep(trials, **best)


def test_verdict_of_seeds_is_their_mean_with_its_interval():
    verdict = sweep_verdict(of_seeds([2.90, 2.91, 2.92]), "train.seed")
    # t(0.975, 2 degrees of freedom) * 0.01 / sqrt(3) is 0.025.
    assert verdict == "3 seeds: val/loss 2.910 ± 0.025."
    running = sweep_verdict(of_seeds([2.90, 2.92], state="running"), "train.seed")
    assert running == "2 seeds: val/loss 2.91 ± 0.13; compared at step 100, still running."


def test_verdict_of_one_seed_has_no_interval():
    one = of_seeds([2.91], best_parameters={"train.seed": 0})
    assert sweep_verdict(one, "train.seed") == "1 seed: val/loss 2.910."


def test_verdict_counts_the_seeds_that_have_no_finite_value():
    verdict = sweep_verdict(of_seeds([2.90, math.nan, 2.92]), "train.seed")
    assert verdict == "No mean: 1 of 3 seeds ended without a finite val/loss."


def test_diverged_failed_and_unfinished_trials_are_drawn_separately():
    trials = [
        *parabola([3e-4, 1e-3, 3e-3]),
        trial(4, math.nan, parameters={LR: 1e-2}),
        trial(5, 4.0, compared=False, parameters={LR: 2e-2}, state="failed", cause="nan_loss"),
        trial(6, None, parameters={LR: 3e-2}, state="failed", cause="out_of_memory"),
        trial(7, 5.0, compared=False, parameters={LR: 4e-2}, state="running"),
        trial(8, None, parameters={LR: 5e-2}, state="queued"),
    ]
    assert [outcome(one) for one in trials[3:]] == [
        *("diverged", "diverged", "gave_up", "pending", "silent")
    ]
    figure = sweep_figure(sweep(trials, state="running"))
    drawn = {role: points.x for role, points in roles(figure).items() if role != "fit"}
    assert drawn == {
        "points": [3e-4, 1e-3, 3e-3],
        "best": [1e-3],
        "diverged": [1e-2, 2e-2],
        "stopped": [3e-2],
        "pending": [4e-2, 5e-2],
    }
    assert "still running" in sweep_verdict(sweep(trials, state="running"), LR)


def test_seeds_are_error_bars_and_other_parameters_separate_lines():
    trials = [
        trial(n, 3 + seed / 10 + decay, parameters={LR: rate, "train.seed": seed, "wd": decay})
        for n, (rate, seed, decay) in enumerate(
            (r, s, d) for r in (1e-3, 3e-3) for s in (0, 1) for d in (0.0, 0.1)
        )
    ]
    figure = sweep_figure(sweep(trials))
    means = [points for points in figure.points if points.name == "mean"]
    assert [points.ranges for points in means] == [
        [(pytest.approx(3.0), pytest.approx(3.1)), (pytest.approx(3.0), pytest.approx(3.1))],
        [(pytest.approx(3.1), pytest.approx(3.2)), (pytest.approx(3.1), pytest.approx(3.2))],
    ]
    assert [points.name for points in figure.legend] == ["wd 0", "wd 0.1", "best"]


def test_a_legend_has_no_entry_for_each_of_many_points_of_a_search():
    trials = [trial(n, 3.0, parameters={LR: 1e-3 * n, "wd": n / 10}) for n in range(1, 10)]
    figure = sweep_figure(sweep(trials))
    assert [points.name for points in figure.legend] == []
    assert {points.symbol for points in figure.points} == {"dot", "ring"}


def test_text_values_are_a_category_axis():
    trials = [
        trial(n, 3.0 + n, parameters={"train.optimizer.name": name})
        for n, name in enumerate(("adamw", "muon"))
    ]
    assert sweep_figure(sweep(trials)).x.kind == "category"


def test_figure_without_values_has_a_note():
    grid = sweep([trial(1, None, parameters={LR: 1e-3}, state="queued")], state="waiting")
    assert sweep_verdict(grid, LR) == "No trial has a val/loss to compare yet."
    assert [(one.role, one.y) for one in sweep_figure(grid).points] == [("pending", [None])]


def test_values_of_different_held_out_sets_are_not_joined_by_a_line():
    trials = [
        trial(n, 3.0 - n / 10, parameters={LR: rate, "train.seed": seed})
        for n, (rate, seed) in enumerate([(1e-3, 0), (1e-3, 1), (3e-3, 0), (3e-3, 1)])
    ]
    names = [points.name for points in sweep_figure(sweep(trials, noise_band=0.1)).points]
    assert "mean" in names
    other = sweep_figure(sweep(trials, noise_band=0.1, held_out="different"))
    assert "mean" not in [points.name for points in other.points]
    assert other.bands == []


def test_run_colours_match_the_dashboard():
    # tests/javascript/colours.test.js holds the dashboard's rule to the same numbers.
    assert [colours.slot(run) for run in ("k3f9x2ab", "p8w2c4nd", "zürich", "")] == [5, 5, 4, 1]
    given = colours.slots(f"run{n}" for n in range(12))
    expected = [2, 1, 4, 3, 18, 17, 0, 9, 10, 19, 7, 8]
    assert [given[f"run{n}"] for n in range(12)] == expected
    assert colours.stroke(18) == colours.Stroke(colours.PALETTE[8], "dash")
    script = (ROOT / "api/lehr_api/dashboard/static/js/colour.js").read_text()
    light = script.partition("const LIGHT")[2].partition("]")[0]
    assert tuple(re.findall("#[0-9a-f]{6}", light)) == colours.PALETTE


@pytest.fixture
def detail(tmp_path):
    spec = load_spec(SWEEP_SPEC)
    with Store.open(tmp_path / "home") as store:
        yield Presenter(store).sweeps.detail(store.sweeps.create(spec, expand(spec)))


def test_figure_has_the_varied_parameter_as_its_axis(detail):
    assert drawn_sweep(detail, None) == drawn_sweep(detail, LR)
    assert drawn_sweep(detail, None).parameter == LR


def test_constant_parameter_is_rejected_with_the_nearest_varied_one(detail):
    with pytest.raises(NotFound) as caught:
        drawn_sweep(detail, "train.optimizer.rl")
    assert caught.value.hint == f"Did you mean {LR}?"


def test_notes_do_not_repeat_the_verdict(detail):
    other = detail.model_copy(
        update={"held_out": "different", "held_out_note": "two sets", "notes": ["two sets", "else"]}
    )
    assert drawn_sweep(other, None).notes == ["else"]
    assert drawn_sweep(other.model_copy(update={"held_out": "same"}), None).notes == [
        "two sets",
        "else",
    ]
    edge = "The best is at the edge of the values tried: {} 1.0 is the smallest; ..."
    edges = [edge.format(path) for path in (LR, "train.steps")]
    drawn = drawn_sweep(sweep(parabola([2e-3, 4e-3, 8e-3]), notes=edges), None)
    assert "may lie beyond" in drawn.verdict
    assert drawn.notes == edges[1:]


DECAY, NAME, SEED = "train.optimizer.weight_decay", "train.optimizer.name", "train.seed"


def grid(rates: int = 5) -> SweepDetail:
    """The rate decides nearly all, the weight decay and the seed nothing."""
    places = [
        (10 ** (-4 + rate / 2), decay, name, seed)
        for rate in range(rates)
        for decay in (0.0, 0.1)
        for name in ("adamw", "muon")
        for seed in (0, 1)
    ]
    return sweep(
        [
            trial(
                n,
                3 + math.log10(lr / 1e-3) ** 2 + (0.2 if name == "muon" else 0.0) + seed / 1000,
                parameters={LR: lr, DECAY: decay, NAME: name, SEED: seed},
            )
            for n, (lr, decay, name, seed) in enumerate(places)
        ]
    )


def test_the_parameter_that_decides_has_the_largest_share():
    found = parameter_importance(grid())
    assert next(iter(found)) == LR
    assert set(found) == {LR, DECAY, NAME}
    assert found[DECAY] < 0.1 < found[LR]
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.parametrize("goal", ["minimize", "maximize"])
@pytest.mark.parametrize("decays", [(0.0, 0.3), (0.0, 0.1, 0.3)])
def test_a_parameter_without_effect_has_next_to_none_in_a_small_grid(decays, goal) -> None:
    rates = [1e-3, 3e-3, 1e-2, 3e-2, 1e-1]
    losses = [3.291, 2.612, 2.510, 2.608, 2.766]  # As measured; the decay changes the third digit.
    trials = [
        trial(n, loss + decay / 100, parameters={DECAY: decay, LR: lr})
        for n, (decay, (lr, loss)) in enumerate(product(decays, zip(rates, losses, strict=True)))
    ]
    made = sweep(trials)
    if goal == "maximize":
        turned = [one.model_copy(update={"compared_value": -one.compared_value}) for one in trials]
        made = made.model_copy(update={"trials": turned, "goal": "maximize"})
    assert parameter_importance(made)[LR] > 0.85


def test_parameters_of_a_search_need_more_trials_the_more_they_are() -> None:
    points = [
        {LR: 10 ** (-n / 5), DECAY: n / 40, "train.model.rope_theta": 1e4 + n} for n in range(15)
    ]
    trials = [trial(n, 3.0 + n, parameters=point) for n, point in enumerate(points)]
    assert len(parameter_importance(sweep(trials))) == 3
    assert parameter_importance(sweep(trials[:14])) == {}


def test_few_trials_and_a_single_parameter_have_no_shares():
    assert parameter_importance(grid(rates=1)) == {}
    one = [trial(n, 3.0 + n, parameters={LR: 10**-n}) for n in range(ENOUGH + 2)]
    assert parameter_importance(sweep(one)) == {}
    few = [trial(n, 3.0 + n, parameters={LR: 10**-n, DECAY: n / 10}) for n in range(ENOUGH - 1)]
    assert parameter_importance(sweep(few)) == {}


def test_colours_of_values_are_those_of_the_dashboard() -> None:
    """tests/javascript/colours.test.js has the same figures."""
    rates = colours.scale_of([1e-4, 1e-3, 3e-3, math.nan, None, 1e-2])
    assert [rates(x) for x in (1e-4, 3e-3, 1e-2)] == ["#440154", "#27818e", "#27a783"]
    assert (rates(None), rates(math.nan)) == ("#6e7781", "#c2281b")
    words = colours.scale_of(["adamw", "muon", "adamw8bit"])
    assert [words(x) for x in ("adamw", "muon", "adamw8bit")] == ["#0099aa", "#663311", "#777744"]
