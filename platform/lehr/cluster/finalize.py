"""Finalize a run: carry out the transitions that follow from its attempt's exit, each fenced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lehr.control.lifecycle import Desired, RunState
from lehr.control.outcome import Outcome, outcome, path
from lehr.control.retries import SPENT, Budget, Budgets, ExitReport, FinishedReport, internal
from lehr.errors import InternalError
from lehr.store import Store
from lehr.store.tables import Attempt, RunRow

TIME_LIMIT = "time_limit"


def synthetic_exit(cause: str, message: str, at: float, node: str | None = None) -> dict[str, Any]:
    """Return an exit report for an attempt without its own exit.json. ``node``: the faulty node,
    if known.
    """
    return {
        "code": None,
        "signal": None,
        "reason": cause,
        "detail": message,
        "log_tail": message,
        "ended_at": at,
        "stand_in": True,
        "node": node,
    }


def merge_exit_reports(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the exit reports of a gang's parts, given by node rank. The first failure decides."""
    ranked = sorted(parts.values(), key=lambda part: float(part.get("ended_at") or 0.0))
    failed = [part for part in ranked if part.get("code") != 0]
    finished = [part["finished"] for part in ranked if part.get("finished")]
    return {
        **(failed or ranked)[0],
        "finished": finished[0] if finished else None,
        "parts": {rank: dict(part) for rank, part in parts.items()},
    }


def effective_desired(run: RunRow) -> Desired:
    """Return the desired state of the attempt. A run that is stopping stops, even if it was resumed
    meanwhile.
    """
    desired = Desired(run.desired)
    stopping = run.state == RunState.STOPPING.value and run.cause != TIME_LIMIT
    return Desired.PAUSE if stopping and desired is Desired.RUN else desired


def over_time_limit(run: RunRow) -> bool:
    return run.state == RunState.STOPPING.value and run.cause == TIME_LIMIT


def decide(run: RunRow, attempt: Attempt, ended: Mapping[str, Any]) -> Outcome:
    allowed = run.spec["retries"]
    used = {budget.value: int(getattr(run, field)) for budget, field in SPENT.items()}
    return outcome(
        desired=effective_desired(run),
        time_limit_s=run.spec.get("time_limit_s"),
        over_time_limit=over_time_limit(run),
        ended=ExitReport(
            code=ended.get("code"),
            signal=ended.get("signal"),
            reason=str(ended.get("reason") or ""),
            log_tail=str(ended.get("log_tail") or ""),
        ),
        finished=_finished(attempt.finished or ended.get("finished")),
        budgets=Budgets.left(allowed, used),
    )


def request_message(store: Store, run: RunRow) -> str | None:
    """Return the message of the request that currently applies to the run."""
    requests = store.requests.of_run(run.id)
    return requests[-1].message if requests and requests[-1].kind == run.desired else None


def finalize(store: Store, attempt_id: str) -> RunState | None:
    """Transition the run according to the attempt's exit. Return None if a newer attempt exists.

    If another thread changes the run meanwhile (the trainer's first record, a cancel), that
    transition stands, and the decision is made again from the new state.
    """
    for _ in range(10):
        attempt = store.attempts.get(attempt_id)
        run = store.runs.get(attempt.run_id)
        state = RunState(run.state)
        if run.attempt != attempt.number or not state.active:
            return None
        decided = decide(run, attempt, attempt.exit or {})
        if decided.message is None and decided.state in {RunState.PRUNED, RunState.CANCELLED}:
            decided = replace(decided, message=request_message(store, run))
        if _carry_out(store, run, state, decided):
            return decided.state
    raise InternalError(
        f"attempt {attempt_id}: could not finalize its run: its state changed during 10 tries"
    )


def give_up(store: Store, run_id: str, reason: str) -> None:
    """Fail a run that the server cannot handle. Its processes are then ended.

    A paused run stays paused: it holds no GPU, and only a person can continue it.
    """
    cause = internal(reason)
    for _ in range(10):
        run = store.runs.get(run_id)
        state = RunState(run.state)
        if state.ended or state is RunState.PAUSED:
            break
        if store.transitions.apply(
            run.id,
            old=state,
            new=RunState.FAILED,
            attempt=run.attempt,
            cause=cause.name,
            message=cause.message,
            actor="dispatcher",
        ):
            break
    for attempt in store.attempts.of_run(run_id):
        if attempt.open:
            store.attempts.close(attempt.id)


def _carry_out(store: Store, run: RunRow, state: RunState, decided: Outcome) -> bool:
    moves = path(state, decided.state)
    if not moves:
        raise InternalError(f"run {run.id}: there is no transition from {state} to {decided.state}")
    changes: dict[str, Any] = {}
    if decided.spends is not Budget.NONE:
        column = SPENT[decided.spends]
        changes[column] = getattr(run, column) + 1
    for new in moves:
        last = new is decided.state
        moved = store.transitions.apply(
            run.id,
            old=state,
            new=new,
            attempt=run.attempt,
            cause=decided.cause,
            message=decided.message if last else None,
            actor="dispatcher",
            set=changes if last else None,
        )
        if not moved:
            return False
        state = new
    return True


def _finished(record: Mapping[str, Any] | None) -> FinishedReport | None:
    if not record:
        return None
    return FinishedReport(
        outcome=str(record.get("outcome")),
        cause=record.get("cause"),
        message=record.get("message"),
        step=int(record.get("step") or 0),
    )
