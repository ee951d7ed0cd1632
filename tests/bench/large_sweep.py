"""How long a large sweep takes: to launch, to cancel, to show its first page.

    python tests/bench/large_sweep.py [--trials 5000] [--diff 16384]

The API in this process, without network and dispatcher. Prints JSON: for each request the seconds of
wall time and CPU, the longest time that the write lock was held, and the number of write
transactions. ``cancel, rest`` are the transitions that the dispatcher's next tick has to make, one
transaction each.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from lehr.control.lifecycle import Desired, RunState
from lehr.store import Store
from lehr.store.database import Database
from lehr_testing.api import RUN_SPEC, api_client

held: list[tuple[float, float]] = []
"""Wall time and CPU time of each hold of the write lock."""


def watch_lock() -> None:
    turn = Database._turn

    @contextmanager
    def watched(self: Database) -> Iterator[None]:
        with turn(self):
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                yield
            finally:
                held.append((time.perf_counter() - wall, time.thread_time() - cpu))

    Database._turn = watched  # type: ignore[method-assign]


def measured(act: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    held.clear()
    wall, cpu = time.perf_counter(), time.process_time()
    result = act()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    longest = max(held, default=(0.0, 0.0))
    found = {
        "wall_s": round(wall, 3),
        "cpu_s": round(cpu, 3),
        "lock_wall_s": round(longest[0], 3),
        "lock_cpu_s": round(longest[1], 3),
        "transactions": len(held),
    }
    return found, result


def apply_requests(store: Store) -> None:
    """Move the queued runs whose cancellation is requested, as the dispatcher does."""
    for run in store.runs.by_state({RunState.QUEUED}):
        if run.desired == Desired.CANCEL.value:
            store.transitions.apply(
                run.id,
                old=RunState.QUEUED,
                new=RunState.CANCELLED,
                attempt=run.attempt,
                cause="cancel",
                message="sweep cancelled",
                actor="dispatcher",
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--diff", type=int, default=16_384, help="bytes of the provenance's diff")
    options = parser.parse_args()
    spec = {
        "kind": "sweep",
        "name": "many",
        "parameters": {"train.seed": {"values": list(range(options.trials))}},
        "run": {"train": RUN_SPEC["train"]},
    }
    body = {"spec": spec, "provenance": {"git": {"diff": "x" * options.diff}}}
    headers = {"Idempotency-Key": "once"}
    watch_lock()
    results: dict[str, Any] = {"trials": options.trials, "diff_bytes": options.diff}
    with tempfile.TemporaryDirectory() as home, api_client(Path(home)) as (api, client):

        def post(path: str, **request: Any) -> Any:
            answer = client.post(f"/api/v1{path}", **request)
            assert answer.is_success, answer.text
            return answer

        def get(path: str) -> Any:
            answer = client.get(f"/api/v1{path}")
            assert answer.is_success, answer.text
            return answer

        results["create"], made = measured(lambda: post("/sweeps", json=body, headers=headers))
        again, same = measured(lambda: post("/sweeps", json=body, headers=headers))
        results["create, sent again"] = again
        sweep = made.json()["id"]
        assert same.json()["id"] == sweep
        results["first page"], page = measured(lambda: get(f"/sweeps/{sweep}"))
        results["first page"]["bytes"] = len(page.content)
        results["list of runs"], _ = measured(lambda: get("/runs?limit=100"))
        results["cancel"], _ = measured(lambda: post(f"/sweeps/{sweep}/cancel"))
        results["cancel, rest"], _ = measured(lambda: apply_requests(api.store))
        assert get(f"/sweeps/{sweep}").json()["counts"] == {"cancelled": options.trials}
        files = Path(home).glob("lehr.db*")
        results["lehr.db, MB"] = round(sum(path.stat().st_size for path in files) / 1e6, 1)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
