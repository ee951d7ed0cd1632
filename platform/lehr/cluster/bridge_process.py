"""One bridge process: what is written to it, and whether it still answers."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

log = logging.getLogger(__name__)

PING_EVERY_S = 5.0
HANGS_S = 30.0
"""A bridge that has not answered pings for so long hangs."""
START_S = 300.0
"""Limit for the first message: Ray connects in the meantime."""
STOP_S = 5.0


class BridgeProcess:
    """A bridge that runs. ``send`` never waits, even if the bridge reads nothing.

    A thread writes to it, since a full pipe would block. Another one sends pings, and kills a
    bridge that does not answer; the end of its output then ends ``lines``.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.hangs = False
        """It was killed because it did not answer."""
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
