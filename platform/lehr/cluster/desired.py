"""What a run's attempt should do now, from the run's row."""

from __future__ import annotations

from lehr.control.lifecycle import Desired, RunState
from lehr.control.maintenance import MAINTENANCE
from lehr.control.outcome import PREEMPTED
from lehr.control.requests import TIME_LIMIT
from lehr.store import Store
from lehr.store.tables import RunRow


def effective_desired(run: RunRow) -> Desired:
    """Return the desired state of the attempt. A run that is stopping stops, even if it was resumed
    meanwhile.
    """
    desired = Desired(run.desired)
    stopping = run.state == RunState.STOPPING.value and run.cause != TIME_LIMIT
    return Desired.PAUSE if stopping and desired is Desired.RUN else desired


def is_preempted(run: RunRow) -> bool:
    """Return whether it is stopped for another run, and no request has come since then."""
    return _stops_because(run, PREEMPTED)


def is_in_maintenance(run: RunRow) -> bool:
    """Return whether it is stopped for a maintenance window, and no request has come since then."""
    return _stops_because(run, MAINTENANCE)


def _stops_because(run: RunRow, cause: str) -> bool:
    stopping = run.state == RunState.STOPPING.value and run.cause == cause
    return stopping and run.desired == Desired.RUN.value


def over_time_limit(run: RunRow) -> bool:
    return run.state == RunState.STOPPING.value and run.cause == TIME_LIMIT


def request_message(store: Store, run: RunRow) -> str | None:
    """Return the message of the request that currently applies to the run."""
    requests = store.requests.of_run(run.id)
    return requests[-1].message if requests and requests[-1].kind == run.desired else None
