"""Send messages to webhooks in a thread of their own, so that a slow one delays nothing else."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from lehr.alerting.delivery import Undelivered, post
from lehr.alerting.messages import for_host
from lehr.alerting.webhooks import Webhooks
from lehr.errors import LehrError

_log = logging.getLogger("lehr.alerting")

AGAIN_AFTER_S = (5.0, 30.0, 120.0, 600.0)
"""Waits before a message is sent again."""
MOST_WAITING = 1_000
"""Messages that wait; further ones are dropped and logged."""


@dataclass
class _Letter:
    webhook: str
    body: dict[str, Any]
    tries: int = 0
    due: float = 0.0
    """By the monotonic clock."""


class Sender:
    """Sends what is put into it. A message is lost if the server ends before it is sent."""

    def __init__(
        self,
        webhooks: Webhooks,
        *,
        allowed_hosts: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._webhooks = webhooks
        self._allowed = frozenset(allowed_hosts)
        self._clock = clock
        self._new: queue.Queue[_Letter | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._go, name="webhooks", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop. What waits is not sent."""
        if self._thread.ident is not None:
            self._new.put(None)
            self._thread.join(timeout=15)

    def put(self, webhook: str, body: dict[str, Any]) -> None:
        try:
            self._new.put_nowait(_Letter(webhook, body))
        except queue.Full:
            _log.warning("a message to the webhook %s was dropped: too many wait", webhook)

    def send_now(self, name: str, body: dict[str, Any]) -> None:
        """Send a message and wait for the answer.

        Raises:
            NotFound: there is no such webhook.
            Undelivered: it did not arrive.
        """
        webhook = self._webhooks.get(name)
        post(webhook.url, for_host(body, webhook.url), allowed_hosts=self._allowed)

    def _go(self) -> None:
        waiting: list[_Letter] = []
        while True:
            now = self._clock()
            nearest = min((letter.due for letter in waiting), default=None)
            try:
                wait = None if nearest is None else max(nearest - now, 0.0)
                letter = self._new.get(timeout=wait)
            except queue.Empty:
                letter = min(waiting, key=lambda one: one.due)
                waiting.remove(letter)
            if letter is None:
                return
            if self._failed(letter):
                waiting.append(letter)

    def _failed(self, letter: _Letter) -> bool:
        """Send it; return whether to try again."""
        try:
            self.send_now(letter.webhook, letter.body)
        except Undelivered as error:
            if error.again and letter.tries < len(AGAIN_AFTER_S):
                letter.due = self._clock() + AGAIN_AFTER_S[letter.tries]
                letter.tries += 1
                return True
            _log.warning("a message to the webhook %s was not delivered: %s", letter.webhook, error)
        except LehrError as error:
            _log.warning("a message to the webhook %s was not sent: %s", letter.webhook, error)
        except Exception:  # noqa: BLE001 - logged; one message must not end the thread
            _log.exception("a message to the webhook %s could not be sent", letter.webhook)
        return False
