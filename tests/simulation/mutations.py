"""One bug planted on purpose for each invariant; the simulation has to find it.

Each bug replaces one function or one constant of the product. ``given`` makes the plan of a seed
short and rich in what the invariant is about.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from lehr.cluster import dispatcher, executor, loader, run_cache
from lehr.control import (
    availability,
    campaign_record,
    finalize,
    gpu_board,
    lifecycle,
    nodes,
    queue,
    queue_entries,
    reconcile,
    retries,
    rollouts,
    saved_points,
    step,
)
from lehr.control.gpu_board import GpuBoard
from lehr.control.lifecycle import Desired, RunState
from lehr.store import scores
from lehr.store.database import Database
from lehr.store.records import runs, sweep_progress, transitions
from lehr.store.streams import appender, replica, replication
from simulation.plan import MACHINE_FAULTS, NODE_FAULTS, SERVER_FAULTS

Bug = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Mutation:
    invariants: tuple[str, ...]
    """The violations that prove it found; the first is the one it is planted for."""
    bug: Bug
    given: dict[str, Any] = field(default_factory=dict)
    seeds: int = 5  # It is found within so many seeds.


def plan(*faults: str, rate: float = 3.0, **given: Any) -> dict[str, Any]:
    """Return a short plan with these faults alone."""
    assert set(faults) <= {*NODE_FAULTS, *SERVER_FAULTS, *MACHINE_FAULTS}
    quiet = {
        "slow": 0.0,
        "loss": 0.0,
        "repeats": 0.0,
        "stubborn": 0.0,
        "failing": 0.0,
        "verbs": 0.0,
    }
    usual = {"nodes": (4,), "hours": 1.5, "pace": 0.15, "load": 0.9, "people": 0.0, "sweeps": 0.0}
    return {**usual, **quiet, "faults": dict.fromkeys(faults, rate), **given}


def replaced(owner: object, name: str, value: Any) -> Bug:
    return lambda: patch.object(owner, name, value)


def _judge(change: Callable[..., Any]) -> Bug:
    """Change what ``judge`` sees or returns. ``change`` takes the original first."""
    original = reconcile.judge

    def judge(*arguments: Any, **named: Any) -> Any:
        return change(original, *arguments, **named)

    return replaced(step.reconcile, "judge", judge)


def _start_again(original: Any, attempt: Any, *rest: Any, **named: Any) -> Any:
    found = original(attempt, *rest, **named)
    lost = any(isinstance(one, reconcile.MarkLost) and one.cause == "shim_lost" for one in found)
    return [reconcile.Launch(attempt.id)] if lost else found


def _gang_ended_well(original: Any, attempt: Any, *rest: Any, **named: Any) -> Any:
    found = original(attempt, *rest, **named)
    return [one for one in found if getattr(one, "reason", "") != "another node's part ended"]


def _not_stopped(original: Any, attempt: Any, *rest: Any, **named: Any) -> Any:
    if attempt.current and attempt.desired is not Desired.RUN and attempt.dispatched:
        return []
    return original(attempt, *rest, **named)


def _never_closed(original: Any, attempt: Any, *rest: Any, **named: Any) -> Any:
    found = original(attempt, *rest, **named)
    return [one for one in found if not isinstance(one, reconcile.CloseAttempt)]


@contextmanager
def _running_is_cancelled_at_once() -> Iterator[None]:
    """A transition that the table does not have."""
    original = lifecycle.transition_for_request
    table = {**lifecycle.TRANSITIONS}
    table[RunState.RUNNING] |= {RunState.CANCELLED}

    def decide(state: RunState, desired: Desired) -> RunState | None:
        if state is RunState.RUNNING and desired is Desired.CANCEL:
            return RunState.CANCELLED
        return original(state, desired)

    with (
        patch.dict(lifecycle.TRANSITIONS, table),
        patch.object(lifecycle, "transition_for_request", decide),
    ):
        yield


def _never_resumed(state: RunState, desired: Desired) -> RunState | None:
    found = _transition_for_request(state, desired)
    return None if found is RunState.QUEUED else found


_transition_for_request = lifecycle.transition_for_request


def _append_anywhere(self: Any, writing: Any, item: Any) -> Any:
    """Take bytes whatever their offset is."""
    stream = self.indexer.stream(item.attempt_id, item.name)
    return _append_one(self, writing, replace(item, offset=stream.size))


_append_one = appender.Appender._append_one


def _reserve_nothing(self: Any, run: Any) -> list[Any]:
    return []


def _exit_code_decides(ended: finalize.EndedAttempt) -> finalize.Outcome:
    if ended.report.code == 0 and ended.situation.wanted is Desired.RUN:
        return finalize.Outcome(RunState.COMPLETED, "completed")
    return _outcome(ended)


_outcome = finalize.outcome


def _no_limits(waiting: Any, active: Any, exited: Any) -> Any:
    return sorted(waiting, key=lambda run: (-run.priority, run.number)), {}


def _strict_exit(note: Any, listed: Any) -> Any:
    raise KeyError("code")


def _checkpoint_of_the_future(points: Any, base: str | None) -> str | None:
    found = _point_to_resume(points, base)
    return None if found is None else f"{found[:-3]}{int(found[-3:]) + 1:03d}"


_point_to_resume = saved_points.point_to_resume


def _every_gate_passes(*arguments: Any) -> Any:
    found = _judge_gate(*arguments)
    return None if found is None else replace(found, verdict="passed")


_judge_gate = rollouts.judge


def _never_durable(self: Any, *, durable: bool = True, what: str = "a write") -> Any:
    return _write(self, durable=False, what=what)


_write = Database.write


def _add_no_extension(self: Any, *arguments: Any, **named: Any) -> bool:
    return "spec" in named or _add_trials(self, *arguments, **named)


_add_trials = sweep_progress.SweepProgress.add_trials


def _miss_some(self: Any, run_id: str) -> None:
    if zlib.crc32(f"{run_id} {self._clock()}".encode()) % 10:
        _changed(self, run_id)


_changed = run_cache.RunCache.changed


class _Everything(frozenset[str]):
    def __contains__(self, _: object) -> bool:
        return True


def _nothing_is_reserved(campaign: Any, trials: Any) -> campaign_record.Ledger:
    return _ledger(campaign, trials)._replace(reserved=0.0)


_ledger = campaign_record.ledger


gangs = {"nodes": (2, 2), "gangs": 0.7}
node_ends = plan(node_ends=6.0, nodes=(2, 2))
MUTATIONS: dict[str, Mutation] = {
    "free GPUs are computed without what agents list": Mutation(
        ("gpu",),
        replaced(loader, "_orphans", lambda known, members: ()),
        plan("cut_off", "cut_from_server", rate=6.0, stubborn=0.5, failing=0.3),
        seeds=8,
    ),
    "an attempt that its agent has lost is started again": Mutation(
        ("twice",), _judge(_start_again), plan("power_off", rate=6.0)
    ),
    "the rest of a broken gang goes on": Mutation(
        ("gang", "stuck"), _judge(_gang_ended_well), plan("trainer_kill", rate=6.0, **gangs)
    ),
    "a running run is cancelled without stopping it": Mutation(
        ("transitions", "left_over"), _running_is_cancelled_at_once, plan(people=20.0)
    ),
    "a paused run cannot be resumed": Mutation(
        ("stuck",), replaced(lifecycle, "transition_for_request", _never_resumed), plan(people=20.0)
    ),
    "every budget covers another try": Mutation(
        ("budget",),
        replaced(retries.Budgets, "covers", lambda self, budget: True),
        plan(failing=0.6),
    ),
    "a training that ignores its orders is never killed": Mutation(
        ("requests",), _judge(_not_stopped), plan(people=30.0, stubborn=1.0)
    ),
    "an attempt of a lost node is never closed": Mutation(
        ("left_over",), _judge(_never_closed), plan("power_off", rate=6.0)
    ),
    "an append is taken at any offset": Mutation(
        ("bytes",), replaced(appender.Appender, "_append_one", _append_anywhere), plan(repeats=0.2)
    ),
    "a large run reserves nothing": Mutation(
        ("starvation",),
        replaced(GpuBoard, "reserve", _reserve_nothing),
        plan(load=2.5, hours=2.0, pace=0.05),
    ),
    "exit code 0 counts as completed": Mutation(
        ("completed",), replaced(finalize, "outcome", _exit_code_decides), plan(failing=1.0)
    ),
    "the limit of a sweep is ignored": Mutation(
        ("sweep_limit",), replaced(queue, "_within_sweep_limits", _no_limits), plan(sweeps=1.0)
    ),
    "an exit that only an agent reports cannot be read": Mutation(
        ("internal",),
        replaced(executor, "listed_exit", _strict_exit),
        plan("power_off", rate=6.0, **gangs),
    ),
    "a run resumes from a checkpoint that does not exist": Mutation(
        ("checkpoint",),
        replaced(run_cache, "point_to_resume", _checkpoint_of_the_future),
        plan("trainer_kill", rate=6.0),
    ),
    "time limits are not seen in advance": Mutation(
        ("overlooked",),
        replaced(dispatcher, "due_in_s", lambda snapshot: None),
        plan("power_off", "hang", rate=6.0, people=20.0, stubborn=0.5),
    ),
    "an attempt number is left out": Mutation(
        ("transitions", "internal"),
        replaced(transitions, "attempt_id", lambda run_id, number: f"{run_id}-{number + 1}"),
        plan(),
    ),
    "a run is deleted although a fork waits for its checkpoint": Mutation(
        ("fork",),
        replaced(runs, "waiting_forks", lambda session, run_id: []),
        plan(verbs=60.0, load=1.5),
        seeds=10,
    ),
    "the streams of a deleted run are kept": Mutation(
        ("deleted",),
        replaced(replication.Streams, "forget", lambda self, run_id: 0),
        plan(verbs=30.0),
    ),
    "an extension is confirmed and not recorded": Mutation(
        ("trials",),
        replaced(sweep_progress.SweepProgress, "add_trials", _add_no_extension),
        plan(verbs=30.0, sweeps=1.0),
    ),
    "a stage passes whatever its gates have seen": Mutation(
        ("rollout",), replaced(rollouts, "judge", _every_gate_passes), plan(verbs=40.0, failing=0.5)
    ),
    "a decision is not flushed": Mutation(
        ("durable",), replaced(Database, "write", _never_durable), plan("power_cut", rate=12.0)
    ),
    "bytes that a killed server left count without a flush": Mutation(
        ("durable", "internal", "bytes"),
        replaced(replica.Replica, "flush", lambda self, attempt_id, name: None),
        plan("power_cut", "server_kill", rate=30.0, load=1.3, hours=1.5),
        seeds=10,
    ),
    "any end of an attempt counts against its node": Mutation(
        ("excluded",), replaced(nodes, "FAULTS", _Everything()), plan(failing=0.5, nodes=(2, 2))
    ),
    "a run starts on a node that is near its end": Mutation(
        ("node_end",), replaced(availability, "too_short", lambda end, run: False), node_ends
    ),
    "one of ten changes of a run is missed": Mutation(
        ("stuck", "overlooked"), replaced(run_cache.RunCache, "changed", _miss_some), plan()
    ),
    "what a failed tick has read is forgotten": Mutation(
        ("rollout", "stuck", "overlooked"),
        replaced(loader.SnapshotLoader, "enqueue_all", lambda self: None),
        plan("server_disk_full", rate=20.0, sweeps=1.0, failing=0.3, verbs=40.0),
    ),
    "no evaluation makes room for a training": Mutation(
        ("evaluations",), replaced(step, "preemptions", lambda *given: []), plan(load=1.3)
    ),
    "what an evaluation has measured is not reported": Mutation(
        ("scores",), replaced(scores, "_OF_PROCESS", ("",)), plan()
    ),
    "what a campaign's trials may still use is not reserved": Mutation(
        ("campaign",),
        replaced(campaign_record, "ledger", _nothing_is_reserved),
        plan("trainer_kill", rate=4.0, campaigns=6.0, failing=0.2),
    ),
    "a run is placed wherever a GPU is free": Mutation(
        ("copies",),
        replaced(gpu_board, "reach", lambda saved, nodes: queue_entries.Reach(frozenset())),
        plan("trainer_kill", rate=8.0, nodes=(2, 2), storage=True, shared_storage=False),
    ),
}
