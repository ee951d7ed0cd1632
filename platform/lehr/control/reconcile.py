"""Reconcile: compare open attempts with what is observed, and derive actions.

Each tick compares the open attempts of the store with the lists of the nodes' agents and with
heartbeats. A restart of the server is an ordinary tick: living attempts are adopted, orphans are
ended, missing attempts are given up and their runs queued again. An orphan is an attempt that this
record has closed. One that it never had is not in ``NodeSeen``: its record may have been lost.

Silence alone never ends an attempt, since a server that receives nothing cannot know that a worker
is dead. An attempt is lost when its node's agent answers and does not list it, or when Ray reports
the node as gone and the lease has expired.

Pure: values in, values out; the caller measures durations on monotonic clocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from lehr.control.error_patterns import lacks_space
from lehr.control.lifecycle import Desired
from lehr.errors import LehrError, NotFound

START_TRIES = 5
LONGEST_PAUSE_S = 30.0
GANG_KILL_S = 30.0
"""After one node's part of a gang ended: time for the others to stop by themselves."""


class AttemptPhase(StrEnum):
    """The state of an attempt in its agent's list."""

    LIVE = "live"  # Its shim runs: training, or ending.
    ENDED = "ended"
    """Its exit.json is written and no process is left; its streams may still be arriving."""


class StopLevel(StrEnum):
    """How forcefully a process is stopped. Each level includes the previous ones."""

    ORDER = "order"  # Through orders.json, read at the next step boundary.
    TERM = "term"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class NodeSeen:
    name: str
    alive: bool  # Ray counts it as a member.
    answered: bool  # Its agent has sent its list to the current bridge.
    attempts: Mapping[str, AttemptPhase] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Starts:
    """What has become of the start calls of an attempt so far."""

    rejected: int = 0  # Calls that an agent rejected. A broken bridge is no fault of the node.
    why: str = ""  # Why the last one was rejected.
    node: str | None = None  # The node that rejected it.
    since_failed_s: float | None = None
    """Since a call failed last, for whatever reason; None if none has."""
    impossible: Exception | None = None
    """Why no call can be made: the launch spec cannot be written."""


@dataclass(frozen=True, slots=True)
class OpenAttempt:
    """An attempt that may still have processes, or streams that are not complete."""

    id: str
    nodes: tuple[str, ...]
    current: bool  # It is its run's newest attempt and the run is active; otherwise it is fenced.
    desired: Desired = Desired.RUN
    over_time_limit: bool = False
    stall_limit_s: float | None = None
    """How long its spec allows heartbeats without a step; None: without limit."""
    since_step_s: float | None = None
    """Since its step number last grew; None before its first step."""
    dispatched: bool = False  # An agent has confirmed its start.
    in_flight: bool = False  # A start call is in progress, so the agents' lists mean nothing yet.
    starts: Starts = field(default_factory=Starts)  # What has become of earlier start calls.
    exited: bool = False  # Its exit is recorded; only streams may still arrive.
    ended: bool = False
    """Its exit is recorded, or a part of it has reported its exit or is listed as ended."""
    ended_nodes: frozenset[str] = frozenset()  # Nodes of a gang whose part has reported its exit.
    ended_well: bool = False  # Every part that has ended did so by itself and without an error.
    since_contact_s: float = 0.0
    """Since its last heartbeat; before the first, since its dispatch or creation."""
    silent_nodes: Mapping[str, float] = field(default_factory=dict)
    """The same for each node's part, where they differ."""
    contacted: bool = False  # At least one heartbeat or event has arrived.
    since_request_s: float = 0.0  # Since it first got an order to stop.
    stop_grace_s: float | None = None
    """Time that a program has to save before it is killed; None for Lehr's trainer."""
    since_ended_s: float = 0.0  # Since it was first seen that it has ``ended``.
    elapsed_s: float | None = None
    """Since its start, by its node's clock; before its first heartbeat, since it was first seen."""

    @property
    def run_id(self) -> str:
        return self.id.rpartition("-")[0]

    @property
    def asked_to_stop(self) -> bool:
        """Return whether it is to save and end, or to end."""
        return self.desired is not Desired.RUN or self.over_time_limit


@dataclass(frozen=True, slots=True)
class Timeouts:
    lease_s: float = 60.0
    """Ray has lost the node, and no heartbeat came for this long: the attempt is lost, too."""
    first_heartbeat_s: float = 300.0  # Limit for the first heartbeat or event after the start.
    cancel_term_s: float = 6.0
    cancel_kill_s: float = 14.0  # A cancelled run's GPUs must be free within 30 s.
    pause_term_s: float = 300.0
    pause_kill_s: float = 900.0  # Long enough to save 15 GB to slow storage.
    gang_drain_s: float = 900.0
    """How long the other nodes of a gang may take to save after one has completed."""
    collect_s: float = 20.0
    """It has ended, but its shipper has not reported it for this long: the agent's list counts."""
    exit_grace_s: float = 10.0
    """Time between a reported exit and a kill, if the agent still lists the attempt as living."""
    abandon_s: float = 24 * 3600.0
    """Its exit is recorded and its node is gone: close it without the rest of its streams."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Call the agents of its nodes to start it."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """It lives, but its start was not recorded: record it."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """Stop its processes on these nodes, at this level."""

    attempt_id: str
    nodes: tuple[str, ...]
    stop_level: StopLevel
    reason: str


@dataclass(frozen=True, slots=True)
class MarkLost:
    """Its processes are gone or out of reach for good: finalize the run without its exit."""

    attempt_id: str
    cause: str
    message: str
    node: str | None = None  # The faulty node, if known.


@dataclass(frozen=True, slots=True)
class RecordExit:
    """It has ended, but its shipper cannot report it: record the agent's report."""

    attempt_id: str


@dataclass(frozen=True, slots=True)
class CloseAttempt:
    """Close the attempt: nothing more will arrive."""

    attempt_id: str


Action = Launch | Adopt | StopAttempt | MarkLost | RecordExit | CloseAttempt


def judge(
    attempt: OpenAttempt,
    seen: Mapping[str, NodeSeen],
    timeouts: Timeouts,
    *,
    membership_known: bool,
) -> list[Action]:
    """Return the actions for one attempt. ``seen``: the nodes, by name."""
    if attempt.in_flight:
        return []
    mine = [seen.get(name) or NodeSeen(name, alive=False, answered=False) for name in attempt.nodes]
    lost = [
        node.name
        for node in mine
        if membership_known and not node.alive and node.name not in attempt.ended_nodes
    ]
    phases = {node.name: node.attempts[attempt.id] for node in mine if attempt.id in node.attempts}
    phases |= dict.fromkeys(attempt.ended_nodes, AttemptPhase.ENDED)
    absent = [node.name for node in mine if node.answered and node.name not in phases]
    live = tuple(name for name, state in phases.items() if state is AttemptPhase.LIVE)

    if attempt.exited:
        # A part that has reported its exit is gone once its agent no longer lists it.
        over = [
            node.name
            for node in mine
            if node.name in attempt.ended_nodes
            and attempt.id not in node.attempts
            and (node.answered or (membership_known and not node.alive))
        ]
        return _after_exit(attempt, live, [*lost, *over], absent, timeouts)
    for name in lost:
        if attempt.silent_nodes.get(name, attempt.since_contact_s) > timeouts.lease_s:
            return _lost(attempt, live, "node_lost", f"node {name} was lost", name)
    # Once a part has ended, a gang is not started again: that part would train twice.
    if not attempt.dispatched and not attempt.ended_nodes:
        return _undispatched(attempt, mine, live, absent)
    if absent:
        # Its agent answers and does not list it: neither processes nor files exist.
        return _lost(attempt, live, "shim_lost", f"node {absent[0]} has no trace of it")
    if phases and not live and len(phases) == len(attempt.nodes):
        return [RecordExit(attempt.id)] if attempt.since_ended_s > timeouts.collect_s else []
    # A gang runs completely or not at all: when one part has ended, the others must, too.
    broken = len(live) < len(phases) and not (
        attempt.ended_well and attempt.since_ended_s <= timeouts.gang_drain_s
    )
    gang_level = StopLevel.KILL if attempt.since_ended_s > GANG_KILL_S else StopLevel.TERM
    of_gang = _stop(attempt, live, gang_level, "another node's part ended")
    actions: list[Action] = []
    if not attempt.current:
        actions += _stop(attempt, live, StopLevel.KILL, "superseded by another attempt")
    elif attempt.asked_to_stop:
        stop = _stopping(attempt, live, timeouts)
        killed = any(action.stop_level is StopLevel.KILL for action in stop)
        # What is left of a broken gang cannot save, so it does not get the time for it.
        actions += of_gang if broken and not killed else stop
    elif not attempt.contacted and attempt.since_contact_s > timeouts.first_heartbeat_s:
        actions += _lost(
            attempt,
            live,
            "no_contact",
            f"started on {attempt.nodes[0]} {attempt.since_contact_s:.0f} s ago, but sent no "
            "heartbeat: can that node reach this server's address?",
            attempt.nodes[0] if len(attempt.nodes) == 1 else None,
        )
    elif (why := stalled(attempt)) is not None:
        actions += _stop(attempt, live, StopLevel.KILL, why)
    elif broken:
        actions += of_gang
    return actions


def stalled(attempt: OpenAttempt) -> str | None:
    """Return why an attempt counts as stalled by its spec, if so.

    A step counter that stands still means something only while heartbeats arrive.
    """
    limit_s, since_step_s = attempt.stall_limit_s, attempt.since_step_s
    if limit_s is None or since_step_s is None or since_step_s <= limit_s:
        return None
    if attempt.since_contact_s > limit_s:
        return None
    return f"no step for {since_step_s:.0f} s: stall_limit_s is {limit_s:g}"


def _undispatched(
    attempt: OpenAttempt, mine: Sequence[NodeSeen], live: tuple[str, ...], absent: Sequence[str]
) -> list[Action]:
    if live and not absent:
        return [Adopt(attempt.id)]
    if not attempt.current or attempt.desired is not Desired.RUN:
        if not absent:
            return []
        # Stopped before it was started: there is no process to wait for.
        return _lost(attempt, live, "never_started", "stopped before it was started")
    if not all(node.answered for node in mine):
        return []
    if (failure := start_failure(attempt.starts)) is not None:
        return _lost(attempt, live, *failure)
    return [Launch(attempt.id)] if pause_left_s(attempt.starts) <= 0.0 else []


def _after_exit(
    attempt: OpenAttempt,
    live: tuple[str, ...],
    gone: Sequence[str],
    absent: Sequence[str],
    timeouts: Timeouts,
) -> list[Action]:
    if live and attempt.since_ended_s > timeouts.exit_grace_s:
        # Another node's part, or a fenced one that came back with its node.
        return [*_stop(attempt, live, StopLevel.KILL, "it has ended")]
    all_gone = {*gone, *absent} >= set(attempt.nodes)
    if absent and all_gone:
        return [CloseAttempt(attempt.id)]
    if all_gone and attempt.since_ended_s > timeouts.abandon_s:
        return [CloseAttempt(attempt.id)]
    return []


def _stopping(attempt: OpenAttempt, live: tuple[str, ...], timeouts: Timeouts) -> list[StopAttempt]:
    term, kill = stop_limits_s(attempt, timeouts)
    if attempt.since_request_s > kill:
        return _stop(attempt, live, StopLevel.KILL, "it did not stop when requested")
    if attempt.since_request_s > term:
        return _stop(attempt, live, StopLevel.TERM, "it did not stop when ordered")
    return []


def stop_limits_s(attempt: OpenAttempt, timeouts: Timeouts) -> tuple[float, float]:
    """Return how long after the request an attempt gets SIGTERM, and when it is killed.

    The supervisor of a program kills it after its grace. What is decided here is for a supervisor
    that received the order late, or not at all.
    """
    saves = attempt.desired is Desired.PAUSE or attempt.over_time_limit
    term, kill = (
        (timeouts.pause_term_s, timeouts.pause_kill_s)
        if saves and attempt.desired in {Desired.PAUSE, Desired.RUN}
        else (timeouts.cancel_term_s, timeouts.cancel_kill_s)
    )
    if attempt.stop_grace_s is not None:
        kill = term + attempt.stop_grace_s + timeouts.cancel_kill_s - timeouts.cancel_term_s
    return term, kill


def _stop(
    attempt: OpenAttempt, live: tuple[str, ...], stop_level: StopLevel, reason: str
) -> list[StopAttempt]:
    return [StopAttempt(attempt.id, live, stop_level, reason)] if live else []


def _lost(
    attempt: OpenAttempt, live: tuple[str, ...], cause: str, message: str, node: str | None = None
) -> list[Action]:
    stop = _stop(attempt, live, StopLevel.KILL, message)
    return [*stop, MarkLost(attempt.id, cause, message, node)]


def orphans(known: Collection[str], nodes: Iterable[NodeSeen]) -> list[Action]:
    """Return actions for live processes of attempts that are not ``known`` as open."""
    return [
        StopAttempt(attempt_id, (node.name,), StopLevel.KILL, "no open attempt")
        for node in nodes
        for attempt_id, state in node.attempts.items()
        if state is AttemptPhase.LIVE and attempt_id not in known
    ]


def start_failure(starts: Starts) -> tuple[str, str, str | None] | None:
    """Return cause, message and node at fault if the attempt is not to be started any more."""
    error = starts.impossible
    if error is not None:
        # The only thing that a launch spec names and that can be gone is a secret.
        cause = "secret_removed" if isinstance(error, NotFound) else "launch_failed"
        return cause, error.message if isinstance(error, LehrError) else str(error), None
    if starts.rejected >= START_TRIES and pause_left_s(starts) <= 0.0:
        words = f"its node did not start it in {START_TRIES} tries: {starts.why}"
        cause = "disk_full" if lacks_space(starts.why) else "launch_failed"
        return cause, words, starts.node
    return None


def pause_left_s(starts: Starts) -> float:
    """Return the seconds until the next call; not positive if it may be made now."""
    if starts.since_failed_s is None:
        return 0.0
    return float(min(LONGEST_PAUSE_S, 2.0**starts.rejected)) - starts.since_failed_s
