"""Judge a history: the record, observations on the nodes, acknowledged requests.

Pure. ``check`` returns every rule that the history breaks, in words; nothing else decides whether
a fault test passed. ``lehr_testing.faults.evidence`` gathers a history from a server's home.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lehr.control.lifecycle import RunState
from lehr_testing.lifecycle import ACTIVE, is_move


@dataclass(frozen=True)
class RunRow:
    id: str
    name: str
    state: str
    attempt: int
    steps: int
    forked_at: int = 0
    """The step of the checkpoint that it starts from."""


@dataclass(frozen=True)
class Move:
    """One row of the record, in the order in which they were written."""

    run: str
    attempt: int
    old: str | None
    new: str


@dataclass(frozen=True)
class AttemptRow:
    id: str
    run: str
    number: int
    exited: bool
    given_up: bool
    """Its end was recorded without its exit report (its node was lost): it may still run, fenced."""
    open: bool


@dataclass(frozen=True)
class Launch:
    """One process of a training, by its own journal; seconds on the machine's monotonic clock."""

    attempt: str
    rank: int
    pid: int
    gpus: tuple[str, ...]
    """The lock files of its GPUs: unique over all nodes."""
    began: float
    seen: float
    """Time of its last journal entry: it lived at least so long."""


@dataclass(frozen=True)
class Stream:
    """The bytes of one stream, as the trainer wrote them and as the server has them."""

    attempt: str
    name: str
    written: bytes
    kept: bytes


@dataclass(frozen=True)
class Ack:
    """A request that was answered with success: ``submit``, or a verb's request."""

    what: str
    run: str


@dataclass(frozen=True)
class History:
    runs: Sequence[RunRow]
    moves: Sequence[Move]
    attempts: Sequence[AttemptRow] = ()
    launches: Sequence[Launch] = ()
    streams: Sequence[Stream] = ()
    series: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """By run, the steps of its merged series in the order in which it is read."""
    acknowledged: Sequence[Ack] = ()
    requests: Sequence[tuple[str, str]] = ()
    """(run, request), as recorded."""
    processes: Mapping[str, int] = field(default_factory=dict)
    """Attempts that have living processes, and how many."""
    held_locks: Mapping[str, str | None] = field(default_factory=dict)
    """GPU locks that are held, with the holding attempt if it is known."""


def check(history: History) -> list[str]:
    """Return every breach as a sentence; empty for a correct history."""
    return [
        *_acknowledged(history),
        *_moves(history),
        *_attempts(history),
        *_ends(history),
        *_launches(history),
        *_streams(history),
        *_series(history),
        *_left(history),
    ]


def _acknowledged(history: History) -> Iterator[str]:
    known = {run.id for run in history.runs}
    requests = set(history.requests)
    for ack in history.acknowledged:
        if ack.run not in known:
            yield f"lost: {ack.run} was acknowledged and is not recorded"
        elif ack.what != "submit" and (ack.run, ack.what) not in requests:
            yield f"lost: {ack.what} of {ack.run} was acknowledged and is not recorded"
    for name, number in Counter(run.name for run in history.runs).items():
        if number > 1:
            yield f"twice: {name} was submitted once and recorded {number} times"


def _moves(history: History) -> Iterator[str]:
    by_run = _grouped(history.moves)
    for run in history.runs:
        moves = by_run.get(run.id, [])
        if not moves or moves[0].old is not None:
            yield f"moves: {run.id} was never created"
            continue
        for before, after in itertools.pairwise(moves):
            if after.old != before.new:
                yield f"moves: {run.id} was {before.new} and moved from {after.old}"
            if after.attempt < before.attempt:
                yield f"fence: attempt {after.attempt} of {run.id} moved it after {before.attempt}"
            begins = after.old == RunState.QUEUED and after.new == RunState.STARTING
            if after.attempt - before.attempt != int(begins):
                yield f"attempts: {run.id} went from {before.attempt} to {after.attempt} unasked"
        for move in moves[1:]:
            if not is_move(move.old, move.new):
                yield f"moves: {run.id} moved from {move.old} to {move.new}"
        if (moves[-1].new, moves[-1].attempt) != (run.state, run.attempt):
            yield f"moves: {run.id} is {run.state}, and its last move went to {moves[-1].new}"


def _attempts(history: History) -> Iterator[str]:
    """Check one attempt per transition to ``starting``, each over before the next begins."""
    begun = Counter(m.run for m in history.moves if m.new == RunState.STARTING)
    for run in history.runs:
        mine = sorted((a for a in history.attempts if a.run == run.id), key=lambda a: a.number)
        if [a.number for a in mine] != list(range(1, run.attempt + 1)):
            yield f"attempts: {run.id} has {[a.number for a in mine]}, and is at {run.attempt}"
        if begun[run.id] != len(mine):
            yield f"attempts: {run.id} was started {begun[run.id]} times in {len(mine)} attempts"
        for one in mine[:-1]:
            if not one.exited:
                yield f"attempts: {one.id} has not ended, and the next one began"


def _ends(history: History) -> Iterator[str]:
    """Check that every run ends or is alive: an active run has processes, or will get them."""
    rows = {attempt.id: attempt for attempt in history.attempts}
    for run in history.runs:
        if run.state not in ACTIVE:
            continue
        newest = rows.get(f"{run.id}-{run.attempt}")
        if newest is None or (newest.exited and not history.processes.get(newest.id)):
            yield f"stuck: {run.id} is {run.state}, and nothing of it lives"


def _launches(history: History) -> Iterator[str]:
    rows = {attempt.id: attempt for attempt in history.attempts}
    for launch in history.launches:
        if launch.attempt not in rows:
            yield f"unknown: {launch.attempt} was trained and is not recorded"
    for number, group in _times(history.launches).items():
        if len(group) > 1:
            yield f"twice: rank {number[1]} of {number[0]} was started {len(group)} times"
    for one, other in _overlapping(history.launches):
        shared = sorted(set(one.gpus) & set(other.gpus))
        if shared and one.attempt != other.attempt:
            yield f"gpu: {one.attempt} and {other.attempt} were on {shared[0]} at one time"
        run, number = _parts(one.attempt)
        other_run, other_number = _parts(other.attempt)
        if run == other_run and number != other_number:
            older = min((one.attempt, other.attempt), key=lambda a: _parts(a)[1])
            if not (older in rows and rows[older].given_up):
                yield f"twice: {one.attempt} and {other.attempt} trained at one time"


def _streams(history: History) -> Iterator[str]:
    rows = {attempt.id: attempt for attempt in history.attempts}
    for stream in history.streams:
        row = rows.get(stream.attempt)
        where = f"{stream.attempt}/{stream.name}"
        if not stream.written.startswith(stream.kept):
            yield f"stream: {where} is kept otherwise than it was written"
        elif (
            row is not None and not row.open and not row.given_up and stream.kept != stream.written
        ):
            yield f"stream: {where} is closed, and {len(stream.written) - len(stream.kept)} bytes are missing"


def _series(history: History) -> Iterator[str]:
    for run in history.runs:
        steps = list(history.series.get(run.id, ()))
        own = run.steps - run.forked_at
        if run.state == RunState.COMPLETED and len(steps) < own:
            yield f"series: {run.id} completed {own} steps, and {len(steps)} are there"
        for before, after in itertools.pairwise([run.forked_at, *steps]):
            if after <= before:
                yield f"series: {run.id} has step {after} after {before}"
            elif after > before + 1:
                yield f"series: {run.id} has nothing between steps {before} and {after}"


def _left(history: History) -> Iterator[str]:
    states = {run.id: RunState(run.state) for run in history.runs}
    newest = {f"{run.id}-{run.attempt}" for run in history.runs}

    def wanted(attempt: str | None) -> bool:
        if attempt is None or attempt not in newest:
            return False
        return states[_parts(attempt)[0]].active

    for attempt, number in history.processes.items():
        if number and not wanted(attempt):
            yield f"left: {number} processes of {attempt}, which is over"
    for lock, attempt in history.held_locks.items():
        if not wanted(attempt):
            yield f"left: the lock {lock} is held" + (f" for {attempt}" if attempt else "")


def _grouped(moves: Iterable[Move]) -> dict[str, list[Move]]:
    found: dict[str, list[Move]] = defaultdict(list)
    for move in moves:
        found[move.run].append(move)
    return found


def _times(launches: Iterable[Launch]) -> dict[tuple[str, int], list[Launch]]:
    found: dict[tuple[str, int], list[Launch]] = defaultdict(list)
    for launch in launches:
        found[launch.attempt, launch.rank].append(launch)
    return found


def _overlapping(launches: Sequence[Launch]) -> Iterator[tuple[Launch, Launch]]:
    """Pairs in which one was seen after the start of the other."""
    for one, other in itertools.combinations(sorted(launches, key=lambda item: item.began), 2):
        if other.began < one.seen:
            yield one, other


def _parts(attempt_id: str) -> tuple[str, int]:
    run, _, number = attempt_id.rpartition("-")
    return run, int(number)
