"""Laws of recorded runs by the service: its numbers, its target, and its refusals."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.app.services.context import Context
from lehr.app.services.law import law_of
from lehr.control.lifecycle import RunState
from lehr.errors import NotFound, UserError
from lehr.specs import SweepSpec, load_spec
from lehr_testing import seeding
from lehr_testing.laws import RATE, TOKENS, WIDTHS, end, loss, swept, train


@pytest.fixture
def sweeps(context: Context) -> list[str]:
    return [swept(context.store, width) for width in WIDTHS]


def test_law_holds_the_loss_and_the_rate_of_a_larger_run(
    context: Context, sweeps: list[str]
) -> None:
    target = {"kind": "run", "name": "big", "train": train(512)}
    found = law_of(context, sweeps, spec=target)
    assert (found.target.name, found.metric, len(found.runs)) == ("big", "val/loss", 9)
    assert found.target.tokens == 320 * TOKENS
    low, high = found.target.loss.sure
    assert low < loss(512, 1.25e-4) < high
    assert high - low < 2
    low, high = found.target.best[RATE].sure
    assert low < 1.25e-4 < high < 1e-3
    assert "parameters 4 times above" in str(found.target.outside)
    assert found.beyond.tokens == 2 * 160 * TOKENS
    assert all(abs(run.off or 0.0) < 2 for run in found.runs)
    assert list(found.figures) == ["val/loss", f"best {RATE}"]
    assert all(svg.startswith("<svg") for svg in found.figures.values())
    facts = dict(found.facts)
    assert facts["measured"].startswith("9 runs: parameters 197k to 3.15M")
    wider = law_of(context, sweeps, spec=target, published=False).target.best[RATE].likely
    assert (
        wider[1] / wider[0] > found.target.best[RATE].likely[1] / found.target.best[RATE].likely[0]
    )


def test_a_run_far_off_the_law_is_named_and_a_diverged_one_is_a_wall(
    context: Context, sweeps: list[str]
) -> None:
    odd, broken = (
        context.store.runs.create(seeding.run_spec(name, **train(128)))
        for name in ("odd", "broken")
    )
    end(context.store, odd, loss(128, 3e-4) + 0.3)
    seeding.start(context.store, broken).end(RunState.FAILED, 3, cause="nan_loss")
    found = law_of(context, [*sweeps, odd.id, "broken"], parameters=1e7)
    assert (found.target.name, found.target.parameters) == ("the target", 1e7)
    assert "width 1.47 times above the measured 256" in str(found.target.outside)
    off = {run.name: run.off for run in found.runs}
    assert (off["odd"] or 0.0) > 2
    assert off["broken"] is None
    farthest = dict(found.facts)["farthest off it, in standard deviations"]
    assert "odd +" in farthest
    assert 'class="diverged"' in found.figures["val/loss"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"spec": {"kind": "run", "name": "b", "train": train(512)}, "tokens": 1e9},
            "give the spec of a run or a rollout, or parameters",
        ),
        (
            {"spec": {"kind": "run", "name": "b", "train": train(512, optimizer={"name": "muon"})}},
            r"adamw \(standard\) and muon",
        ),
    ],
)
def test_bad_questions_are_refused(
    context: Context, sweeps: list[str], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        law_of(context, sweeps, **options)


def test_runs_without_a_common_law_are_refused(context: Context, sweeps: list[str]) -> None:
    with pytest.raises(UserError, match=r"there are 3 of 1 size\."):
        law_of(context, sweeps[:1])
    other = context.store.runs.create(seeding.run_spec("other", **train(128)))
    end(context.store, other, 2.0, held_out="77" * 32)
    with pytest.raises(
        UserError,
        match=r"held-out sets that do not compare: 77777777 \(other\), 5e7a5e7a \(w64-1\)",
    ):
        law_of(context, [*sweeps, "other"])
    with pytest.raises(NotFound, match="no run"):
        law_of(context, ["nothing"])
    best = {"name": "tokens_per_s", "goal": "maximize"}
    points = {RATE: {"values": [1e-3]}}
    spec = load_spec({"kind": "sweep", "name": "m", "metric": best, "parameters": points,
                      "run": {"train": train(64)}})  # fmt: skip
    assert isinstance(spec, SweepSpec)
    sweep, _ = seeding.create_sweep(context.store, spec)
    with pytest.raises(UserError, match=r"one loss; the sweeps have tokens_per_s \(maximize\)"):
        law_of(context, [sweep.id])


def test_programs_whose_size_is_unknown_are_left_out(context: Context, sweeps: list[str]) -> None:
    script = load_spec({"kind": "run", "name": "script", "trainer": {"script": "t.py", "steps": 5}})
    run = context.store.runs.create(script)  # type: ignore[arg-type]
    found = law_of(context, [*sweeps, run.id])
    assert found.target.name == "the largest run"
    assert "1 of 10 runs train with a program of their own" in dict(found.facts)["note"]
