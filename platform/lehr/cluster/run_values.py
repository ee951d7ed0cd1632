"""Read values of one run for a decision."""

from __future__ import annotations

from lehr.control.lifecycle import Desired, RunState
from lehr.control.situation import Situation
from lehr.store import Store
from lehr.store.tables import RunRow


def situation(run: RunRow) -> Situation:
    """Return the situation of the run."""
    return Situation(RunState(run.state), Desired(run.desired), run.cause)


def request_message(store: Store, run: RunRow) -> str | None:
    """Return the message of the request that currently applies to the run."""
    requests = store.requests.of_run(run.id)
    return requests[-1].message if requests and requests[-1].kind == run.desired else None
