"""Submitting sweeps: each trial is made once, and trains with the capsule of the sweep."""

from __future__ import annotations

import pytest

from lehr.services.context import Context
from lehr.services.once import once
from lehr.services.submit import launch_sweep
from lehr.specs import sweep_expand
from lehr_testing.api import SWEEP_SPEC


def test_trials_that_were_made_to_check_the_sweep_are_recorded(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep may have thousands, and each takes a fraction of a millisecond to validate."""
    make, made = sweep_expand._trials, []

    def counted(*given):
        for trial in make(*given):
            made.append(trial.number)
            yield trial

    monkeypatch.setattr(sweep_expand, "_trials", counted)
    operation = launch_sweep(context, SWEEP_SPEC, {}, {})
    sweep = once(context.store, None, operation, status=201).body["id"]
    runs = context.store.sweeps.runs(context.store.sweeps.get(sweep).id)
    assert made == [1, 2, 3] == [int(run.name.rpartition("-")[2]) for run in runs]
    digest = context.store.sweeps.get(sweep).spec["run"]["code"]["digest"]
    assert {run.spec["code"]["digest"] for run in runs} == {digest} != {None}
