"""The named points of ``lehr.killpoints``, by the scenario in whose course each is reached."""

from __future__ import annotations


def around(*writes: str) -> list[str]:
    """Both sides of each commit."""
    return [f"{write}: {side} commit" for write in writes for side in ("before", "after")]


RUN = [
    *around("transaction", "begin_attempt", "note of dispatched_at", "apply_events"),
    *around("note of exit", "transition to completed", "close_attempt"),
    "append: before flush",
    "append: before commit",
    "append: after commit",
    "server: before a start is asked for",
    "server: after a start is asked for",
    "server: a start is confirmed",
    "server: before a heartbeat is answered",
    "server: before an exit is finalized",
    "server: before an exit is answered",
    "bridge: before start",
    "bridge: after start",
    "bridge: start answered",
    "agent: before an attempt is noted",
    "agent: before a shim is started",
    "agent: after a shim is started",
    "shim: registered",
    "shim: before the training is started",
    "shim: after the training is started",
    "shim: the training has ended",
    "shim: before the end is noted",
    "shim: after the end is noted",
    "shipper: before a piece is sent",
    "shipper: after a piece is sent",
    "shipper: before orders are written",
    "shipper: before the exit is sent",
    "shipper: after the exit is sent",
    "shipper: before the delivery is noted",
]
"""A run that trains and completes."""

REQUEUE = around("transition to queued")
"""Its trainer fails once and has a retry."""

FAIL = around("transition to failed")
"""Its trainer fails, and it has none."""

CANCEL = around("request to cancel", "transition to stopping", "transition to cancelled")

DEAF = [
    "server: before a stop is asked for",
    "bridge: before stop",
    "bridge: after stop",
    "bridge: stop answered",
    "agent: before a shim is woken",
]
"""A cancel that the training does not hear: it is asked by Ray's way, too."""

PAUSE = around("request to pause", "transition to paused", "request to run")
"""Paused, and resumed."""

PRUNE = around("prune_run", "transition to pruned")
"""A sweep whose worse half is ended early."""

TPE = around("add_trials")
"""A sweep that chooses its points as it goes."""

STOP = around("stop_sweep")
"""A sweep whose trials all fail in one way."""

ROLLOUT = around("submit_stage_run", "record_verdicts", "pass_stage")
"""A rollout that passes all its stages."""

SUNK = around("end_rollout")
"""A rollout whose first stage fails."""

SCENARIOS = {
    "run": RUN,
    "requeue": REQUEUE,
    "fail": FAIL,
    "cancel": CANCEL,
    "deaf": DEAF,
    "pause": PAUSE,
    "prune": PRUNE,
    "tpe": TPE,
    "stop": STOP,
    "rollout": ROLLOUT,
    "sunk": SUNK,
}
POINTS = [(scenario, point) for scenario, points in SCENARIOS.items() for point in points]

QUICK = [
    ("run", "begin_attempt: after commit"),
    ("run", "bridge: after start"),
    ("run", "agent: before a shim is started"),
    ("run", "shim: before the end is noted"),
    ("cancel", "request to cancel: after commit"),
]
"""One a process, for the ordinary suite."""
