"""Memory of the server as it serves many short runs, one after the other.

    python tests/bench/history_memory.py [--runs 2000] [--every 250] [--trace 0] [--json]

The real server (store, dispatcher, presenters, W&B mirror, HTTP on loopback), without Ray: an agent
in the server's process confirms each start. This process submits the runs and sends what a shipper
sends for a run of a second: heartbeats, ``started``, 20 metrics, a checkpoint, a log, the exit.
Every 25 runs it reads what a person's page reads. Prints the resident memory of the server after
each ``--every`` runs, the part that SQLite holds, and the slope over the last half in KB a run; at the
end also the memory without what the allocator kept of freed memory.

``--trace n`` lists the n lines of Python that grew most over the last half. The slope is then
that of a slower server with more memory: do not compare it.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import gc
import json
import multiprocessing as mp
import os
import queue
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
import tracemalloc
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx
import uvicorn

from lehr.cluster import dispatcher
from lehr_api.app import create_app
from lehr_api.settings import Settings
from lehr_testing.api import RUN_SPEC, TOKEN, line, metrics
from lehr_testing.server import free_port
from lehr_testing.waiting import until

GPUS = 4
"""Runs at the same time."""
STEPS = 20
LOOK_EVERY = 25


class Agent:
    """In place of ``BridgeClient``: one node whose agent confirms every start."""

    def __init__(self, home: Path, **given: Any) -> None:
        del home
        self._news, self._state = given["on_news"], given["on_state"]
        self._node, self._gpus = given["node"], given["gpus"]
        self._guard = threading.Lock()
        self._listed: dict[str, dict[str, Any]] = {}
        self.launched: Any = None
        """The pipe that gets each attempt's id and token."""
        self.started = False
        Agent.only = self

    only: Agent

    def start(self) -> None:
        self.started = True
        member = {"name": self._node, "ray_id": "r", "address": "127.0.0.1", "gpus": self._gpus}
        self._state("up", None)
        self._news({"news": "members", "nodes": [{**member, "alive": True}]})
        gpus = [
            {"index": index, "name": "logical GPU", "memory_bytes": None, "uuid": None}
            for index in range(self._gpus)
        ]
        hello = {"attempts": {}, "gpus": gpus, "cpus": 2}
        self._news({"news": "node", "name": self._node, "hello": hello})

    def stop(self) -> None: ...

    def request(self, op: str, node: str, **fields: Any) -> Future[Any]:
        del node
        done: Future[Any] = Future()
        if op == "start":
            launch = fields["launch"]
            listed = {"state": "live", "gpus": list(launch["gpus"]), "exit": None}
            with self._guard:
                self._listed[launch["attempt_id"]] = listed
                self.launched.send((launch["attempt_id"], launch["token"]))
        done.set_result("started")
        self._tell()
        return done

    def ended(self, attempt_id: str) -> None:
        with self._guard:
            self._listed.pop(attempt_id, None)
        self._tell()

    def _tell(self) -> None:
        with self._guard:
            listed = dict(self._listed)
        self._news({"news": "node", "name": self._node, "attempts": listed})


def resident_kb() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") // 1024


def sqlite_kb() -> int | None:
    """Memory that SQLite holds; None where its library cannot be asked."""
    for mapped in Path("/proc/self/maps").read_text().splitlines():
        path = mapped.rpartition(" ")[2]
        if "sqlite3" in path:
            library = ctypes.CDLL(path)
            if hasattr(library, "sqlite3_memory_used"):
                library.sqlite3_memory_used.restype = ctypes.c_int64
                return int(library.sqlite3_memory_used()) // 1024
    return None


def serve(home: Path, port: int, trace: int, orders: Any, launched: Any) -> None:
    # A default of the constructor: replacing the name in its module has no effect.
    dispatcher.Dispatcher.__init__.__kwdefaults__["make_bridge"] = Agent
    settings = Settings(home=home, token=TOKEN, port=port, gpus=GPUS)
    config = uvicorn.Config(
        create_app(settings), port=port, log_config=None, access_log=False, http="h11", ws="none"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    until(lambda: server.started, within_s=60, what="the server to listen")
    Agent.only.launched = launched
    orders.send("ready")
    before: tracemalloc.Snapshot | None = None
    while (order := orders.recv()) != "stop":
        if order == "memory":
            orders.send((resident_kb(), sqlite_kb()))
        elif order == "trim":
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            orders.send(resident_kb())
        elif order == "trace":
            tracemalloc.start(8)
            before = tracemalloc.take_snapshot()
            orders.send(None)
        elif order == "grown":
            grown = tracemalloc.take_snapshot()
            assert before is not None
            top = grown.compare_to(before, "traceback")[:trace]
            orders.send(["\n".join([str(one), *one.traceback.format()]) for one in top])
        else:
            Agent.only.ended(order)
    server.should_exit = True
    thread.join()


class Feeder:
    """Submits runs, and sends what their shippers send."""

    def __init__(self, address: str, orders: Any, launched: Any) -> None:
        self._address = address
        self._orders = orders
        self._guard = threading.Lock()
        self._launched: dict[str, queue.SimpleQueue[tuple[str, str]]] = {}
        self._local = threading.local()
        threading.Thread(target=self._receive, args=(launched,), daemon=True).start()

    def _receive(self, launched: Any) -> None:
        while True:
            try:
                attempt_id, token = launched.recv()
            except (EOFError, OSError):
                return
            self._of(attempt_id.rpartition("-")[0]).put((attempt_id, token))

    def _of(self, run_id: str) -> queue.SimpleQueue[tuple[str, str]]:
        with self._guard:
            return self._launched.setdefault(run_id, queue.SimpleQueue())

    def _http(self) -> httpx.Client:
        if not hasattr(self._local, "http"):
            self._local.http = httpx.Client(base_url=self._address, timeout=120, trust_env=False)
        return self._local.http  # type: ignore[no-any-return]

    def ask(self, what: str) -> Any:
        with self._guard:
            self._orders.send(what)
            return self._orders.recv()

    def run(self, number: int) -> str:
        http = self._http()
        people = {"Authorization": f"Bearer {TOKEN}"}
        spec = RUN_SPEC | {"name": f"run-{number}"}
        made = http.post(
            "/api/v1/runs",
            json={"spec": spec},
            headers=people | {"Idempotency-Key": uuid.uuid4().hex},
        )
        run_id: str = made.raise_for_status().json()["id"]
        attempt_id, token = self._of(run_id).get(timeout=120)
        with self._guard:
            del self._launched[run_id]
        worker = {"Authorization": f"Bearer {token}", "Lehr-Protocol": "1"}
        base = f"/api/v1/attempts/{attempt_id}"
        sizes: dict[str, int] = {}

        def append(data: bytes, name: str = "events.jsonl") -> None:
            at = sizes.get(name, 0)
            url = f"{base}/streams/{name}?offset={at}"
            sizes[name] = (
                http.put(url, content=data, headers=worker).raise_for_status().json()["offset"]
            )

        def post(route: str, body: dict[str, Any]) -> Any:
            answer = http.post(f"{base}/{route}", json=body, headers=worker)
            return answer.raise_for_status().json()

        post("heartbeat", {"elapsed_s": 0.1})
        append(line("started", attempt=1, device="cpu", parameters=1000, total_steps=STEPS))
        append(metrics(1, STEPS // 2))
        append(b"a line of the log\n" * 20, "rank-0.log")
        append(metrics(STEPS // 2 + 1, STEPS))
        post("heartbeat", {"step": STEPS, "elapsed_s": 1.0})
        path = f"attempt-1/checkpoints/step-{STEPS:08d}"
        saved = line(
            "checkpoint", step=STEPS, path=path, size=1000, digest="0" * 64, reason="final"
        )
        append(saved + line("finished", step=STEPS, outcome="completed"))
        exit_report = {"code": 0, "signal": None, "ended_at": time.time(), "reason": "exited"}
        answer = post("exit", {"exit": exit_report, "sizes": sizes})
        if not answer["closed"]:
            raise AssertionError(f"{attempt_id} is not closed: {answer}")
        with self._guard:
            self._orders.send(attempt_id)
        if number % LOOK_EVERY == 0:
            for page in ("runs?limit=100", f"runs/{run_id}", "cluster", f"runs/{run_id}/events"):
                http.get(f"/api/v1/{page}", headers=people).raise_for_status()
        return run_id

    def states(self) -> set[str]:
        answer = self._http().get(
            "/api/v1/runs?limit=100", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        return {run["state"] for run in answer.raise_for_status().json()["items"]}


def slope_kb(sizes: dict[int, int]) -> float:
    """KB a run over the last half, by least squares."""
    half = {at: kb for at, kb in sizes.items() if at >= max(sizes) / 2}
    return statistics.linear_regression(list(half), list(half.values())).slope


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--every", type=int, default=250)
    parser.add_argument("--trace", type=int, default=0, metavar="N")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    launched, launches = context.Pipe(duplex=False)
    port = free_port()
    rss: dict[int, int] = {}
    held: dict[int, int | None] = {}
    with tempfile.TemporaryDirectory(prefix="lehr-bench-") as home:
        server = context.Process(
            target=serve, args=(Path(home), port, options.trace, theirs, launches), daemon=True
        )
        server.start()
        assert ours.recv() == "ready"
        feeder = Feeder(f"http://127.0.0.1:{port}", ours, launched)
        rss[0], held[0] = feeder.ask("memory")
        with ThreadPoolExecutor(GPUS) as pool:
            for begin in range(0, options.runs, options.every):
                if options.trace and begin >= options.runs / 2 > begin - options.every:
                    feeder.ask("trace")
                last = min(begin + options.every, options.runs)
                list(pool.map(feeder.run, range(begin, last)))
                until(
                    lambda: pool.submit(feeder.states).result() == {"completed"},
                    within_s=60,
                    what="the runs to be completed",
                )
                rss[last], held[last] = feeder.ask("memory")
                if not options.json:
                    sqlite = held[last]
                    part = "" if sqlite is None else f"  SQLite {sqlite / 1024:6.1f} MB"
                    print(f"{last:>6,} runs  {rss[last] / 1024:7.1f} MB{part}", flush=True)
            grown = feeder.ask("grown") if options.trace else []
            trimmed = feeder.ask("trim")
            list(pool.map(partial(_close, feeder), range(GPUS)))
        ours.send("stop")
        server.join()
    found = {
        "runs": options.runs,
        "rss_kb": rss,
        "sqlite_kb": held,
        "trimmed_kb": trimmed,
        "kb_a_run": round(slope_kb(rss), 2),
        "sqlite_version": sqlite3.sqlite_version,
    }
    if options.json:
        print(json.dumps(found, indent=1))
        return
    for one in grown:
        print(one)
    print(f"{found['kb_a_run']} KB a run over the last half; {rss[0] / 1024:.1f} MB at the start")
    print(f"{trimmed / 1024:.1f} MB without free memory that the allocator kept")


def _close(feeder: Feeder, _: int) -> None:
    feeder._http().close()


if __name__ == "__main__":
    main()
