"""Values of ended attempts for tests of decisions."""

from __future__ import annotations

from lehr.control.finalize import EndedAttempt
from lehr.control.lifecycle import Desired, RunState, Situation
from lehr.control.retries import SPENT, Budgets, ExitReport, FinishedReport


def exit_of(run_id: str = "r", **changes) -> EndedAttempt:
    """Return the first attempt of a running run, which has completed, with these changes."""
    values = {
        "situation": Situation(RunState.RUNNING, Desired.RUN),
        "report": ExitReport(code=0),
        "finished": FinishedReport("completed"),
        "budgets": Budgets(0, 3, 3),
        "spent": dict.fromkeys(SPENT.values(), 0),
        "attempt": 1,
    }
    return EndedAttempt(run_id=run_id, **{**values, **changes})
