"""The named points of ``lehr.base.killpoints``, by the scenario that reaches each."""

from __future__ import annotations


def around(*writes: str) -> list[str]:
    """Both sides of each commit."""
    return [f"{write}: {side} commit" for write in writes for side in ("before", "after")]


RUN = [
    *around("transaction", "begin_attempt", "update of dispatched_at", "apply_events"),
    *around("update of exit", "transition to completed", "close_attempt"),
    "append: before flush",
    "append: before commit",
    "append: after commit",
    "server: before a start request is sent",
    "server: after a start request is sent",
    "server: after a start is confirmed",
    "server: before a heartbeat is answered",
    "server: before a run is finalized",
    "server: before an exit report is answered",
    "bridge: before a start request",
    "bridge: after a start request",
    "bridge: after a start is answered",
    "agent: before an attempt is recorded",
    "agent: before a shim is started",
    "agent: after a shim is started",
    "shim: after the shim is registered",
    "shim: before the trainer is started",
    "shim: after the trainer is started",
    "shim: after the trainer has ended",
    "shim: before exit.json is written",
    "shim: after exit.json is written",
    "shipper: before a chunk is sent",
    "shipper: after a chunk is sent",
    "shipper: before orders are written",
    "shipper: before the exit report is sent",
    "shipper: after the exit report is sent",
    "shipper: before the delivery is recorded",
]
"""A run that trains and completes."""

FETCHING = [
    "code fetcher: after the download",
    "code fetcher: after the verification",
    "code fetcher: after the unpacking",
    "code fetcher: after an edited capsule is set aside",
    "code fetcher: after the rename",
]
"""A node fetches a capsule; tests/platform/node/test_code_fetcher.py kills it at each."""

BUILDING = [
    "environment builder: before packages are installed",
    "environment builder: before the environment is complete",
]
"""A node builds an environment; tests/platform/code/test_environments.py kills it at each."""

REQUEUE = around("transition to queued")
"""Its trainer fails once and has a retry."""

FAIL = around("transition to failed")
"""Its trainer fails, and it has none."""

CANCEL = around("request to cancel", "transition to stopping", "transition to cancelled")

IGNORED_CANCEL = [
    "server: before a stop request is sent",
    "bridge: before a stop request",
    "bridge: after a stop request",
    "bridge: after a stop is answered",
    "agent: before a shim is signalled",
]
"""A cancel that the training ignores, so the agent stops it, too."""

PAUSE = around("request to pause", "transition to paused", "request to run")
"""Paused, and resumed."""

PRUNE = around("prune_run", "transition to pruned")
"""A sweep whose worse half is ended early."""

TPE = around("add_trials")
"""A sweep that chooses its points as it goes."""

TRUNK = around("follow_trunk")
"""A sweep whose trials start from the last checkpoint of their trunk."""

STOP = around("stop_sweep")
"""A sweep whose trials all fail in one way."""

ROLLOUT = around("submit_stage_run", "record_verdicts", "pass_stage")
"""A rollout that passes all its stages."""

FAILED_ROLLOUT = around("end_rollout")
"""A rollout whose first stage fails."""

SCENARIOS = {
    "run": RUN,
    "requeue": REQUEUE,
    "fail": FAIL,
    "cancel": CANCEL,
    "ignored_cancel": IGNORED_CANCEL,
    "pause": PAUSE,
    "prune": PRUNE,
    "tpe": TPE,
    "trunk": TRUNK,
    "stop": STOP,
    "rollout": ROLLOUT,
    "failed_rollout": FAILED_ROLLOUT,
}
POINTS = [(scenario, point) for scenario, points in SCENARIOS.items() for point in points]

QUICK = [
    ("run", "begin_attempt: after commit"),
    ("run", "bridge: after a start request"),
    ("run", "agent: before a shim is started"),
    ("run", "shim: before exit.json is written"),
    ("cancel", "request to cancel: after commit"),
]
"""One a process, for the ordinary suite."""
