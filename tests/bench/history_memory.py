"""Memory of the server as it serves many short runs, one after the other.

    python tests/bench/history_memory.py [--runs 2000] [--every 250] [--limits N] [--types N]
        [--trace N] [--json]

The real server (store, dispatcher, presenters, W&B mirror, HTTP on loopback), without Ray: an agent
in the server's process confirms each start. This process submits the runs and sends what a shipper
sends for a run of a second: heartbeats, ``started``, 20 metrics, a checkpoint, a log, the exit.
Every 25 runs it reads what a person's page reads. Prints the resident memory of the server after
each ``--every`` runs, and what it consists of: SQLite's part, what malloc has given out and what it
keeps of freed memory, and the number of Python's memory blocks. Then their slopes over the last half,
a run; at the end also the memory without what the allocator kept of freed memory.

``--limits n`` lets no cache of the server keep more than n entries: what still grows is in none of
them. ``--types n`` lists the n types of which the last half added most objects, ``--trace n`` the
lines of Python that grew most. With ``--trace`` the slope is that of a slower server with more
memory: do not compare it.
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
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import httpx
import uvicorn

from lehr import lru
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


class Memory(NamedTuple):
    """In KB, but for the last."""

    resident: int
    sqlite: int | None
    """None where SQLite's library cannot be asked."""
    malloc_used: int
    """Of all arenas, with SQLite's. Python's small objects are elsewhere: in blocks."""
    malloc_free: int
    blocks: int
    """Of Python's allocator."""

    def line(self) -> str:
        sqlite = "" if self.sqlite is None else f"  SQLite {self.sqlite / 1024:5.1f} MB"
        return (
            f"{self.resident / 1024:7.1f} MB{sqlite}  malloc {self.malloc_used / 1024:5.1f} MB "
            f"and {self.malloc_free / 1024:5.1f} free  {self.blocks:,} blocks"
        )


class _Malloc(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def memory() -> Memory:
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Malloc
    found = ask()
    used, free = (found.uordblks + found.hblkhd) // 1024, found.fordblks // 1024
    return Memory(resident_kb(), sqlite_kb(), used, free, sys.getallocatedblocks())


def types() -> Counter[str]:
    gc.collect()
    return Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())


def limit_caches(entries: int) -> None:
    create = lru.Lru.__init__

    def limited(self: lru.Lru[Any, Any], size: int) -> None:
        create(self, min(size, entries))

    lru.Lru.__init__ = limited  # type: ignore[method-assign]


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


def serve(
    home: Path, port: int, limits: int, trace: int, listed: int, orders: Any, launched: Any
) -> None:
    if limits:
        limit_caches(limits)
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
    first: Counter[str] = Counter()
    while (order := orders.recv()) != "stop":
        if order == "memory":
            orders.send(tuple(memory()))
        elif order == "trim":
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            orders.send(resident_kb())
        elif order == "half":
            first = types() if listed else first
            if trace:
                tracemalloc.start(8)
                before = tracemalloc.take_snapshot()
            orders.send(None)
        elif order == "grown":
            most = (types() - first).most_common(listed) if listed else []
            grown = [f"{number:+,} {name}" for name, number in most]
            if before is not None:
                top = tracemalloc.take_snapshot().compare_to(before, "traceback")[:trace]
                grown += ["\n".join([str(one), *one.traceback.format()]) for one in top]
            orders.send(grown)
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
            # The server closes a connection after 5 s without a request: it must not be used again.
            limits = httpx.Limits(keepalive_expiry=2)
            self._local.http = httpx.Client(
                base_url=self._address, timeout=120, trust_env=False, limits=limits
            )
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


def slope(sizes: dict[int, int]) -> float:
    """Return the growth a run over the last half, by least squares."""
    half = {at: size for at, size in sizes.items() if at >= max(sizes) / 2}
    return round(statistics.linear_regression(list(half), list(half.values())).slope, 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--every", type=int, default=250)
    parser.add_argument("--limits", type=int, default=0, metavar="N")
    parser.add_argument("--types", type=int, default=0, metavar="N")
    parser.add_argument("--trace", type=int, default=0, metavar="N")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    context = mp.get_context("spawn")
    ours, theirs = context.Pipe()
    launched, launches = context.Pipe(duplex=False)
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="lehr-bench-") as home:
        given = (Path(home), port, options.limits, options.trace, options.types)
        server = context.Process(target=serve, args=(*given, theirs, launches), daemon=True)
        server.start()
        assert ours.recv() == "ready"
        feeder = Feeder(f"http://127.0.0.1:{port}", ours, launched)
        held: dict[int, Memory] = {0: Memory(*feeder.ask("memory"))}
        with ThreadPoolExecutor(GPUS) as pool:
            for begin in range(0, options.runs, options.every):
                if begin >= options.runs / 2 > begin - options.every:
                    feeder.ask("half")
                last = min(begin + options.every, options.runs)
                list(pool.map(feeder.run, range(begin, last)))
                until(
                    lambda: pool.submit(feeder.states).result() == {"completed"},
                    within_s=60,
                    what="the runs to be completed",
                )
                held[last] = Memory(*feeder.ask("memory"))
                if not options.json:
                    print(f"{last:>6,} runs  {held[last].line()}", flush=True)
            grown = feeder.ask("grown")
            trimmed = feeder.ask("trim")
            list(pool.map(partial(_close, feeder), range(GPUS)))
        ours.send("stop")
        server.join()
    slopes = {
        name: slope({at: getattr(one, name) for at, one in held.items()})
        for name in Memory._fields
        if held[0]._asdict()[name] is not None
    }
    if options.json:
        found = {
            "runs": options.runs,
            "memory": {at: one._asdict() for at, one in held.items()},
            "trimmed_kb": trimmed,
            "slopes": slopes,
            "sqlite_version": sqlite3.sqlite_version,
        }
        print(json.dumps(found, indent=1))
        return
    for one in grown:
        print(one)
    words = ", ".join(f"{name} {value}" for name, value in slopes.items())
    print(f"over the last half, a run (KB, and blocks): {words}")
    print(f"{held[0].resident / 1024:.1f} MB at the start; at the end {trimmed / 1024:.1f} MB")
    print("without free memory that the allocator kept")


def _close(feeder: Feeder, _: int) -> None:
    feeder._http().close()


if __name__ == "__main__":
    main()
