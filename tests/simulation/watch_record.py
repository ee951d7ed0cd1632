"""The invariants of the record: the history of each run, and the bytes of each stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lehr.store import Store
from lehr.store.streams.replica import SCORES
from lehr.store.tables import RunRow
from simulation.part import EVENTS, Part

if TYPE_CHECKING:
    from simulation.training import Training
    from simulation.watch import Watch

LEGAL = {
    (None, "queued"),
    *(("queued", new) for new in ("starting", "paused", "cancelled", "failed")),
    *(("starting", new) for new in ("running", "stopping", "failed", "queued")),
    *(("running", new) for new in ("stopping", "completed", "failed", "queued")),
    *(
        ("stopping", new)
        for new in ("paused", "queued", "cancelled", "pruned", "completed", "failed")
    ),
    *(("paused", new) for new in ("queued", "cancelled")),
    ("failed", "queued"),
}
"""Written down here once more: the product's own table may be wrong."""


@dataclass
class _Known:
    """What the transitions of a run have shown so far."""

    state: str | None = None
    attempt: int = 0
    used: int = 0  # Retries since a person last queued it, or an attempt progressed.
    why: str = ""


class HistoryWatch:
    """Checks each transition when the call that made it has returned."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._runs: dict[str, _Known] = {}
        self._last = 0  # The id of the last transition that was checked.

    def after_call(self) -> bool:
        """Check what the call has recorded. Return whether an attempt has begun."""
        rows = self._watch.world.server.store.db._raw.execute(
            "SELECT id, run_id, old, new, attempt, cause, actor FROM transitions"
            " WHERE id > ? ORDER BY id",
            (self._last,),
        ).fetchall()
        for number, run_id, *row in rows:
            self._last = number
            self._check(run_id, *row)
        return any(row[3] == "starting" for row in rows)

    def _check(
        self, run_id: str, old: str | None, new: str, attempt: int, cause: str, actor: str
    ) -> None:
        """It is legal, has the run's attempts in order, and keeps its budgets."""
        fail = self._watch.fail
        known = self._runs.setdefault(run_id, _Known())
        if old != known.state or (old, new) not in LEGAL:
            fail("transitions", f"{run_id}: {old} to {new} after {known.state}")
        if attempt != known.attempt + (new == "starting"):
            fail("transitions", f"{run_id}: attempt {attempt} after {known.attempt}")
        if new == "queued" and old is not None:
            self._check_requeued(run_id, known, old, attempt, actor)
        if new == "completed" and run_id not in self._watch.completed_runs:
            fail("completed", f"{run_id} is completed, and no trainer has completed it")
        known.state, known.attempt, known.why = new, attempt, cause

    def _check_requeued(
        self, run_id: str, known: _Known, old: str, attempt: int, actor: str
    ) -> None:
        store = self._watch.world.server.store
        run = store.runs.get(run_id)
        allowed = run.spec["retries"]
        if old == "stopping":
            # Only a run that allows it is paused for another one; the end of its node stops any.
            self._watch.world.count(f"stopped: {known.why}")
            if known.why not in {"node_until", *(("preempted",) * run.spec["preemptible"])}:
                self._watch.fail("transitions", f"{run_id}: {known.why} led to the queue")
        if actor == "user":
            known.used = 0
        elif old in {"starting", "running"}:
            known.used = 1 if attempt in _progressed(store, run_id) else known.used + 1
            if known.used > sum(allowed.values()):
                self._watch.fail("budget", f"{run_id}: {known.used} retries, {allowed} allowed")
        for name, column in (
            ("user", "user_failures"),
            ("infrastructure", "infrastructure_failures"),
            ("preemption", "preemptions"),
        ):
            if getattr(run, column) > allowed[name]:
                self._watch.fail("budget", f"{run_id}: {getattr(run, column)} {column}")

    def finally_(self, run: RunRow) -> None:
        """The row of the run, and its attempts, are what its transitions say."""
        store = self._watch.world.server.store
        known = self._runs.get(run.id, _Known())
        if (known.state, known.attempt) != (run.state, run.attempt):
            self._watch.fail("transitions", f"{run.id}: its row differs from its transitions")
        numbers = [row.number for row in store.attempts.of_run(run.id)]
        if numbers != list(range(1, run.attempt + 1)):
            self._watch.fail("transitions", f"{run.id} has attempts {numbers}")


def _progressed(store: Store, run_id: str) -> set[int]:
    """Return the attempts that have saved a newer checkpoint than all before them."""
    newest, found = -1, set()
    points = store.checkpoints.of_run(run_id, removed=True)
    for point in sorted(points, key=lambda point: (point.attempt, point.step)):
        if point.step > newest:
            newest = point.step
            found.add(point.attempt)
    return found


class BytesWatch:
    """Compares each piece of a stream with what was written, when the server has acknowledged it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._checked: dict[tuple[str, str], int] = {}
        """How many bytes of each stream were compared."""

    def acknowledged(self, part: Part, name: str, size: int) -> None:
        key = (part.attempt_id, name)
        begin = self._checked.get(key, 0)
        if size <= begin:
            return
        self._checked[key] = size
        streams = self._watch.world.server.store.streams
        if streams.read(part.attempt_id, name, begin, size - begin) != part.files[name][begin:size]:
            self._watch.fail("bytes", f"{part.attempt_id}/{name}: bytes {begin} to {size} differ")


def check_bytes(watch: Watch, training: Training) -> None:
    """Streams hold what was written, once; those of delivered parts hold all of it."""
    streams = watch.world.server.store.streams
    attempt_id = training.attempt_id
    found = {one.name: one for one in streams.of_attempt(attempt_id)}
    for name, content in training.written.items():
        part = _sender(training, name)
        stream = found.pop(name, None)
        size = stream.size if stream is not None else 0
        stored = streams.read(attempt_id, name, 0, size + 1) if stream is not None else b""
        if stored != bytes(content[:size]) or (stream is not None and stream.malformed):
            watch.fail("bytes", f"{attempt_id}/{name} differs from what was written")
        elif part is not None and part.delivered and size != len(content):
            watch.fail("bytes", f"{attempt_id}/{name}: {size} of {len(content)} bytes")
        elif name == EVENTS and stream is not None:
            _check_index(watch, training, stored)
    found.pop(SCORES, None)  # Of the server itself.
    if found:
        watch.fail("bytes", f"{attempt_id} has streams that nobody wrote: {sorted(found)}")


def _sender(training: Training, name: str) -> Part | None:
    rank = (
        0 if name in {EVENTS, "launcher.log"} else int(name.split("-")[1].split(".", maxsplit=1)[0])
    )
    return training.parts.get(rank)


def _check_index(watch: Watch, training: Training, stored: bytes) -> None:
    lines = stored.count(b'"kind": "metrics"')
    with watch.world.server.store.index.read() as connection:
        others = connection.execute(
            "SELECT count(*) FROM records JOIN runs ON runs.id = records.run"
            " WHERE runs.run=? AND attempt=?",
            (training.run_id, training.number),
        ).fetchone()[0]
    expected = stored.count(b"\n")
    if others not in {expected, expected - lines}:
        watch.fail(
            "bytes",
            f"{training.attempt_id}: {others} records in the index, {expected} lines "
            f"with {lines} of metrics",
        )
