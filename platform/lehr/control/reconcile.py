"""Desired against observed: what to do about every open attempt and every process found.

Each tick compares the attempts that should be (rows that are open) with those that are (what the
nodes' agents list, what heartbeats say) and answers with actions. A restart of the server is an
ordinary tick: what lives is adopted, what is unknown is ended, what is missing is given up and
its run goes back to the queue.

Silence alone never ends an attempt: a server that cannot hear a worker does not know that it is
dead. It is lost when its node's agent answers and does not know it, or when Ray says that the
node is gone and the lease has run out.

Pure: values in, values out; durations are measured by the caller on monotonic clocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from lehr.control.lifecycle import Desired


class AttemptPhase(StrEnum):
    """How an agent found an attempt on its node."""

    LIVE = "live"
    """Its shim runs: training, or ending."""
    ENDED = "ended"
    """Its exit.json is written and no process is left; its streams may still be on their way."""


class StopLevel(StrEnum):
    """How hard a process is asked to end. Each step includes the one before."""

    ORDER = "order"
    """orders.json, read at the next step boundary."""
    TERM = "term"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class NodeSeen:
    name: str
    alive: bool
    """Ray counts it as a member."""
    answered: bool
    """Its agent has listed what it has, to this server's bridge."""
    attempts: Mapping[str, AttemptPhase] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """One that may still have processes, or bytes on their way."""

    id: str
    nodes: tuple[str, ...]
    wanted: bool
    """It is its run's newest attempt and the run is active; otherwise it is fenced."""
    desired: Desired = Desired.RUN
    over_time_limit: bool = False
    stalled: str | None = None
    """In words, that it heartbeats without stepping for longer than its spec allows."""
    dispatched: bool = False
    """An agent confirmed its start once."""
    in_flight: bool = False
    """A start call is under way, so what the agents list of it means nothing yet."""
    exited: bool = False
    """Its exit is recorded; only streams may still come."""
    ended_nodes: frozenset[str] = frozenset()
    """Nodes of a gang whose part has reported its end."""
    ended_well: bool = False
    """Each part of it that has ended did so by itself and without an error."""
    since_contact_s: float = 0.0
    """Since its last heartbeat; before the first, since its dispatch or creation."""
    silent_nodes: Mapping[str, float] = field(default_factory=dict)
    """The same for each node's part of it, where they differ."""
    heard: bool = False
    """A heartbeat, or a part of its events, came at least once."""
    since_request_s: float = 0.0
    """Since it was first asked to stop."""
    since_ended_s: float = 0.0
    """Since its agent first said that it had ended, or its exit was recorded."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long what is waited for, in seconds."""

    lease_s: float = 60.0
    """Without a heartbeat, on a node that Ray has lost: then it is lost too."""
    first_heartbeat_s: float = 300.0
    """Dispatched, but nothing was ever heard of it."""
    cancel_term_s: float = 6.0
    cancel_kill_s: float = 14.0
    """A cancelled run's GPUs must be free within 30 s."""
    pause_term_s: float = 300.0
    pause_kill_s: float = 900.0
    """Long enough to save 15 GB to slow storage."""
    gang_drain_s: float = 900.0
    """One node's part of a gang completed: until the others must have. The first may be saving."""
    collect_s: float = 20.0
    """Ended, but its shipper's word of it has not come: the agent's word is taken."""
    exit_grace_s: float = 10.0
    """Exited by its own word, while its agent's last list still has it living."""
    abandon_s: float = 24 * 3600.0
    """Exited, its node gone: the rest of its streams will not come."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Call the agents of its nodes: start it."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """It lives, though nobody noted that it was started: note it."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """Ask its processes on these nodes to end, this hard."""

    attempt_id: str
    nodes: tuple[str, ...]
    stop_level: StopLevel
    reason: str


@dataclass(frozen=True, slots=True)
class MarkLost:
    """Its processes are gone, or beyond reach for good: settle the run without its exit."""

    attempt_id: str
    cause: str
    message: str
    node: str | None = None
    """Whose fault it was, where that is known."""


@dataclass(frozen=True, slots=True)
class RecordExit:
    """It has ended, and its shipper cannot say so: take the agent's word."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class CloseAttempt:
    """Nothing more will come of it: close it."""

    attempt_id: str


Action = Launch | Adopt | StopAttempt | MarkLost | RecordExit | CloseAttempt


def reconcile(
    attempts: Sequence[OpenAttempt],
    nodes: Iterable[NodeSeen],
    timeouts: Timeouts = Timeouts(),
    *,
    membership_known: bool = True,
) -> list[Action]:
    """What to do now.

    Args:
        attempts: every open attempt in the record.
        nodes: every node that is or was a member.
        timeouts: the limits.
        membership_known: whether Ray answers. When its head is down, nobody knows who is a
            member, and no node counts as lost.
    """
    seen = {node.name: node for node in nodes}
    actions: list[Action] = []
    for attempt in attempts:
        actions.extend(_judge(attempt, seen, timeouts, membership_known=membership_known))
    actions.extend(_orphans({attempt.id for attempt in attempts}, seen.values()))
    return actions


def _judge(
    attempt: OpenAttempt,
    seen: Mapping[str, NodeSeen],
    timeouts: Timeouts,
    *,
    membership_known: bool,
) -> list[Action]:
    if attempt.in_flight:
        return []
    mine = [seen.get(name) or NodeSeen(name, alive=False, answered=False) for name in attempt.nodes]
    lost = [
        node.name
        for node in mine
        if membership_known and not node.alive and node.name not in attempt.ended_nodes
    ]
    found = {node.name: node.attempts[attempt.id] for node in mine if attempt.id in node.attempts}
    found |= dict.fromkeys(attempt.ended_nodes, AttemptPhase.ENDED)
    absent = [node.name for node in mine if node.answered and node.name not in found]
    live = tuple(name for name, state in found.items() if state is AttemptPhase.LIVE)

    if attempt.exited:
        return _after_exit(attempt, live, lost, absent, timeouts)
    for name in lost:
        if attempt.silent_nodes.get(name, attempt.since_contact_s) > timeouts.lease_s:
            return _lost(attempt, live, "node_lost", f"node {name} was lost", name)
    if not attempt.dispatched:
        return _undispatched(attempt, mine, live, absent)
    if absent:
        # An agent answers and has never heard of it: neither processes nor files are there.
        return _lost(attempt, live, "shim_lost", f"no trace of it is left on node {absent[0]}")
    if found and not live and len(found) == len(attempt.nodes):
        return [RecordExit(attempt.id)] if attempt.since_ended_s > timeouts.collect_s else []
    actions: list[Action] = []
    if not attempt.wanted:
        actions += _stop(attempt, live, StopLevel.KILL, "superseded by another attempt")
    elif attempt.desired is not Desired.RUN or attempt.over_time_limit:
        actions += _stopping(attempt, live, timeouts)
    elif not attempt.heard and attempt.since_contact_s > timeouts.first_heartbeat_s:
        actions += _lost(
            attempt,
            live,
            "no_contact",
            f"started on {attempt.nodes[0]} {attempt.since_contact_s:.0f} s ago, and nothing was "
            "heard of it: can that node reach this server's address?",
            attempt.nodes[0] if len(attempt.nodes) == 1 else None,
        )
    elif attempt.stalled is not None:
        actions += _stop(attempt, live, StopLevel.KILL, attempt.stalled)
    elif len(live) < len(found) and not (
        attempt.ended_well and attempt.since_ended_s <= timeouts.gang_drain_s
    ):
        # A gang is whole or it is nothing: where one node's part ended, the others must.
        actions += _stop(attempt, live, _gang_stop_level(attempt), "another node's part ended")
    return actions


def _undispatched(
    attempt: OpenAttempt, mine: Sequence[NodeSeen], live: tuple[str, ...], absent: Sequence[str]
) -> list[Action]:
    if live and not absent:
        return [Adopt(attempt.id)]
    if not attempt.wanted or attempt.desired is not Desired.RUN:
        if not absent:
            return []
        # Stopped before anybody started it: there is no process to wait for.
        return _lost(attempt, live, "never_started", "stopped before it was started")
    if all(node.answered for node in mine):
        return [Launch(attempt.id)]
    return []


def _after_exit(
    attempt: OpenAttempt,
    live: tuple[str, ...],
    lost: Sequence[str],
    absent: Sequence[str],
    timeouts: Timeouts,
) -> list[Action]:
    if live and attempt.since_ended_s > timeouts.exit_grace_s:
        # Another node's part, or a fenced one that came back with its node.
        return _stop(attempt, live, StopLevel.KILL, "it has ended")
    gone = {*lost, *absent}
    if absent and gone >= set(attempt.nodes):
        return [CloseAttempt(attempt.id)]
    if gone >= set(attempt.nodes) and attempt.since_ended_s > timeouts.abandon_s:
        return [CloseAttempt(attempt.id)]
    return []


def _stopping(attempt: OpenAttempt, live: tuple[str, ...], timeouts: Timeouts) -> list[Action]:
    saves = attempt.desired is Desired.PAUSE or attempt.over_time_limit
    term, kill = (
        (timeouts.pause_term_s, timeouts.pause_kill_s)
        if saves and attempt.desired in {Desired.PAUSE, Desired.RUN}
        else (timeouts.cancel_term_s, timeouts.cancel_kill_s)
    )
    if attempt.since_request_s > kill:
        return _stop(attempt, live, StopLevel.KILL, "it did not stop when asked")
    if attempt.since_request_s > term:
        return _stop(attempt, live, StopLevel.TERM, "it did not stop when ordered")
    return []


def _gang_stop_level(attempt: OpenAttempt) -> StopLevel:
    return StopLevel.KILL if attempt.since_ended_s > 30 else StopLevel.TERM


def _stop(
    attempt: OpenAttempt, live: tuple[str, ...], stop_level: StopLevel, reason: str
) -> list[Action]:
    return [StopAttempt(attempt.id, live, stop_level, reason)] if live else []


def _lost(
    attempt: OpenAttempt,
    live: tuple[str, ...],
    cause: str,
    message: str,
    node: str | None = None,
) -> list[Action]:
    stop = _stop(attempt, live, StopLevel.KILL, message)
    return [*stop, MarkLost(attempt.id, cause, message, node)]


def _orphans(known: set[str], nodes: Iterable[NodeSeen]) -> list[Action]:
    """Live processes that no open attempt accounts for."""
    return [
        StopAttempt(attempt_id, (node.name,), StopLevel.KILL, "no open attempt")
        for node in nodes
        for attempt_id, state in node.attempts.items()
        if state is AttemptPhase.LIVE and attempt_id not in known
    ]
