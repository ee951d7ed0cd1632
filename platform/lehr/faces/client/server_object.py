"""What the client's runs, sweeps and rollouts have in common."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

from lehr.base.formats import ago
from lehr.errors import LehrError, UserError
from lehr.faces.client.transport import save
from lehr.faces.client.waiting import Wait, Waitable, until_ended
from lehr.faces.client.waiting import progress as shown_progress

if TYPE_CHECKING:
    from lehr.faces.client.transport import Transport


class Named(Protocol):
    """A view of a run, a sweep or a rollout."""

    id: str
    name: str
    note: str
    created_at: float

    @property
    def state(self) -> str: ...


View = TypeVar("View", bound=Named)
V = TypeVar("V")
_ASK_S = 5.0
"""Limit for an answer after Ctrl-C."""


def goes_on(name: str, identity: str) -> str:
    """Return what is true of a new object when the program that made it is stopped."""
    return (
        f"{name} ({identity}) is recorded, and goes on.\n"
        f"  Watch it: lehr watch {identity}        Stop it: lehr cancel {identity}"
    )


def recorded(transport: Transport, path: str, body: Mapping[str, Any], key: str | None) -> bytes:
    """Send a request that makes a new object, once by its idempotency key; return the answer.

    Raises:
        KeyboardInterrupt: the program was interrupted; with what is known to be recorded.
    """
    key = key or uuid.uuid4().hex
    try:
        return transport.post(path, body, idempotency_key=key)
    except KeyboardInterrupt:
        try:
            # The server may have it. Sent again with its key, it is recorded once.
            answer = transport.post(path, body, idempotency_key=key, within_s=_ASK_S, again=False)
        except UserError:
            raise
        except (KeyboardInterrupt, LehrError):
            raise KeyboardInterrupt("It may be recorded: lehr ls") from None
        made = json.loads(answer)
        raise KeyboardInterrupt(goes_on(made["name"], made["id"])) from None


class ObjectMethods(Generic[View]):
    """An object of a server as last read."""

    _places: ClassVar[str]
    """Its collection in addresses: runs, sweeps or rollouts."""

    def __init__(self, transport: Transport, view: View) -> None:
        self._transport = transport
        self.view = view

    def _detail_of(self, answer: bytes) -> View:
        """Parse the server's answer."""
        raise NotImplementedError

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def noun(self) -> str:
        """Return ``run``, ``sweep`` or ``rollout``."""
        return type(self).__name__.lower()

    @property
    def described(self) -> str:
        """Return kind, state and age: run, completed, 50 m ago."""
        return f"{self.noun}, {self.view.state}, {ago(self.view.created_at)}"

    @property
    def note(self) -> str:
        """Return the text that people wrote about it; at first the spec's notes."""
        return self.view.note

    @property
    def url(self) -> str:
        """Return the URL of its page on the dashboard."""
        return f"{self._transport.server}/{self._places}/{self.id}"

    def refresh(self) -> Self:
        """Read it again."""
        self.view = self._detail_of(self._transport.get(self._path))
        return self

    def unarchive(self) -> Self:
        """Show it in lists again."""
        return self._act("unarchive")

    def set_note(self, note: str) -> Self:
        """Replace its note; an empty text removes it. Runs of a sweep or rollout keep theirs."""
        answer = self._transport.put(f"{self._path}/note", {"note": note})
        self.view = self._detail_of(answer)
        return self

    def report(self, path: Path | str) -> Path:
        """Write a report to a file, as one HTML page that needs no network; return its path.

        It has the result with its figures, the cost, config and provenance.

        Raises:
            UserError: the file cannot be written.
        """
        return save(self._transport.get(f"{self._path}/report"), path)

    def _until_ended(
        self,
        watched: Waitable,
        view: Callable[[], V],
        timeout_s: float | None,
        progress: Callable[[V], None] | None,
    ) -> None:
        """Wait until it has ended; without ``progress`` show each view in notebook or terminal."""
        waiting = Wait(f"{self.noun} {self.name} ({self.id})", timeout_s)
        own = shown_progress(self.noun, self.name, self.url)
        until_ended(watched, waiting, nullcontext(progress) if progress else own, view)

    @property
    def _path(self) -> str:
        return f"/{self._places}/{self.id}"

    def _act(
        self, verb: str, body: dict[str, Any] | None = None, *, key: str | None = None
    ) -> Self:
        answer = self._transport.post(f"{self._path}/{verb}", body, idempotency_key=key)
        self.view = self._detail_of(answer)
        return self
