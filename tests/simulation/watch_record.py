"""The invariants of the record: the history of each run, and the bytes of each stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr.store import Store
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


def check_history(watch: Watch, run: RunRow) -> None:
    """A run's transitions are legal, have its attempts in order, and keep its budgets."""
    store = watch.world.server.store
    state: str | None = None
    why = ""
    attempt = used = 0
    allowed = sum(run.spec["retries"].values())
    progressed = _progressed(store, run.id)
    for one in store.transitions.of_run(run.id):
        if one.old != state or (one.old, one.new) not in LEGAL:
            watch.fail("transitions", f"{run.id}: {one.old} to {one.new} after {state}")
        if one.attempt != attempt + (one.new == "starting"):
            watch.fail("transitions", f"{run.id}: attempt {one.attempt} after {attempt}")
        if (one.old, one.new) == ("stopping", "queued"):
            # Only a run that allows it is paused for another one; maintenance stops any.
            watch.world.count(f"stopped: {why}")
            allowed_why = {"maintenance", *(("preempted",) * run.spec["preemptible"])}
            if why not in allowed_why:
                watch.fail("transitions", f"{run.id}: {why} led to the queue")
        why = one.cause
        state, attempt = one.new, one.attempt
        if one.new == "queued" and one.actor == "user":
            used = 0
        elif one.new == "queued" and one.old in {"starting", "running"}:
            used = 1 if one.attempt in progressed else used + 1
            if used > allowed:
                watch.fail("budget", f"{run.id}: {used} retries, {allowed} allowed")
    if (state, attempt) != (run.state, run.attempt):
        watch.fail("transitions", f"{run.id}: its row differs from its transitions")
    numbers = [row.number for row in store.attempts.of_run(run.id)]
    if numbers != list(range(1, run.attempt + 1)):
        watch.fail("transitions", f"{run.id} has attempts {numbers}")
    for name, column in (
        ("user", "user_failures"),
        ("infrastructure", "infrastructure_failures"),
        ("preemption", "preemptions"),
    ):
        if getattr(run, column) > run.spec["retries"][name]:
            watch.fail("budget", f"{run.id}: {getattr(run, column)} {column}")


def _progressed(store: Store, run_id: str) -> set[int]:
    """Return the attempts that have saved a newer checkpoint than all before them."""
    newest, found = -1, set()
    points = store.checkpoints.of_run(run_id, removed=True)
    for point in sorted(points, key=lambda point: (point.attempt, point.step)):
        if point.step > newest:
            newest = point.step
            found.add(point.attempt)
    return found


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
