"""The law: its likelihood against formulas written out, its intervals on laws that are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lehr.analysis import lr_valley
from lehr.analysis.laws import Law, Observation, fit_law
from lehr.analysis.laws import model as columns
from lehr.analysis.laws.question import Field
from lehr.analysis.lr_rules import Setting
from lehr_testing.paths import TESTS

TARGET = Setting(width=2048, depth=16, non_embedding=8e8, batch=5e5, tokens=2e10)
RATE = Field("train.optimizer.lr", "rate", 1e-4, 1e-2, log=True)
BATCH = Field("batch", "batch", 6e4, 4e6, log=True)


def smaller(factor: float, tokens: float) -> Setting:
    return Setting(
        width=TARGET.width / factor,
        depth=TARGET.depth,
        non_embedding=TARGET.non_embedding / factor**2,
        batch=TARGET.batch * tokens**0.57,
        tokens=TARGET.tokens * tokens,
    )


RUNGS = (smaller(4, 0.05), smaller(2.8, 0.1), smaller(2, 0.2))


def law(observations: Sequence[Observation], *arguments: Any, **options: Any) -> Law:
    found = fit_law(tuple(observations), *arguments, **options)
    assert found is not None
    return found


def plain() -> int:
    """Return the draw of the prior whose valley is the most usual."""
    model = law([], (RATE,), TARGET, others=RUNGS).model
    draws = law([], (RATE,), TARGET, others=RUNGS).draws[:, columns.VALLEY]
    usual = (np.median(draws, axis=0), model.deviation[columns.VALLEY])
    return int((((draws - usual[0]) / usual[1]) ** 2).sum(axis=1).argmin())


def made(truth: int, fields: tuple[Field, ...], trials: int) -> list[Observation]:
    """Return trials of the law that is one draw of the prior, around its best values."""
    prior = law([], fields, TARGET, others=RUNGS)
    draw = np.random.default_rng(truth)
    observations = []
    for k in range(trials):
        setting = RUNGS[k % len(RUNGS)]
        best = prior.best_at(setting)[truth]
        values = tuple((best * 2 ** draw.uniform(-1.5, 1.5, len(fields))).tolist())
        middle, around = prior.outcome(setting, values)
        loss = middle[truth] + around[truth] * draw.standard_normal()
        observations.append(Observation(setting, values, float(loss)))
    return observations


def test_likelihood_equals_the_normal_distribution_written_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bottom, valley, batch and covariance of three rungs, one by one in plain numbers."""
    fields = (RATE, BATCH)
    observations = made(plain(), fields, 12)
    near = smaller(1.9, 0.22)
    fitted = law(observations, fields, TARGET, others=(near,))
    model, places = fitted.model, fitted.model.losses.places
    some = fitted.draws[[0, 100, 200, 300], : model.stop]
    some[0, [columns.TAU, columns.START]] = math.log(0.05), -3.0  # So that both count.
    model._weights[:] = 1.0
    monkeypatch.setattr(columns, "_ODD", math.inf)
    dense = [_dense(row, model) for row in some]
    expected = []
    for covariance, off in dense:
        sign, log = np.linalg.slogdet(covariance)
        assert sign == 1
        expected.append(-(off @ np.linalg.solve(covariance, off) + log) / 2)
    found = model.log_likelihood(some)
    assert np.diff(found) == pytest.approx(np.diff(expected), abs=1e-4)

    # The level of a rung without a loss has the mean and spread that follow from its neighbours.
    rungs = fitted.places([(setting, (1e-3, 5e5)) for setting in fitted.rungs])
    drawn = model.with_linear(np.tile(some[0], (4000, 1)), rungs, np.random.default_rng(0))
    asked = fitted.places([(near, (1e-3, 5e5))])
    level = model.level(drawn, asked)[:, 0]
    both = columns.Coordinates(*map(np.append, places, asked))
    prior = _plain_levels(some[0], model, both)
    weights = np.linalg.solve(dense[0][0], prior[-1, :-1])
    mean = model.linear @ [1, *_plain_gains(some[0], asked, 0)] + weights @ dense[0][1]
    spread = math.sqrt(prior[-1, -1] - weights @ prior[-1, :-1])
    assert level.mean() == pytest.approx(mean, abs=0.06 * spread)
    assert level.std() == pytest.approx(spread, rel=0.05)


def _plain_levels(row: Any, model: Any, places: Any) -> Any:
    """Return the covariance of the levels of places' rungs, [M, M]."""
    size = len(places.tokens)
    own = model.loss * np.exp(row[columns.TAU]) * 2 ** (-0.4 * places.tokens)
    law_terms = np.array([[1, *_plain_gains(row, places, k)] for k in range(size)])
    covariance = law_terms @ np.diag(model.linear_doubt**2) @ law_terms.T
    apart = sum(np.abs(np.subtract.outer(each, each)) for each in (places.size, places.tokens))
    return covariance + np.outer(own, own) * np.exp(-apart / 3)


def _dense(row: Any, model: Any) -> tuple[Any, Any]:
    """Return the covariance of all losses, and how far they are above their means."""
    places, size = model.losses.places, len(model.losses.means)
    shift = {k: _plain_cost(row, places, k) for k in range(size)}
    law = [model.linear @ [1, *_plain_gains(row, places, k)] for k in range(size)]
    same = places.rung[:, None] == places.rung
    slope = np.array([shift[k][2] for k in range(size)])
    covariance = _plain_levels(row, model, places)
    covariance += same * np.outer(slope, slope) * (model.bottom * 2 ** (-0.15 * places.tokens)) ** 2
    covariance += np.diag([shift[k][1] for k in range(size)])
    return covariance, model.losses.means - np.array([shift[k][0] for k in range(size)]) - law


def _plain_gains(row: Any, places: Any, k: int) -> list[float]:
    start = 2 ** row[columns.START]
    return [
        2 ** (-math.exp(row[columns.ALPHA]) * places.size[k]) - 1,
        ((2 ** places.tokens[k] + start) / (1 + start)) ** -math.exp(row[columns.BETA]) - 1,
    ]


def _plain_cost(row: Any, places: Any, k: int) -> tuple[Any, Any, Any]:
    """Return cost, variance and slope of one trial."""
    knee = row[columns.KNEE] + row[columns.KNEE_TOKENS] * places.tokens[k]
    knee += row[columns.KNEE_SIZE] * places.size[k]

    def up_to_knee(over: float) -> float:
        return float(-math.log2(1 + 2 ** (-3 * over)) / 3)

    best = row[columns.BEST] + row[columns.PER_WIDTH] * places.width[k]
    best += row[columns.PER_DEPTH] * places.depth[k] + row[columns.PER_TOKENS] * places.tokens[k]
    change = up_to_knee(places.batch[k] - knee) - up_to_knee(-row[columns.KNEE])
    best += row[columns.PER_BATCH] * change
    rise, skew, left, right, width, noise = row[columns.VALLEY]
    scale = math.exp(row[columns.RISE_TOKENS] * places.tokens[k])

    def cost(from_best: float) -> Any:
        power, sign = math.exp(right if from_best > 0 else left), 1 if from_best > 0 else -1

        def height(over: float) -> Any:
            return (1 + (over / math.exp(width)) ** 2) ** (power / 2) - 1

        return math.exp(rise + sign * skew / 2) * height(from_best) / height(1.0) * scale

    over = places.rate[k] - best
    above = cost(over)
    misfit = lr_valley.MISFIT[int(over > 0)] * above
    off = places.batch[k] - knee - row[columns.OFFSET]
    sided = (1 if off > 0 else -1) * row[columns.BATCH_SKEW] / 2
    batch = math.exp(rise + row[columns.BATCH_RISE] + sided) * scale * off**2
    growth = (0.1 if over > 0 else 0.15) * min(max(over, -3.0), 3.0)
    variance = math.exp(rise + noise + growth) ** 2 + misfit**2 + (0.15 * batch) ** 2
    return above + batch, variance, (cost(over + 0.02) - cost(over)) / 0.02


@pytest.mark.parametrize("fields", [(RATE,), (RATE, BATCH)])
def test_intervals_hold_the_best_values_and_the_loss_of_known_laws(fields: Any) -> None:
    """Of 24 laws drawn from the prior. Intervals of half the width hold 7 to 9 and 13 or 14."""
    prior = law([], fields, TARGET, others=RUNGS)
    held = []
    for truth in range(0, 600, 25):
        answer = law(made(truth, fields, 18), fields, TARGET).answer()
        loss = prior.outcome(TARGET, answer.values)[0][truth]
        best = prior.best[truth, 0]
        likely, sure = answer.intervals[0]
        held.append([likely[0] <= best <= likely[1], sure[0] <= best <= sure[1]])
        held[-1] += [answer.likely[0] <= loss <= answer.likely[1]]
        held[-1] += [answer.sure[0] <= loss <= answer.sure[1]]
    counts = np.sum(held, axis=0)
    assert 10 <= counts[0] <= 22
    assert counts[1] >= 18
    assert 12 <= counts[2] <= 24
    assert counts[3] >= 20


def test_more_trials_narrow_every_interval_and_the_regret() -> None:
    few, many = (law(made(plain(), (RATE,), n), (RATE,), TARGET).answer() for n in (3, 60))
    assert many.regret < few.regret
    assert many.likely[1] - many.likely[0] < few.likely[1] - few.likely[0]


def test_without_published_runs_the_same_trials_leave_more_doubt() -> None:
    observations = made(plain(), (RATE,), 12)
    pooled = law(observations, (RATE,), TARGET).answer()
    alone = law(observations, (RATE,), TARGET, published=False).answer()
    ratio = [
        low_high[1] / low_high[0] for low_high in (alone.intervals[0][0], pooled.intervals[0][0])
    ]
    assert ratio[0] > 1.3 * ratio[1]
    assert alone.sure[1] - alone.sure[0] > 1.3 * (pooled.sure[1] - pooled.sure[0])


def test_target_outside_of_what_was_measured_is_said_and_has_wider_intervals() -> None:
    observations = made(plain(), (RATE,), 18)
    fitted = law(observations, (RATE,), TARGET, others=RUNGS)
    said = fitted.answer().outside
    assert said is not None
    assert "parameters 4 times above the measured 200M" in said
    assert "tokens 5 times above the measured 4.00G" in said
    assert fitted.outside(RUNGS[1], (1e-3,)) is None
    inside, outside = (fitted.predict(one, (1e-3,)) for one in (RUNGS[1], TARGET))
    assert np.diff(outside[2]) > 1.5 * np.diff(inside[2])
    with pytest.raises(ValueError, match="not in tuple"):
        fitted.predict(smaller(3, 0.3), (1e-3,))


def test_answer_says_where_a_smaller_training_already_has_a_lower_loss() -> None:
    observations = made(plain(), (RATE,), 18)
    usual = law(observations, (RATE,), TARGET).answer()
    low = replace(observations[0], loss=usual.likely[0] - 0.3)
    said = law([*observations, low], (RATE,), TARGET).answer().outside or ""
    assert f"already reached {low.loss:.4g}, so the loss will be lower" in said
    assert "already reached" not in (usual.outside or "")


def test_diverged_and_broken_rates_count_as_walls_and_a_disturbed_loss_little() -> None:
    observations = [one for one in made(plain(), (RATE,), 18) if one.loss < 1e3]
    usual = law(observations, (RATE,), TARGET)
    high = max(one.values[0] for one in observations)
    for loss in (math.inf, math.nan, 5 * observations[0].loss):
        broken = Observation(observations[0].setting, (high * 1.5,), loss)
        walled = law([*observations, broken], (RATE,), TARGET)
        assert walled.model.losses.walls.rate.tolist() == [math.log2(high * 1.5)]
        assert walled.answer().loss == pytest.approx(usual.answer().loss, rel=0.02)
    last = replace(observations[-1], loss=observations[-1].loss * 1.05)
    disturbed = law([*observations[:-1], last], (RATE,), TARGET)
    assert disturbed.residuals[-1] > 3 > max(disturbed.residuals[:-1])
    assert disturbed.answer().loss == pytest.approx(usual.answer().loss, rel=0.01)


def test_trials_that_all_diverged_move_the_belief_below_them() -> None:
    prior = law([], (RATE,), TARGET, others=RUNGS)
    diverged = [Observation(RUNGS[0], (rate,), math.inf) for rate in (1e-2, 5e-3, 1e-3)]
    walled = law(diverged, (RATE,), TARGET)
    assert np.median(walled.best_at(RUNGS[0])) < 1e-3 < np.median(prior.best_at(RUNGS[0]))
    assert walled.answer().outside == "Nothing was measured."


def test_other_value_and_forecasts_with_their_doubt() -> None:
    """A mix's share whose best is 0.6, by exact losses; with a doubt of 0.1 these say little."""
    field = Field("mix", "other", 0.0, 1.0, log=False)
    losses = {share: 3 + 0.5 * (share - 0.6) ** 2 for share in (0.1, 0.3, 0.5, 0.7, 0.9)}
    sharp, vague = (
        law(
            [Observation(RUNGS[0], (s,), loss, doubt) for s, loss in losses.items()],
            (field,),
            TARGET,
        ).answer()
        for doubt in (0.0, 0.1)
    )
    assert sharp.values[0] == pytest.approx(0.6, abs=0.05)
    widths = [high - low for low, high in (sharp.intervals[0][1], vague.intervals[0][1])]
    assert widths[0] < 0.25 < 0.5 < widths[1]


def test_trainings_of_few_steps_say_what_a_longer_one_ends_at() -> None:
    """Which fall faster with each doubling than a power of tokens: the target ended at 1.321."""
    lines = (TESTS / "data" / "few_steps.csv").read_text().splitlines()
    numbers = (map(float, line.split(",")[1:]) for line in lines if line.startswith("whole"))
    runs = [
        Observation(Setting(width, depth, size, batch, tokens), (rate,), loss)
        for width, depth, size, tokens, batch, rate, loss in numbers
    ]
    target = Setting(width=512, depth=2, non_embedding=6425088, batch=2048, tokens=1024000)
    said = law(runs, (RATE,), target).answer()
    assert said.loss == pytest.approx(1.321, abs=0.1)
    assert said.likely[1] - said.likely[0] < 0.25
    shorter = law([one for one in runs if one.setting.tokens < 1e5], (RATE,), target).answer()
    assert shorter.sure[0] < 1.321 < shorter.sure[1]
