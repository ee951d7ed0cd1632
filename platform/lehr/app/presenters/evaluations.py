"""What evaluates the checkpoints of a run, and what went wrong with it."""

from __future__ import annotations

from lehr.control.evaluations import Evaluates, fails
from lehr.control.lifecycle import RunState
from lehr.schemas.runs import EvaluationView
from lehr.store import Store
from lehr.store.tables import RunRow


def evaluations(store: Store, run: RunRow) -> tuple[list[EvaluationView], list[str]]:
    """Return the evaluations of the run's checkpoints, and for each name why the newest failed, and
    how many checkpoints it has missed.
    """
    views, warnings = [], []
    for one in store.runs.evaluations(run.id):
        of = Evaluates.parse(one.evaluates or "")._asdict() | {"run_id": one.id}
        views.append(EvaluationView(**of, state=one.state, reason=one.reason))
    points = store.checkpoints.of_run(run.id, removed=True)
    gone = [point for point in points if point.removed_at and point.copy_state != "there"]
    for name in dict.fromkeys(view.name for view in views):
        own = [view for view in views if view.name == name]
        if (last := own[-1]).state == RunState.FAILED:
            text = f"evaluation {name} failed at step {last.step:,}: {last.reason}."
            again = f" No further checkpoint is evaluated until: lehr retry {last.run_id}"
            warnings.append(text + again * fails([RunState(view.state) for view in own]))
        known = {(view.attempt, view.step) for view in own}
        if missed := sum((point.attempt, point.step) not in known for point in gone):
            warnings.append(f"evaluation {name}: {missed:,} checkpoints were removed before it.")
    return views, warnings
