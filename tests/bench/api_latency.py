"""Latency of the API while workers stream metrics and browsers subscribe.

    python tests/bench/api_latency.py [--trials 8] [--tabs 0 20 100] [--seconds 15] [--runs 1000]

One process serves, one streams as so many shippers do (a piece of metrics and a heartbeat a second
each), this one asks what people's pages ask, one request after the other. Prints JSON: for each
number of open tabs the latencies of each question, of the heartbeats, and the records taken in.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing as mp
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx

from lehr_testing.api import RUN_SPEC, TOKEN, attempt_token, begin, ingest, line, served, started
from lehr_testing.waiting import until

HEADERS = {"Authorization": f"Bearer {TOKEN}"}
HISTORY = 5_000
"""Steps that each live run has logged before."""


def metrics_of(step: int) -> bytes:
    values = {"train/loss": 10 / step, "step_time_s": 0.1, "tokens_per_s": 1e4, "train/lr": 1e-3}
    return line("metrics", step=step, tokens=step * 256, values=values)


def serve(home: Path, trials: int, runs: int, pipe: Any, done: Any) -> None:
    with served(home) as (api, address), httpx.Client(base_url=address, headers=HEADERS) as http:
        ids = []
        for n in range(math.ceil(runs / 1000)):
            seeds = list(range(n * 1000, min(runs, (n + 1) * 1000)))
            sweep = {
                "kind": "sweep",
                "name": f"many-{n}",
                "parameters": {"train.seed": {"values": seeds}},
                "run": {"train": RUN_SPEC["train"]},
            }
            http.post("/api/v1/sweeps", json={"spec": sweep}, timeout=120).raise_for_status()
        for _ in range(trials):
            run = http.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"]
            attempt = begin(api.store, run)
            ingest(api.store, attempt, started() + b"".join(map(metrics_of, range(1, HISTORY + 1))))
            ids.append(run)
        pipe.send((address, ids))
        while not done.is_set():
            if pipe.poll(0.2):
                pipe.recv()
                pipe.send(time.process_time())


def ship(address: str, run: str, stop: Any, out: list[float], count: list[int]) -> None:
    """As a shipper: a piece of the stream and a heartbeat, each second."""
    headers = {"Authorization": f"Bearer {attempt_token(run)}", "Lehr-Protocol": "1"}
    base = f"{address}/api/v1/attempts/{run}-1"
    step = HISTORY
    with httpx.Client(headers=headers, timeout=60, trust_env=False) as http:
        offset = http.get(f"{base}/streams").json()["offsets"]["events.jsonl"]
        while not stop.is_set():
            began = time.monotonic()
            data = b"".join(metrics_of(step + n) for n in range(1, 11))
            step += 10
            answer = http.put(f"{base}/streams/events.jsonl?offset={offset}", content=data)
            offset = answer.raise_for_status().json()["offset"]
            count[0] += 10
            heartbeat_at = time.monotonic()
            http.post(f"{base}/heartbeat", json={"step": step}).raise_for_status()
            out.append(time.monotonic() - heartbeat_at)
            stop.wait(max(0.0, 1.0 - (time.monotonic() - began)))


def workers(address: str, runs: list[str], stop: Any, pipe: Any) -> None:
    heartbeats: list[float] = []
    count = [0]
    threads = [
        threading.Thread(target=ship, args=(address, r, stop, heartbeats, count)) for r in runs
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(heartbeats) >= len(runs), within_s=120, what="a heartbeat of each worker")
    pipe.send("ready")
    for thread in threads:
        thread.join()
    pipe.send((heartbeats, count[0]))


def tabs(address: str, number: int, stop: Any, pipe: Any) -> None:
    """So many open event streams, read to the end of the bench."""
    received = [0] * number

    def listen(n: int) -> None:
        with (
            httpx.Client(headers=HEADERS, timeout=60, trust_env=False) as http,
            http.stream("GET", f"{address}/api/v1/stream") as answer,
        ):
            for text in answer.iter_lines():
                received[n] += text.startswith("event:")
                if stop.is_set():
                    return

    threads = [threading.Thread(target=listen, args=(n,), daemon=True) for n in range(number)]
    for thread in threads:
        thread.start()
    until(lambda: all(received), within_s=120, what="a greeting in each tab")
    pipe.send("ready")
    stop.wait()
    for thread in threads:
        thread.join(timeout=20)
    pipe.send(sum(received))


def ask(address: str, run: str, seconds: float) -> dict[str, list[float]]:
    questions = {
        "health": "/health",
        "runs, a page of 100": "/runs?limit=100",
        "run": f"/runs/{run}",
        "series, 500 points of 5,000": f"/runs/{run}/series?name=train/loss&points=500",
        "cluster": "/cluster",
    }
    taken: dict[str, list[float]] = {name: [] for name in questions}
    end = time.monotonic() + seconds
    with httpx.Client(headers=HEADERS, timeout=60, trust_env=False) as http:
        while time.monotonic() < end:
            for name, path in questions.items():
                began = time.monotonic()
                http.get(f"{address}/api/v1{path}").raise_for_status()
                taken[name].append(time.monotonic() - began)
            time.sleep(0.02)
    return taken


def cpu_of(server: Any) -> float:
    """CPU seconds that the server process has used."""
    server.send("cpu")
    return float(server.recv())


def summary(taken: list[float]) -> dict[str, float]:
    ordered = sorted(taken)

    def at(share: float) -> float:
        return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)

    return {
        "asked": len(ordered),
        "median_ms": round(1000 * statistics.median(ordered), 2),
        "p95_ms": at(0.95),
        "p99_ms": at(0.99),
        "most_ms": at(1.0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--tabs", type=int, nargs="+", default=[0, 20, 100])
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--runs", type=int, default=1000)
    options = parser.parse_args()
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as home:
        ours, theirs = context.Pipe()
        done = context.Event()
        server = context.Process(
            target=serve, args=(Path(home), options.trials, options.runs, theirs, done), daemon=True
        )
        server.start()
        address, runs = ours.recv()
        results: dict[str, Any] = {}
        for number in options.tabs:
            stop = context.Event()
            ours_w, theirs_w = context.Pipe()
            ours_t, theirs_t = context.Pipe()
            processes = [
                context.Process(target=workers, args=(address, runs, stop, theirs_w), daemon=True),
                context.Process(target=tabs, args=(address, number, stop, theirs_t), daemon=True),
            ]
            for process in processes:
                process.start()
            ours_w.recv()
            ours_t.recv()
            cpu, began = cpu_of(ours), time.monotonic()
            taken = ask(address, runs[0], options.seconds)
            share = (cpu_of(ours) - cpu) / (time.monotonic() - began)
            stop.set()
            heartbeats, records = ours_w.recv()
            received = ours_t.recv()
            for process in processes:
                process.join()
            results[f"{number} tabs"] = {
                **{name: summary(values) for name, values in taken.items()},
                "heartbeat": summary(heartbeats),
                "server_cpu_share": round(share, 3),
                "records": records,
                "events_heard": received,
            }
        done.set()
        server.join()
    print(json.dumps({"trials": options.trials, "runs": options.runs, **results}, indent=2))


if __name__ == "__main__":
    main()
