"""How many live attempts one server carries: real HTTP on loopback, no training, no Ray.

Each attempt does what a shipper does: a heartbeat and what its training has written since, as often
as the server's answers ask for. The training writes one metrics record a second.
A person reads the list of runs twice a second. With ``--nodes``, the agents of as many nodes report,
as the bridge asks them to and hands their reports over: what they list, their GPUs, their machine.
Printed for each number of attempts: the server's
processor time in per cent of one core, the share of the records and heartbeats of that time which it
has stored and answered, the requests a second, what it refused by kind and status, the time from a
record to its storage, and the median and the 99th percentile of the answers. The clients run in a process of their own and take their share of
the same cores, so run it alone:

    python tests/bench/live_attempts.py --attempts 50 100 200 400 --seconds 30
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil

from lehr_testing.api import TOKEN
from lehr_testing.server import free_port

RECORD_S, PERSON_S = 1.0, 0.5
GPUS_A_NODE = 8
MEMORY = Path("/dev/shm")
RESTS_S = 5.0
"""Before measuring: the first heartbeats and records of all attempts come at once."""


class QuietBridge:
    """Never calls, and accepts every request; ``reports`` sends what agents would."""

    started = False

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def request(self, *_: Any, **__: Any) -> Future[Any]:
        return Future()


def reports(attempts: Sequence[Any], nodes: int, on_news: Any) -> None:
    """Hand over the reports of this many agents for ever, each at its own moment."""
    from lehr.control.liveness import report_s

    pause_s = report_s(nodes)
    lists: dict[str, dict[str, Any]] = {f"n{number}": {} for number in range(nodes)}
    for attempt in attempts:
        for share in attempt.placement:
            live = {"state": "live", "gpus": share["gpus"], "exit": None}
            lists.setdefault(share["node"], {})[attempt.id] = live
    gpus_now = [{"index": index, "utilization": 0.5} for index in range(GPUS_A_NODE)]
    gpus = [{"index": index, "name": "H100"} for index in range(GPUS_A_NODE)]
    members = [
        {"name": name, "ray_id": name, "address": "a", "gpus": GPUS_A_NODE, "alive": True}
        for name in lists
    ]
    on_news({"news": "members", "nodes": members})
    for name, listed in lists.items():
        hello = {"protocol": 4, "attempts": listed, "gpus": gpus, "cpus": 64}
        on_news({"news": "node", "name": name, "hello": hello})
    due = time.monotonic()
    while True:
        for name, listed in lists.items():
            report = {"attempts": listed, "draining": False, "gpus_now": gpus_now}
            line = json.dumps({"news": "node", "name": name, **report})
            on_news(json.loads(line))
            due = max(due + pause_s / len(lists), time.monotonic() - pause_s)
            time.sleep(max(0.0, due - time.monotonic()))


def token_of(attempt_id: str) -> str:
    return f"token-of-{attempt_id}"


def prepare(home: Path, attempts: int) -> list[str]:
    """Record runs with one live attempt each; return the attempts' ids."""
    from lehr.specs import load_spec
    from lehr.store import Store
    from lehr_testing.specs import run, text_corpus

    corpus = text_corpus(home.parent / f"{home.name}-corpus")
    spec = load_spec(run(corpus, "live", steps=1_000_000))
    found = []
    with Store.open(home) as store:
        for number in range(attempts):
            row = store.runs.create(spec)
            share = {"node": f"n{number // GPUS_A_NODE}", "gpus": [number % GPUS_A_NODE]}
            attempt_id = f"{row.id}-1"
            store.transitions.begin_attempt(
                row.id,
                placement=[share],
                resume_from=None,
                token_sha256=hashlib.sha256(token_of(attempt_id).encode()).hexdigest(),
            )
            store.attempts.update(attempt_id, dispatched_at=time.time())
            found.append(attempt_id)
    return found


def serve(home: Path, port: int, nodes: int) -> None:
    """The real application and dispatcher; only the connection to Ray is missing."""
    import uvicorn

    from lehr.app.presenters.cluster import ClusterPresenter
    from lehr.cluster import dispatcher as module
    from lehr.store import Store
    from lehr_api.app import create_app
    from lehr_api.services import assemble
    from lehr_api.settings import Settings

    # Before the dispatcher could be given its bridge, this was the way.
    module.BridgeClient = QuietBridge  # type: ignore[misc, assignment]
    given = {"make_bridge": QuietBridge} if hasattr(module, "Inbox") else {}

    @asynccontextmanager
    async def services(settings: Settings) -> AsyncIterator[Any]:
        with Store.open(home) as store:
            dispatcher = module.Dispatcher(
                store, home, ray_address="nowhere", server_url=settings.url, **given
            )
            views = ClusterPresenter(
                store, dispatcher.cluster, dispatcher.queue_order, embedded=False
            )
            opened = assemble(settings, store, dispatcher, views)
            opened.hub.start()
            dispatcher.start()
            if nodes:
                rows = store.attempts.list_open()
                report = partial(reports, rows, nodes, dispatcher._on_news)
                threading.Thread(target=report, daemon=True).start()
            opened.presenter.rounds.start()
            yield opened

    app = create_app(Settings(home=home, token=TOKEN, port=port), services=services)
    uvicorn.run(app, port=port, log_config=None, access_log=False, ws="none", timeout_keep_alive=20)


class Client:
    """HTTP/1.1 on one connection, as cheap as it can be: it shares the cores with the server."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = (
            f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n"
            "Lehr-Protocol: 1\r\nContent-Type: application/json\r\n"
        )
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a request; return the status and the body of the answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"{method} /api/v1{path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        lower = answer.lower()
        start = lower.index(b"content-length:") + 15
        content = await reader.readexactly(int(lower[start : lower.index(b"\r\n", start)]))
        return int(answer.split(b" ", 2)[1]), content


class Load:
    def __init__(self, port: int, attempts: list[str]) -> None:
        self.port = port
        self.attempts = attempts
        self.times: dict[str, list[float]] = {"heartbeat": [], "record": [], "person": []}
        self.refused: Counter[str] = Counter()
        self.stored = 0
        self.lags: list[float] = []
        self.asked: dict[str, float] = {}
        self.measuring = False

    async def timed(self, kind: str, client: Client, *request: Any) -> tuple[int, bytes]:
        began = time.perf_counter()
        status, content = await client.send(*request)
        if self.measuring:
            self.times[kind].append(time.perf_counter() - began)
            if status >= 400:
                self.refused[f"{kind} {status}"] += 1
        return status, content

    async def attempt(self, attempt: str, offset: float) -> None:
        """Do what the shipper of a training does that writes one record a second.

        The training does not wait for the server: what came while an answer was late, or was
        refused, is sent with the next.
        """
        client = Client(self.port, token_of(attempt))
        path = f"/attempts/{attempt}/streams/events.jsonl?offset="
        began = time.perf_counter()
        first = began + offset
        sent = count = 0
        pace = {"interval_s": 2.0, "send_s": 0.5}
        beat = send_at = first
        waiting = b""
        written: list[float] = []

        async def heartbeat() -> None:
            report = {"step": count, "elapsed_s": time.perf_counter() - began}
            status, content = await self.timed(
                "heartbeat",
                client,
                "POST",
                f"/attempts/{attempt}/heartbeat",
                json.dumps(report).encode(),
            )
            if status == 200:
                answer = json.loads(content)
                pace.update({key: answer[key] for key in pace if key in answer})

        async def send() -> None:
            nonlocal sent, count, waiting
            while (at := first + count * RECORD_S) <= time.perf_counter():
                waiting += record(count)
                written.append(at)
                count += 1
            if not waiting:
                return
            status, _ = await self.timed("record", client, "PUT", f"{path}{sent}", waiting)
            if status != 200:
                return
            sent += len(waiting)
            waiting = b""
            if self.measuring:
                self.stored += len(written)
                self.lags += [time.perf_counter() - one for one in written]
            written.clear()

        while True:
            await asyncio.sleep(max(0.0, min(beat, send_at) - time.perf_counter()))
            if time.perf_counter() >= beat:
                await heartbeat()
                self.asked = pace
                beat = time.perf_counter() + pace["interval_s"]
            if time.perf_counter() >= send_at:
                await send()
                send_at = time.perf_counter() + pace["send_s"]

    async def person(self) -> None:
        client = Client(self.port, TOKEN)
        await every(PERSON_S, 0.0, lambda _: self.timed("person", client, "GET", "/runs?limit=50"))

    async def run(self, seconds: float, measure: Any) -> None:
        tasks = [asyncio.create_task(self.person())]
        for number, attempt in enumerate(self.attempts):
            share = number / len(self.attempts)
            tasks.append(asyncio.create_task(self.attempt(attempt, share * RESTS_S)))
        await asyncio.sleep(2 * RESTS_S)
        self.measuring = True
        measure()
        await asyncio.sleep(seconds)
        self.measuring = False
        measure()
        failed = [task for task in tasks if task.done() and task.exception()]
        for task in tasks:
            task.cancel()
        if failed:
            raise RuntimeError(f"{len(failed)} clients failed") from failed[0].exception()


def record(number: int) -> bytes:
    """Return a training's record of this step; the first is that it has started."""
    if number == 0:
        return b'{"kind":"started","time":1.0,"schema_version":1,"attempt":1}\n'
    values = {
        "train/loss": 9.0 / number,
        "lr": 1e-3,
        "grad_norm": 1.0,
        "step_time_s": 1.0,
        "tokens_per_s": 65_536.0,
        "mfu": 0.4,
        "data_wait_s": 0.0,
        "memory/peak_bytes": 1e10,
    }
    tokens = number * 65_536
    made = {"kind": "metrics", "time": time.time(), "step": number, "tokens": tokens}
    return json.dumps({**made, "values": values}).encode() + b"\n"


async def every(period: float, offset: float, send: Any) -> None:
    """Call ``send(n)`` once a period; a late answer delays only what follows it."""
    due = time.perf_counter() + offset
    n = 0
    while True:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await send(n)
        n += 1
        due = max(due + period, time.perf_counter() - period)


def measure(attempts: int, seconds: float, on: Path | None, nodes: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=on) as folder:
        home, port = Path(folder, "home"), free_port()
        ids = prepare(home, attempts)
        server = subprocess.Popen(
            [
                *(sys.executable, __file__, "--serve", str(home)),
                *("--port", str(port), "--nodes", str(nodes)),
            ],
            env={**os.environ, "LEHR_HOME": str(home)},
        )
        try:
            found = asyncio.run(_measure(psutil.Process(server.pid), port, ids, seconds))
            return {"attempts": attempts, "nodes": nodes} | found
        finally:
            server.send_signal(signal.SIGKILL)
            server.wait()


async def _measure(
    server: psutil.Process, port: int, ids: list[str], seconds: float
) -> dict[str, Any]:
    for _ in range(300):
        try:
            await Client(port, TOKEN).send("GET", "/runs?limit=1")
            break
        except OSError:
            await asyncio.sleep(0.1)
    load, marks = Load(port, ids), []
    own = psutil.Process()

    def mark() -> None:
        used = [sum(one.cpu_times()[:2]) for one in (server, own)]
        marks.append((time.perf_counter(), *used))

    await load.run(seconds, mark)
    (began, server_0, own_0), (ended, server_1, own_1) = marks
    wall = ended - began
    sent = sum(len(times) for kind, times in load.times.items() if kind != "person")
    return {
        "server_core_percent": round(100 * (server_1 - server_0) / wall),
        "clients_core_percent": round(100 * (own_1 - own_0) / wall),
        "stored_percent_of_records": round(100 * load.stored * RECORD_S / len(ids) / wall),
        "asked_for": load.asked,
        "requests_per_s": round(sent / wall),
        "refused": dict(load.refused),
        "written_to_stored_ms_p50_p99": percentiles(load.lags),
        **{f"{kind}_ms_p50_p99": percentiles(times) for kind, times in load.times.items()},
        "server_rss_mb": round(server.memory_info().rss / 1e6),
    }


def percentiles(times: list[float]) -> list[float]:
    cuts = quantiles(times, n=100) if len(times) > 1 else [float("nan")] * 99
    return [round(1e3 * cuts[49], 1), round(1e3 * cuts[98], 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--attempts", type=int, nargs="+", default=[50, 100, 200])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument(
        "--on",
        type=Path,
        default=MEMORY if MEMORY.is_dir() else None,
        help="Folder for the server's home; by default in memory, so that no disk is measured.",
    )
    parser.add_argument("--nodes", type=int, default=0, help="Agents that report.")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, options.port, options.nodes)
        return
    for attempts in options.attempts:
        print(json.dumps(measure(attempts, options.seconds, options.on, options.nodes)), flush=True)


if __name__ == "__main__":
    main()
