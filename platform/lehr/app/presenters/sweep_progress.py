"""How far a sweep is: its steps, its state, and notes on what its trials do not show."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal

from lehr.control import sweeps as decisions
from lehr.control.lifecycle import RunState
from lehr.schemas.runs import Latest
from lehr.specs.sweep import STARTUP_TRIALS, SweepSpec
from lehr.store.records.run_rows import shown_run
from lehr.store.records.sweeps import TrialOutline
from lehr.store.tables import RunRow, SweepRow


def progress(
    trials: Sequence[TrialOutline],
    trunk: RunRow | None,
    latest_of: Callable[[Sequence[str]], Mapping[str, Mapping[str, Latest]]],
) -> dict[str, Any]:
    """Return the steps and times of all runs; those that the trials share count once.

    ``latest_of``: reads the newest values of runs.
    """
    # Until the newest attempt has made a step, the previous attempt's last step counts.
    before = [trial.run_id for trial in trials if trial.attempt and trial.last_step is None]
    before += [trunk.id] if trunk is not None else []
    latest = latest_of(before)

    def logged(run_id: str) -> int:
        return max((value.step for value in latest.get(run_id, {}).values()), default=0)

    shared = (trunk.stored.total_steps or 0) if trunk is not None else 0
    steps = [
        max((logged(one.run_id) if one.last_step is None else one.last_step) - shared, 0)
        for one in trials
    ]
    totals = [None if trial.total_steps is None else trial.total_steps - shared for trial in trials]
    runs: list[TrialOutline | RunRow] = [*trials]
    if trunk is not None:
        runs, steps, totals = [trunk, *runs], [logged(trunk.id), *steps], [shared, *totals]
    known = [total for total in totals if total is not None]
    return {
        "steps_made": sum(steps),
        "steps_done": sum(
            step if run.ended_at is None or total is None else total
            for run, step, total in zip(runs, steps, totals, strict=True)
        ),
        "steps_total": sum(known) if len(known) == len(totals) else 0,
        "started_at": min(
            (run.started_at for run in runs if run.started_at is not None), default=None
        ),
        "ended_at": max((run.ended_at for run in runs if run.ended_at is not None), default=None),
    }


def trunk_note(trunk: RunRow | None) -> list[str]:
    """Return what trains the stages that the trials share."""
    if trunk is None:
        return []
    name, steps = shown_run(trunk), trunk.stored.total_steps
    text = f"The trials start from the end of {name}, which trains the {steps:,} steps that they"
    return [f"{text} share once. It is {trunk.state}."]


def progress_note(sweep: SweepRow, trials: int) -> list[str]:
    """Return the progress of the sweep, if its trials do not show all of it."""
    if sweep.stopped is not None:
        return [f"Stopped: {sweep.stopped}"]
    if sweep.stored.method == "campaign":
        return []
    remaining = trials_remaining(sweep, trials)
    points = int(sweep.spec.get("trials") or 0)
    if remaining:
        chosen = f"TPE has yet to choose {remaining} of {points} points."
        return [f"{chosen} The first {STARTUP_TRIALS} were drawn at random."]
    if sweep.stored.method == "tpe" and points <= STARTUP_TRIALS:
        chosen = f"TPE chooses from results from point {STARTUP_TRIALS + 1} on."
        return [f"All {points} points were drawn at random: {chosen}"]
    return []


def sweep_state(
    counts: Collection[str], remaining: int, trunk: RunRow | None
) -> Literal["waiting", "running", "finished"]:
    """Return the state of a sweep whose trials are in these states."""
    if trunk is not None and RunState(trunk.state).active:
        return "running"
    if all(RunState(state).ended for state in counts):
        return "running" if remaining else "finished"
    return "waiting" if set(counts) <= {RunState.QUEUED, RunState.PAUSED} else "running"


def trials_remaining(sweep: SweepRow, there: int) -> int:
    """Return how many points TPE has yet to choose; 1 for a campaign that goes on."""
    if sweep.stored.method not in {"tpe", "campaign"} or sweep.stopped is not None:
        return 0
    return decisions.trials_remaining(SweepSpec.model_validate(sweep.spec), there)
