"""Networks that can be cut: a namespace behind a cable of its own, and a proxy that hangs up."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest


class Namespace:
    """A network namespace joined to this machine's by one virtual cable.

    ``device`` is the cable's name at both ends; ``here`` and ``there`` are its two addresses.
    """

    def __init__(self) -> None:
        tag = secrets.token_hex(3)
        self.name = f"lehr-{tag}"
        self.device = f"lv{tag}"
        net = f"10.{64 + secrets.randbelow(64)}.{secrets.randbelow(256)}"
        self.here, self.there = f"{net}.1", f"{net}.2"

    def make(self) -> None:
        """Create it; skip the test if the kernel does not allow it."""
        try:
            _ip("netns", "add", self.name)
            _ip("link", "add", self.device, "type", "veth", "peer", self.device, "netns", self.name)
        except (OSError, subprocess.CalledProcessError) as error:
            self.remove()
            words = getattr(error, "stderr", None) or str(error)
            pytest.skip(f"no network namespace can be made here: {words.strip()}")
        _ip("addr", "add", f"{self.here}/24", "dev", self.device)
        _ip("link", "set", self.device, "up")
        _ip("-n", self.name, "addr", "add", f"{self.there}/24", "dev", self.device)
        for device in (self.device, "lo"):
            _ip("-n", self.name, "link", "set", device, "up")
        _ip("-n", self.name, "route", "add", "default", "via", self.here)

    def remove(self) -> None:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            _ip("link", "del", self.device)
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            _ip("netns", "del", self.name)

    @property
    def command(self) -> list[str]:
        """Return the command line that runs a command inside."""
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Unplug the cable at this end: packets are dropped without an error."""
        _ip("link", "set", self.device, "down")

    def heal(self) -> None:
        _ip("link", "set", self.device, "up")
        # Taking the device down took the route with it, and at this end there is none to lose.
        _ip("-n", self.name, "route", "replace", "default", "via", self.here)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def namespace() -> Iterator[Namespace]:
    if os.geteuid() != 0:
        pytest.skip("a network namespace with a cable needs root")
    made = Namespace()
    made.make()
    try:
        yield made
    finally:
        made.remove()


class Proxy:
    """A TCP proxy that can close all connections, and accept none until it is healed."""

    def __init__(self, port: int) -> None:
        self.target = ("127.0.0.1", port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.is_cut = threading.Event()
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        self.is_cut.set()

    def heal(self) -> None:
        self.is_cut.clear()

    def close(self) -> None:
        self.stopping.set()
        self.thread.join()
        self.listener.close()

    def _serve(self) -> None:
        """One thread for all: pairs of sockets, each copied to the other."""
        chosen = selectors.DefaultSelector()
        chosen.register(self.listener, selectors.EVENT_READ)
        other: dict[socket.socket, socket.socket] = {}

        def hang_up(end: socket.socket) -> None:
            for one in (end, other.pop(end, None)):
                if one is not None:
                    other.pop(one, None)
                    with contextlib.suppress(KeyError, ValueError):
                        chosen.unregister(one)
                    one.close()

        while not self.stopping.is_set():
            if self.is_cut.is_set():
                for end in list(other):
                    hang_up(end)
                time.sleep(0.05)
                continue
            for key, _ in chosen.select(timeout=0.1):
                end = key.fileobj
                if end is self.listener:
                    near = self.listener.accept()[0]
                    try:
                        far = socket.create_connection(self.target, timeout=5)
                    except OSError:
                        near.close()
                        continue
                    for one, two in ((near, far), (far, near)):
                        other[one] = two
                        chosen.register(one, selectors.EVENT_READ)
                elif end in other:
                    try:
                        data = end.recv(65_536)
                        if not data:
                            raise ConnectionError
                        other[end].sendall(data)
                    except OSError:
                        hang_up(end)
        for end in list(other):
            hang_up(end)
        chosen.close()
