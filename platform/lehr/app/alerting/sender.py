"""Send the outbox's messages to webhooks and to devices.

One thread does it, with at most one message under way to each webhook. So a slow receiver delays
neither the server nor the messages to others. Only admins set addresses, so these may be anywhere.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import httpx

from lehr.app.alerting.push import PREFIX, Devices
from lehr.errors import LehrError
from lehr.store import Store
from lehr.store.secret_store import SecretStore
from lehr.store.tables import OutboxRow
from lehr.store.webhooks import for_host

_log = logging.getLogger("lehr.app.alerting")

AGAIN_AFTER_S = (5.0, 30.0, 120.0, 600.0)  # Waits before a message is sent again.
OLDEST_S = 86_400.0  # A message that waited longer, while the server was down, is out of date.
TIMEOUT_S = 10.0
"""For all of a delivery: the lookup of the host, the connection, and the answer's first lines."""
TOGETHER = 64  # Messages that are under way at a time, each to another webhook.
_FAULT_S = 5.0  # Pause after an unexpected fault, e.g. of the database.


class Undelivered(Exception):
    """A message did not arrive. ``again``: whether a later try may succeed; ``gone``: none will."""

    def __init__(self, message: str, *, again: bool = False, gone: bool = False) -> None:
        super().__init__(message)
        self.again, self.gone = again, gone


async def deliver(
    url: str,
    body: dict[str, Any] | None = None,
    *,
    headers: dict[str, str] | None = None,
    content: bytes | None = None,
) -> None:
    """Post ``body`` as JSON, or ``content``. Takes ``TIMEOUT_S`` at most, whatever happens.

    Raises:
        Undelivered: no answer, or its status is not 2xx.
    """
    client = httpx.AsyncClient(timeout=None, trust_env=False)  # noqa: S113 - one limit for all of it
    try:
        # The answer's body has no meaning here and may have no end.
        async with (
            asyncio.timeout(TIMEOUT_S),
            client,
            client.stream("POST", url, json=body, headers=headers, content=content) as answer,
        ):
            status = answer.status_code
    except TimeoutError as error:
        raise Undelivered(f"no answer within {TIMEOUT_S:g} s", again=True) from error
    except httpx.HTTPError as error:
        raise Undelivered(f"no answer: {error}", again=True) from error
    if not 200 <= status < 300:
        again = status == 429 or status >= 500
        raise Undelivered(f"answered {status}", again=again, gone=status in {404, 410})


class Sender:
    """Sends what is in the store's outbox: each message at least once.

    A message that was sent just when the server was killed is sent again; receivers recognize it by
    its ``id``.
    """

    def __init__(self, store: Store, secrets: SecretStore, devices: Devices) -> None:
        self._store = store
        self._secrets = secrets
        self.devices = devices
        self.results: dict[str, str] = {}
        """By webhook, since the start: what came of the last try to send a message."""
        self._new = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._under_way: dict[str, asyncio.Task[None]] = {}  # By the name of the webhook.
        self._ended = False
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._send_all()), name="webhooks", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop. What waits is sent after the next start."""
        self._ended = True
        self.wake()
        if self._thread.ident is not None:
            self._thread.join(timeout=15)

    def put(self, webhook: str, body: dict[str, Any]) -> None:
        """Record a message. In a transaction, call ``wake`` after it."""
        if not self._store.outbox.add(webhook, body):
            _log.warning("a message to the webhook %s was dropped: too many wait", webhook)
        self.wake()

    def wake(self) -> None:
        # Before there is a loop, and after it, nobody waits.
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._new.set)

    async def _send_all(self) -> None:
        self._loop = asyncio.get_running_loop()
        while not self._ended:
            self._new.clear()
            try:
                wait = self._begin_due()
            except Exception:  # noqa: BLE001 - logged; a fault must not end the thread
                _log.exception("the outbox of messages could not be handled")
                wait = _FAULT_S
            with suppress(TimeoutError):
                await asyncio.wait_for(self._new.wait(), wait)
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin_due(self) -> float | None:
        """Begin to send what is due; return the seconds until the next message is.

        None: there is none, or it waits for one that is under way, whose end wakes this thread.
        """
        while not self._ended and len(self._under_way) < TOGETHER:
            letter = self._store.outbox.next(without=self._under_way)
            if letter is None:
                return None
            assert letter.id is not None
            now = self._store.clock()
            if letter.due_at > now:
                return letter.due_at - now
            if now - letter.created_at > OLDEST_S:
                _log.warning("a message to %s was given up: it waited too long", letter.webhook)
                self._store.outbox.remove(letter.id)
                continue
            task = asyncio.get_running_loop().create_task(self._send(letter))
            self._under_way[letter.webhook] = task
        return None

    async def _send(self, letter: OutboxRow) -> None:
        """Send a message, and record the result; then the webhook's next one may follow."""
        assert letter.id is not None
        try:
            again_at = await self._try(letter)
            if again_at is None:
                self._store.outbox.remove(letter.id)
            else:
                self._store.outbox.postpone(letter.id, again_at)
        except Exception:  # noqa: BLE001 - logged; the message is sent again
            _log.exception("the outbox of messages could not be handled")
            await asyncio.sleep(_FAULT_S)
        finally:
            del self._under_way[letter.webhook]
            self._new.set()

    async def _try(self, letter: OutboxRow) -> float | None:
        """Send it; return when to try again, None if it arrived or never will."""
        name, result = letter.webhook, "arrived"
        try:
            if not name.startswith(PREFIX):
                url = self._secrets.values({"url": name})["url"]
                await deliver(url, for_host(letter.body, url))
            elif message := self.devices.message(name, letter.body):
                url, headers, content = message
                await deliver(url, headers=headers, content=content)
        except Undelivered as error:
            result = str(error)
            if error.gone and name.startswith(PREFIX):  # The person has switched it off.
                self.devices.remove(name)
                return None
            if error.again and letter.tries < len(AGAIN_AFTER_S):
                return self._store.clock() + AGAIN_AFTER_S[letter.tries]
            _log.warning("a message to the webhook %s was not delivered: %s", name, error)
        except LehrError as error:
            _log.warning("a message to the webhook %s was not sent: %s", name, error)
            result = str(error)
        except Exception:  # noqa: BLE001 - logged; one message must not end the thread
            _log.exception("a message to the webhook %s could not be sent", name)
            result = "not sent: the server's log has the reason"
        finally:
            tried = datetime.fromtimestamp(self._store.clock(), UTC)
            self.results[name] = f"{result} ({tried:%Y-%m-%d %H:%M} UTC)"
        return None
