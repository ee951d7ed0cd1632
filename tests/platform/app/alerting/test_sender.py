"""Messages are tried again where that makes sense, one that fails delays no other, none is lost."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from lehr.app.alerting import sender as module
from lehr.app.alerting.push import Devices
from lehr.app.alerting.sender import AGAIN_AFTER_S, Sender, Undelivered, deliver
from lehr.base import killpoints
from lehr.store import Store
from lehr.store.records import messages
from lehr.store.secret_store import SecretStore
from lehr.store.tables import OutboxRow
from lehr_testing.push import DEVICE
from lehr_testing.stores import fresh_store
from lehr_testing.waiting import until

NO_DEVICES = Devices(Path("/nonexistent"), url="http://127.0.0.1")


class Listener(BaseHTTPRequestHandler):
    """Keeps what is posted; answers with the status of its server."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.server.answer, json.loads(body)))
        self.send_response(self.server.answer)
        if self.server.answer == 302:
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/secret")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def listening(answer: int = 200) -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Listener)
    server.got, server.answer = [], answer
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    with fresh_store(tmp_path / "home", clock=clock) as found:
        yield found


def addresses(home: Path, **urls: str) -> SecretStore:
    """Return the secrets of a home, with these addresses."""
    secrets = SecretStore(home)
    for name, url in urls.items():
        secrets.set(name, url, by="user", at=0.0)
    return secrets


@pytest.fixture
def webhooks(tmp_path: Path) -> SecretStore:
    return addresses(tmp_path, good="http://good.test/x", bad="http://bad.test/x")


def sent(monkeypatch: pytest.MonkeyPatch, *, again: bool) -> list[str]:
    """Let messages to bad.test fail; return the hosts of all tries, as they happen."""
    tries: list[str] = []

    async def deliver(url: str, body: dict[str, Any]) -> None:
        tries.append(url.split("/")[2])
        if "bad" in url:
            raise Undelivered("no", again=again)

    monkeypatch.setattr(module, "deliver", deliver)
    return tries


def settled(store: Store) -> bool:
    return store.outbox.next() is None


def waiting(store: Store) -> list[OutboxRow]:
    """Return the messages of the outbox, the first of each webhook."""
    found: list[OutboxRow] = []
    while (one := store.outbox.next(without=[row.webhook for row in found])) is not None:
        found.append(one)
    return found


@pytest.mark.parametrize(("again", "tries"), [(True, 1 + len(AGAIN_AFTER_S)), (False, 1)])
def test_message_is_tried_again_only_where_that_may_help(
    store: Store, webhooks: SecretStore, monkeypatch: pytest.MonkeyPatch, again: bool, tries: int
) -> None:
    monkeypatch.setattr(module, "AGAIN_AFTER_S", (0.0,) * len(AGAIN_AFTER_S))
    found = sent(monkeypatch, again=again)
    sender = Sender(store, webhooks, NO_DEVICES)
    sender.start()
    try:
        sender.put("bad", {"text": "a"})
        until(lambda: found.count("bad.test") == tries, within_s=30, what="all tries")
        sender.put("good", {"text": "b"})
        until(lambda: settled(store), within_s=30, what="an empty outbox")
    finally:
        sender.stop()
    assert found == ["bad.test"] * tries + ["good.test"]
    results = {"bad": "no (1970-01-01 00:16 UTC)", "good": "arrived (1970-01-01 00:16 UTC)"}
    assert sender.results == results


def test_message_that_waits_for_another_try_delays_no_other(
    store: Store, webhooks: SecretStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = sent(monkeypatch, again=True)
    sender = Sender(store, webhooks, NO_DEVICES)
    sender.start()
    try:
        sender.put("bad", {})
        sender.put("missing", {})
        sender.put("good", {})
        until(lambda: found == ["bad.test", "good.test"], within_s=30, what="the other message")
        clock.now += AGAIN_AFTER_S[0]
        sender.wake()
        until(lambda: found.count("bad.test") == 2, within_s=30, what="the second try")
    finally:
        sender.stop()
    [left] = waiting(store)
    assert (left.webhook, left.tries) == ("bad", 2)
    assert left.due_at == clock.now + AGAIN_AFTER_S[1]


def test_message_that_waits_when_the_server_stops_is_sent_after_the_next_start(
    tmp_path: Path, clock: Clock
) -> None:
    """With a real receiver, which answers 503 until the server is started again."""
    with listening(503) as receiver:
        webhooks = addresses(tmp_path, chat=f"http://127.0.0.1:{receiver.server_port}/")
        with fresh_store(tmp_path / "home", clock=clock) as store:
            sender = Sender(store, webhooks, NO_DEVICES)
            sender.start()
            sender.put("chat", {"id": "r1:end:1", "text": "it ended"})
            until(lambda: len(receiver.got) == 1, within_s=30, what="the first try")
            sender.stop()
        receiver.answer = 200
        clock.now += AGAIN_AFTER_S[0]
        with Store.open(tmp_path / "home", clock=clock) as store:
            sender = Sender(store, webhooks, NO_DEVICES)
            sender.start()
            until(lambda: settled(store), within_s=30, what="an empty outbox")
            sender.stop()
    assert [(code, body["id"]) for code, body in receiver.got] == [
        (503, "r1:end:1"),
        (200, "r1:end:1"),
    ]


def test_stop_does_not_wait_for_a_receiver_that_never_answers(store: Store, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        webhooks = addresses(tmp_path, silent=f"http://127.0.0.1:{silent.getsockname()[1]}/")
        sender = Sender(store, webhooks, NO_DEVICES)
        sender.start()
        sender.put("silent", {"id": "a"})
        # Kept open: a connection that the receiver closes ends the try.
        connection, _ = silent.accept()
        with connection:
            sender.stop()
    # Otherwise its first try would have ended.
    assert [one.tries for one in waiting(store)] == [0]


def test_outbox_is_bounded_and_a_dead_receiver_takes_no_place_of_others(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "MOST", 2)
    assert [store.outbox.add("dead", {}) for _ in range(3)] == [True, True, False]
    assert store.outbox.add("good", {})


def test_message_and_what_it_is_about_are_recorded_together(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(point: str) -> None:
        if point == "transaction: before commit":
            raise KeyboardInterrupt

    monkeypatch.setattr(killpoints, "reached", die)
    with pytest.raises(KeyboardInterrupt), store.transaction():
        store.outbox.add("good", {})
    assert store.outbox.next() is None


@pytest.mark.parametrize(
    ("answer", "again"), [(500, True), (429, True), (404, False), (302, False)]
)
def test_answer_decides_whether_another_try_makes_sense(
    monkeypatch: pytest.MonkeyPatch, answer: int, again: bool
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # Proxies are not used.
    with listening(answer) as server:
        url = f"http://localhost:{server.server_port}/x"
        with pytest.raises(Undelivered, match=str(answer)) as caught:
            asyncio.run(deliver(url, {"a": 1}))
    assert server.got == [(answer, {"a": 1})], "a redirect is not followed"
    assert caught.value.again is again


@pytest.mark.parametrize("trickle", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_answer_that_never_ends_does_not_hold_the_sender(
    monkeypatch: pytest.MonkeyPatch, trickle: bytes
) -> None:
    """A receiver whose headers, or whose body, come byte by byte for ever."""
    monkeypatch.setattr(module, "TIMEOUT_S", 1.0)
    ended = threading.Event()

    def trickling(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(trickle)
            while not ended.wait(0.1):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=trickling, args=(server,), daemon=True)
        thread.start()
        url = f"http://localhost:{server.getsockname()[1]}/x"
        if trickle.endswith(b"\r\n\r\n"):
            asyncio.run(deliver(url, {}))
        else:
            with pytest.raises(Undelivered, match="no answer within 1 s") as caught:
                asyncio.run(deliver(url, {}))
            assert caught.value.again
        ended.set()
        thread.join(5)


def test_device_that_unsubscribed_is_forgotten_at_the_next_message(tmp_path, monkeypatch) -> None:
    with listening(410) as service, fresh_store(tmp_path / "home") as store:
        devices = Devices(tmp_path, url="")
        name = devices.put(DEVICE)
        real = module.deliver

        async def here(_: str, headers: dict[str, str], content: bytes) -> None:
            assert headers["Content-Encoding"] == "aes128gcm"
            await real(f"http://127.0.0.1:{service.server_port}/", {"bytes": len(content)})

        monkeypatch.setattr(module, "deliver", here)
        messages = Sender(store, SecretStore(tmp_path), devices)
        messages.start()
        messages.put(name, {"event": "test", "text": "it ended"})
        until(lambda: not list(devices.all()), within_s=30, what="no device")
        messages.stop()
    assert len(service.got) == 1
