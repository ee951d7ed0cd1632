"""Speed of the store: ingestion of metrics and reading of series, in one process, without HTTP.

    python tests/bench/store_ingest.py [--calls 200] [--points 1000000]

Ingestion: some clients (threads) append calls of 1,000 points each, every call flushed to disk
before it returns (``tracking_peers.py``: over HTTP, beside bare SQLite). Reading: one metric of so
many points, reduced to 500 buckets; best and median of several, from a cold process and a warm one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from lehr.store import Store
from lehr_testing.stores import begin, run_spec

POINTS_A_CALL = 1000
METRICS = 10


def call(step: int, metrics: int) -> bytes:
    """1,000 points as a trainer writes them: records of ``metrics`` values."""
    rng = random.Random(step)
    lines = []
    for place in range(POINTS_A_CALL // metrics):
        at = step + place
        values = {f"train/metric_{number}": rng.random() for number in range(metrics)}
        record = {"kind": "metrics", "time": 1.7e9 + at, "step": at, "tokens": at, "values": values}
        lines.append(json.dumps(record))
    return ("\n".join(lines) + "\n").encode()


def ingest(folder: Path, clients: int, calls: int, metrics: int) -> dict[str, Any]:
    """Points a second with so many clients, each on its own run."""
    a_call = POINTS_A_CALL // metrics
    data = [call(1 + number * a_call, metrics) for number in range(calls)]
    with Store.open(folder / f"home-{clients}-{metrics}") as store:
        attempts = [
            begin(store, store.runs.create(run_spec(f"r{number}")).id) for number in range(clients)
        ]
        waits: list[float] = []

        def send(attempt_id: str) -> None:
            offset = 0
            for chunk in data:
                begun = time.perf_counter()
                offset = store.streams.append(attempt_id, "events.jsonl", offset, chunk)
                waits.append(time.perf_counter() - begun)

        threads = [threading.Thread(target=send, args=(attempt.id,)) for attempt in attempts]
        begun = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wall = time.perf_counter() - begun
        stored = sum(
            info.points for attempt in attempts for info in store.series.metrics(attempt.run_id)
        )
        store._appender.call(lambda indexer: indexer.seal_all()).result()
        size = (store.home / "streams.db").stat().st_size
    sent = clients * calls * POINTS_A_CALL
    if stored != sent:
        raise AssertionError(f"{stored} points stored of {sent}")
    return {
        "clients": clients,
        "metrics_a_record": metrics,
        "points": sent,
        "points_per_s": round(sent / wall),
        "call_ms_p50": round(statistics.median(waits) * 1e3, 2),
        "call_ms_p99": round(statistics.quantiles(waits, n=100)[98] * 1e3, 2),
        "index_bytes_per_point": round(size / sent, 1),
    }


def series(folder: Path, count: int) -> dict[str, Any]:
    """Read a long series in each way that a chart requests it."""
    home = folder / "home-series"
    with Store.open(home) as store:
        attempt = begin(store, store.runs.create(run_spec("long")).id)
        offset, step = 0, 1
        begun = time.perf_counter()
        while step <= count:
            lines = [
                b'{"kind":"metrics","time":%d.5,"step":%d,"tokens":%d,"values":{"train/loss":%.9f}}'
                % (at, at, at * 100, 3.0 + random.random())
                for at in range(step, min(step + 5000, count + 1))
            ]
            data = b"\n".join(lines) + b"\n"
            offset = store.streams.append(attempt.id, "events.jsonl", offset, data)
            step += len(lines)
        wrote = time.perf_counter() - begun
    found: dict[str, Any] = {"points": count, "written_s": round(wrote, 2)}
    with Store.open(home) as store:
        ways: dict[str, dict[str, Any]] = {
            "steps": {},
            "tokens": {"x_axis": "tokens"},
            "seconds": {"x_axis": "time"},
            "smoothed": {"smoothing": 0.9},
            "zoomed_to_a_tenth": {"first": count * 0.4, "last": count * 0.5},
        }
        for way, options in ways.items():
            found[way] = timed(
                lambda options=options: store.series.read(attempt.run_id, "train/loss", **options)  # type: ignore[misc]
            )
        if store.series.read(attempt.run_id, "train/loss").total_points != count:
            raise AssertionError("points are missing")
    return found


def timed(act: Callable[[], Any], repeats: int = 9) -> dict[str, float]:
    seconds = []
    for _ in range(repeats):
        begun = time.perf_counter()
        act()
        seconds.append(time.perf_counter() - begun)
    return {
        "first_ms": round(seconds[0] * 1e3, 1),
        "median_ms": round(statistics.median(seconds) * 1e3, 1),
        "best_ms": round(min(seconds) * 1e3, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200, help="calls of 1,000 points a client")
    parser.add_argument("--points", type=int, default=1_000_000, help="points of the long series")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lehr-bench-") as name:
        folder = Path(name)
        found = {
            "cpus": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "ingest": [
                ingest(folder, clients, asked.calls, metrics)
                for clients, metrics in ((1, 1), (1, METRICS), (4, METRICS))
            ],
            "series": series(folder, asked.points),
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
