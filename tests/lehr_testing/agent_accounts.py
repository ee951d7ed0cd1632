"""Accounts of agents on a real server, and runs that use GPU-hours without training."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from lehr.client import Client, Run, Sweep
from lehr.control.lifecycle import RunState
from lehr.mcp_server.budget import AgentBudget, Limits
from lehr.mcp_server.estimates import LaunchEstimates
from lehr.mcp_server.launching import Launching
from lehr.mcp_server.ledger import Ledger
from lehr_testing.api import (
    RUN_SPEC,
    SWEEP_SPEC,
    Api,
    begin,
    end,
    finished,
    ingest,
    metrics,
    started,
)

HOUR = 3600.0


def account(
    client: Client, folder: Path, *, price: float | None = None, **limits: float
) -> Launching:
    """Open the account as a new process does."""
    return Launching(
        client,
        Ledger(folder / "accounts", "default", client.server),
        AgentBudget(client, Limits(**limits), price=price),
        LaunchEstimates(client, price=price),
    )


def spec(name: str, hours: float = 1.0, **changes: Any) -> str:
    return json.dumps({**RUN_SPEC, "name": name, "time_limit_s": hours * HOUR, **changes})


def used(api: Api, run_id: str, hours: float, state: RunState | None = None) -> None:
    """Have the run's newest attempt use so many GPU-hours; end it if a state is given."""
    run = api.store.runs.get(run_id)
    attempt = begin(api.store, run_id, run.attempt + 1)
    ingest(api.store, attempt, started(run.attempt + 1) + metrics(1, 50))
    api.store.attempts.update(attempt, dispatched_at=time.time() - hours * HOUR)
    if state is not None:
        ingest(api.store, attempt, finished(50, state.value))
        api.store.attempts.update(attempt, exited_at=time.time(), exit={"code": 0})
        end(api.store, run_id, state)


def sweep_of_a_person(api: Api, client: Client) -> tuple[Sweep, Run, Run, Run]:
    """Launch a sweep without an account; its trials: one that failed, one that runs, one that waits."""
    sweep = client.sweep({**SWEEP_SPEC, "run": {**SWEEP_SPEC["run"], "time_limit_s": HOUR}})
    failed, running, waiting = sweep.runs()
    used(api, failed.id, 0.1, RunState.FAILED)
    used(api, running.id, 0.1)
    return sweep, failed, running, waiting
