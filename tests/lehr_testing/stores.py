"""Stores for tests: fresh homes, started attempts, and records of trainers."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from lehr.control.lifecycle import RunState
from lehr.specs.run import RunSpec
from lehr.store import Store
from lehr.store.streams.appender import EndOfStream
from lehr.store.tables import Attempt


def run_spec(name: str = "a", **changes: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "name": name,
            "train": {
                "model": "tiny",
                "data": {"corpus": {"kind": "stdlib"}},
                "batch": {"sequences": 4, "sequence_length": 64},
                "steps": 10,
            },
            **changes,
        }
    )


@cache
def _template() -> Path:
    """An empty home, created once: creating the tables takes longer than the tests that need them."""
    folder = Path(tempfile.mkdtemp(prefix="lehr-template-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Store.open(folder).close()
    return folder


def fresh_store(home: Path, **options: Any) -> Store:
    """Open the store of a home, which may not exist yet."""
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "lehr.db").exists():
        for name in ("lehr.db", "streams.db"):
            shutil.copy(_template() / name, home / name)
    return Store.open(home, **options)


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder without a disk behind it, for tests that open a hundred stores."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


def crashed_copy(store: Store, home: Path) -> Path:
    """Copy the files of the home in their current state, as after a crash."""
    shutil.copytree(store.home, home, ignore=shutil.ignore_patterns("lehr.lock"))
    return home


def begin(store: Store, run_id: str, **changes: Any) -> Attempt:
    """Begin the next attempt of a queued run."""
    attempt = store.transitions.begin_attempt(
        run_id,
        placement=changes.get("placement", [{"node": "n1", "gpus": [0]}]),
        resume_from=changes.get("resume_from"),
        token_sha256="0" * 64,
    )
    assert attempt is not None
    return attempt


def new_attempt(store: Store, name: str = "a") -> Attempt:
    return begin(store, store.runs.create(run_spec(name)).id)


def next_attempt(store: Store, run_id: str) -> Attempt:
    """Requeue a run whose attempt was lost, and begin another."""
    run = store.runs.get(run_id)
    moved = store.transitions.apply(
        run_id,
        old=RunState(run.state),
        new=RunState.QUEUED,
        attempt=run.attempt,
        cause="node_lost",
        actor="dispatcher",
    )
    assert moved
    return begin(store, run_id)


def line(kind: str, time: float = 0.0, **fields: Any) -> bytes:
    return (json.dumps({"kind": kind, "time": time, **fields}) + "\n").encode()


def metrics(
    step: int, time: float | None = None, tokens: int | None = None, **values: Any
) -> bytes:
    """One metrics record; ``train_loss=...`` means ``train/loss``."""
    return line(
        "metrics",
        float(step) if time is None else time,
        step=step,
        tokens=step * 100 if tokens is None else tokens,
        values={name.replace("_", "/", 1): value for name, value in values.items()},
    )


def losses(*steps: int, of: int = 0) -> list[bytes]:
    """Return losses at these steps, whose values identify the attempt ``of``."""
    return [metrics(step, time=1000.0 * of + step, train_loss=of + step / 1000) for step in steps]


def ingest(store: Store, attempt_id: str, *lines: bytes, name: str = "events.jsonl") -> int:
    """Append at the end of a stream."""
    offset = store.streams.sizes(attempt_id).get(name, 0)
    return store.streams.append(attempt_id, name, offset, b"".join(lines))


def drawn(store: Store, run_id: str, **options: Any) -> dict[int, float]:
    """Return each point of a run's loss, by step."""
    series = store.series.read(run_id, "train/loss", exact=True, **options)
    return dict(zip(series.step, series.y, strict=True))


def replica(store: Store, attempt_id: str, name: str = "events.jsonl") -> bytes:
    """Read the server's copy of a stream."""
    return (store.home / "replica" / attempt_id / name).read_bytes()


def begin_append(store: Store, attempt_id: str, name: str, offset: int, data: bytes) -> EndOfStream:
    """Queue an append, and do not wait for it."""
    end = EndOfStream()
    store.streams.begin_append(attempt_id, name, offset, data, end.answer)
    return end


def picture(store: Store, run_id: str) -> dict[str, Any]:
    """Return everything that can be read of a run, for comparison; NaN equals NaN."""
    names = [info.name for info in store.series.metrics(run_id)]
    series = {
        f"{name} over {x_axis}": asdict(
            store.series.read(run_id, name, x_axis=x_axis, exact=True, with_superseded=True)
        )
        for name in names
        for x_axis in ("step", "tokens", "time")
    }
    found = {
        "metrics": [asdict(info) for info in store.series.metrics(run_id)],
        "series": series,
        "latest": {
            name: asdict(latest) for name, latest in store.series.latest([run_id])[run_id].items()
        },
        "trend": store.series.trend([run_id])[run_id],
        "records": [
            (attempt, record.model_dump_json()) for attempt, record in store.events.records(run_id)
        ],
        "streams": {
            attempt.id: [vars(stream) for stream in store.streams.of_attempt(attempt.id)]
            for attempt in store.attempts.of_run(run_id)
        },
    }
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def same(one: Any, other: Any) -> bool:
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
