"""The server's side of the bridge: keeps one running, sends requests, receives news."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lehr.base import home as homes
from lehr.cluster import ray_head, ray_process
from lehr.errors import LehrError
from lehr.node import exit_report

log = logging.getLogger(__name__)

RESTART_S = (0.2, 10.0)  # Pause before the next bridge: doubled after each one that ended soon.
COMMAND = (sys.executable, "-P", "-m", "lehr.cluster.bridge")
SETTLED_S = 30.0  # A bridge that lived this long counts as healthy.


class BridgeDown(LehrError):
    """The bridge ended before it answered. Whether the agent acted is unknown."""


class AgentRefused(LehrError):
    """The agent answered with an error."""


@dataclass(eq=False, repr=False)
class BridgeClient:
    """A thread that keeps the Ray head (when it is Lehr's own) and a bridge to it running.

    Args:
        ray_address: an existing cluster, or None for an embedded head.
        gpus: how many GPUs the embedded head offers.
        node: the embedded head's node name.
        server_url: where shippers reach this server.
        runs_dir: the folder of runs, by the path that it has on every node.
        on_news: called with each news line, in the client's thread.
        on_state: called with ("starting" | "up" | "down", message).
    """

    home: Path
    _: KW_ONLY
    ray_address: str | None
    gpus: int
    node: str
    server_url: str
    runs_dir: Path
    on_news: Callable[[dict[str, Any]], None]
    on_state: Callable[[str, str | None], None]

    def __post_init__(self) -> None:
        self._ids = itertools.count(1)
        self._guard = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._bridge: BridgeProcess | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="bridge", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def started(self) -> bool:
        return self._thread.ident is not None

    def stop(self) -> None:
        """Stop the bridge. The head, the agents and all trainings continue."""
        self._stopping.set()
        with self._guard:
            bridge = self._bridge
        if bridge is not None:
            bridge.stop()
        self._thread.join(timeout=30)

    def request(self, op: str, node: str, **fields: Any) -> Future[Any]:
        """Send a request to a node's agent; the future has its answer, or an error.

        Does not wait, whatever the bridge does.
        """
        future: Future[Any] = Future()
        with self._guard:
            number = next(self._ids)
            bridge = self._bridge
            if bridge is None:
                future.set_exception(BridgeDown("the bridge to Ray is not up"))
                return future
            self._waiting[number] = future
            bridge.send(id=number, op=op, node=node, **fields)
        return future

    # -------------------------------------------------------------------------- the thread

    def _keep(self) -> None:
        pause = RESTART_S[0]
        message: str | None = None
        while not self._stopping.is_set():
            began = time.monotonic()
            # Else a Ray that never starts would look like one that needs a little more time.
            last = None if message is None else f"the last try failed: {message}"
            try:
                self.on_state("starting", last)
                message = self._one_life()
            except LehrError as error:
                message = str(error)
            except Exception as error:
                log.exception("the bridge could not be restarted")
                message = f"{type(error).__name__}: {error}"
            if self._stopping.is_set():
                return
            self.on_state("down", message)
            pause = (
                RESTART_S[0]
                if time.monotonic() - began > SETTLED_S
                else min(pause * 2, RESTART_S[1])
            )
            self._stopping.wait(pause)

    def _one_life(self) -> str:
        """Start a bridge and read its output until it ends. Return why it ended."""
        environment = dict(os.environ)
        address = self.ray_address
        head: ray_process.RayProcess | None = None
        if address is None:
            host = urlsplit(self.server_url).hostname
            # Other machines cannot use an address of this machine alone.
            public = None if host is None or homes.is_loopback(host) else host
            head = ray_head.ensure(self.home, self.gpus, node=self.node, public_host=public)
            address = head.address
            environment = {k: v for k, v in environment.items() if not k.startswith("RAY_")}
            environment |= ray_head.driver_environment(self.home)
        # Ray adds a driver's working folder to the import path of its workers.
        empty = self.home / "ray" / "empty"
        empty.mkdir(parents=True, exist_ok=True)
        logs = homes.logs_dir(self.home)
        logs.mkdir(parents=True, exist_ok=True)
        session = secrets.token_hex(8)
        with (logs / "bridge.log").open("ab") as errors:
            process = subprocess.Popen(
                [
                    *(*COMMAND, address, session, self.server_url),
                    *(self.node if head else "", str(self.runs_dir)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=empty,
                env=environment,
                start_new_session=True,  # Ctrl-C must only reach the server.
            )
        bridge = BridgeProcess(process)
        with self._guard:
            self._bridge = bridge
        if self._stopping.is_set():
            bridge.stop()  # ``stop`` came while Ray started, and had no bridge to end.
        if head is not None:
            threading.Thread(
                target=self._watch_head, args=(head, process), name="ray-head", daemon=True
            ).start()
        try:
            for message in bridge.lines():
                self._on_message(message)
        finally:
            with self._guard:
                self._bridge = None
                waiting, self._waiting = self._waiting, {}
            if process.poll() is None and not self._stopping.is_set():
                process.kill()
            code = process.wait()
            for future in waiting.values():
                future.set_exception(BridgeDown("the bridge to Ray ended"))
        if bridge.hangs:
            return f"the bridge to Ray did not answer for {HANGS_S:g} s; reconnecting"
        return f"the connection to Ray was lost (bridge exit {code}); reconnecting{_why(logs)}"

    def _watch_head(self, head: ray_process.RayProcess, bridge: subprocess.Popen[str]) -> None:
        """Stop the bridge when its head has ended; Ray itself would wait for a minute."""
        while bridge.poll() is None and not self._stopping.is_set():
            if not head.running():
                log.warning("the Ray head has ended")
                bridge.kill()
                return
            self._stopping.wait(1.0)

    def _on_message(self, line_data: dict[str, Any]) -> None:
        if "id" in line_data:
            with self._guard:
                future = self._waiting.pop(line_data["id"], None)
            if future is None:
                return
            if line_data["ok"]:
                future.set_result(line_data["result"])
            else:
                future.set_exception(AgentRefused(line_data["error"]))
            return
        if line_data["news"] == "up":
            self.on_state("up", None)
            return
        self.on_news(line_data)


def _why(logs: Path) -> str:
    lines = exit_report.last_bytes(str(logs / "bridge.log"), 2000).decode("utf-8", "replace")
    words = [line.strip() for line in lines.splitlines() if line.strip()]
    return f": {words[-1][:200]}" if words else ""


PING_EVERY_S = 5.0
HANGS_S = 30.0  # A bridge that has not answered pings for so long hangs.
START_S = 300.0  # Limit for the first message: Ray connects in the meantime.
STOP_S = 5.0


class BridgeProcess:
    """A bridge that runs. ``send`` never waits, even if the bridge reads nothing.

    A thread writes to it, since a full pipe would block. Another one sends pings, and kills a
    bridge that does not answer; the end of its output then ends ``lines``.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.hangs = False  # It was killed because it did not answer.
        self._heard_at = time.monotonic()
        self._up = False
        self._ended = threading.Event()
        self._outbox: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        for name, act in (("bridge-writer", self._write), ("bridge-pings", self._watch)):
            threading.Thread(target=act, name=name, daemon=True).start()

    def send(self, **message: Any) -> None:
        """Send a message. It is lost if the bridge ends before it reads it."""
        self._outbox.put(json.dumps(message))

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield the bridge's messages until it ends, without answers to pings."""
        assert self.process.stdout is not None
        try:
            for line in self.process.stdout:
                message = json.loads(line)
                news = message.get("news")
                if news in {"up", "pong"}:
                    self._heard_at, self._up = time.monotonic(), True
                if news != "pong":
                    yield message
        finally:
            self._ended.set()
            self._outbox.put(None)

    def stop(self) -> None:
        """End it: close its input, and kill it if it does not end."""
        self._outbox.put(None)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _write(self) -> None:
        stdin = self.process.stdin
        assert stdin is not None
        # A bridge that has ended takes nothing; its end is seen in ``lines``.
        with contextlib.suppress(OSError, ValueError):
            while (line := self._outbox.get()) is not None:
                stdin.write(line + "\n")
                stdin.flush()
        with contextlib.suppress(OSError, ValueError):
            stdin.close()

    def _watch(self) -> None:
        pings = 0
        heard_at = self._heard_at
        while not self._ended.wait(PING_EVERY_S):
            if heard_at != self._heard_at:
                heard_at, pings = self._heard_at, 0
            limit = HANGS_S if self._up else START_S
            silent = time.monotonic() - heard_at
            # A server that was itself frozen must first give the bridge time to answer.
            if silent > limit and pings * PING_EVERY_S >= limit:
                log.warning("the bridge to Ray has not answered for %.0f s: it is replaced", silent)
                self.hangs = True
                self.process.kill()
                return
            pings += 1
            if self._up:
                self.send(op="ping")
