"""Points over several seeds: means, the noise between seeds, and the notes that follow from it."""

from __future__ import annotations

import math
import statistics

import pytest

from lehr.analysis.sweep_figure import sweep_figure
from lehr.app.presenters.ranking import (
    TrialStatus,
    lead,
    noise_band,
    noise_between_seeds,
    points_of,
    rank,
    seed_notes,
)
from lehr_testing.api import api_client, begin, ingest, line

LR = "train.optimizer.lr"
LOSSES = {
    1e-3: [3.00, 3.10, 3.20],
    1e-2: [2.00, 2.30, 2.15],
    1e-1: [2.10, 2.20, 2.11],
}


def standings(losses=LOSSES, step: int = 100) -> list[TrialStatus]:
    return [
        TrialStatus(f"{lr}-{seed}", {LR: lr, "train.seed": seed}, "completed", loss, step)
        for lr, found in losses.items()
        for seed, loss in enumerate(found)
    ]


def judged(losses=LOSSES):
    return rank(standings(losses), "minimize", lambda _run, _step: None)


def test_points_are_ranked_by_their_mean_and_not_by_their_best_seed():
    verdict = judged()
    assert verdict.best == "0.1-0"
    assert verdict.ranks["0.01-0"] == 2  # 2.00 is the lowest single value.
    means = {point.parameters[LR]: point.mean for point in verdict.points}
    assert means == {lr: pytest.approx(statistics.fmean(found)) for lr, found in LOSSES.items()}
    spreads = {point.parameters[LR]: point.spread for point in verdict.points}
    assert spreads == {lr: pytest.approx(statistics.stdev(found)) for lr, found in LOSSES.items()}


def test_point_with_a_diverged_or_missing_seed_has_no_rank():
    losses = {**LOSSES, 1e-1: [2.0, math.nan, 2.0]}
    verdict = judged(losses)
    assert verdict.best == "0.01-0"
    assert not any(run.startswith("0.1-") for run in verdict.ranks)


def test_note_compares_the_lead_with_the_pooled_noise():
    found = judged().points
    estimate = noise_between_seeds(found)
    assert estimate is not None
    pooled = math.sqrt(statistics.fmean(statistics.variance(v) for v in LOSSES.values()))
    assert estimate.deviation == pytest.approx(pooled)
    assert estimate.freedom == 6
    t = 2.446912  # 97.5 % of Student's t with six degrees of freedom.
    assert noise_band(found, estimate) == pytest.approx(t * pooled * math.sqrt(2 / 3))
    said, note = seed_notes(found, estimate, "val/loss", "minimize")
    assert said == "Seeds of one point differ by 0.109 in val/loss (standard deviation)."
    assert note.startswith(
        "lr 1.0e-1 looks better than lr 1.0e-2 by 0.01 ± 0.22, within seed noise"
    )
    clear = judged({1e-3: [3.0, 3.01], 1e-2: [2.0, 2.01]}).points
    [_, note] = seed_notes(clear, noise_between_seeds(clear), "val/loss", "minimize")
    assert note.startswith("lr 1.0e-2 is better than lr 1.0e-3 by 1.000 ±")
    assert seed_notes(points_of([], {}, "minimize"), None, "val/loss", "minimize") == []


def test_one_seed_for_each_point_names_the_command_that_measures_the_noise():
    verdict = judged({lr: found[:1] for lr, found in LOSSES.items()})
    note = lead(verdict.points, None, "val/loss", "minimize").sentence
    assert note.startswith("lr 1.0e-2 looks better than lr 1.0e-1 by 0.1 (one seed each)")
    assert note.endswith("`lehr seeds 0.01-0 --n 3` measures it.")
    assert lead(verdict.points[:1], None, "val/loss", "minimize") is None
    fixed = lead(verdict.points, None, "val/loss", "minimize", repeatable=False).sentence
    assert "lehr seeds" not in fixed


def test_sweep_answer_has_the_mean_of_each_point_and_the_noise_band(tmp_path):
    from lehr_testing.api import SWEEP_SPEC

    with api_client(tmp_path / "home") as (api, client):
        spec = {**SWEEP_SPEC, "seeds": [0, 1], "parameters": {LR: {"values": [1e-3, 1e-2]}}}
        sweep = client.post("/api/v1/sweeps", json={"spec": spec}).json()
        for trial, loss in zip(sweep["trials"], (3.0, 3.2, 2.0, 2.4), strict=True):
            attempt = begin(api.store, trial["run"]["id"])
            ingest(
                api.store, attempt, line("evaluation", step=9, tokens=1, values={"val/loss": loss})
            )
        found = client.get(f"/api/v1/sweeps/{sweep['id']}").json()
        assert [point["mean"] for point in found["points"]] == [
            pytest.approx(3.1),
            pytest.approx(2.2),
        ]
        assert found["best_value"] == pytest.approx(2.2)
        assert found["best_parameters"] == {LR: 1e-2}
        assert found["noise"] == pytest.approx(math.sqrt((0.02 + 0.08) / 2))
        detail = api.services.presenter.sweeps.detail(api.store.sweeps.get(sweep["id"]))
        *_, band = sweep_figure(detail, LR).bands
        assert max(band.high) - min(band.low) == pytest.approx(0.9 + found["noise_band"])
