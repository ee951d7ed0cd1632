"""What the client's runs, sweeps and rollouts have in common, and waiting for them."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from lehr.base import formats
from lehr.base.bundle import SUFFIX
from lehr.errors import LehrError, ServerUnavailable, UserError
from lehr.faces.client.notebook import live_display
from lehr.faces.client.transport import TIMEOUT_S, Transport, save
from lehr.schemas.rollouts import RolloutDetail, RolloutView
from lehr.schemas.runs import RunDetail, RunView
from lehr.schemas.sweeps import SweepDetail, SweepView

View = TypeVar("View", bound=RunView | SweepView | RolloutView)
Detail = TypeVar("Detail", bound=RunDetail | SweepDetail | RolloutDetail)
_ASK_S = 5.0
"""Limit for an answer after Ctrl-C."""
_PAUSE_S = 1.0


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


class ObjectMethods(Generic[View, Detail]):
    """An object of a server as last read."""

    _detail_type: ClassVar[type[Any]]

    def __init__(self, transport: Transport, view: View) -> None:
        self._transport = transport
        self.view = view

    @property
    def id(self) -> str:
        return self.view.id

    @property
    def name(self) -> str:
        return self.view.name

    @property
    def state(self) -> str:
        return self.view.state

    @property
    def ended(self) -> bool:
        raise NotImplementedError

    @property
    def detail(self) -> Detail:
        """Return the view with all that is known of it, such as its spec."""
        if not isinstance(self.view, self._detail_type):
            self.refresh()
        detail: Any = self.view
        return detail  # type: ignore[no-any-return]

    @property
    def noun(self) -> str:
        """Return ``run``, ``sweep`` or ``rollout``."""
        return type(self).__name__.lower()

    @property
    def described(self) -> str:
        """Return kind, state and age: run, completed, 50 m ago."""
        return f"{self.noun}, {self.view.state}, {formats.ago(self.view.created_at)}"

    @property
    def note(self) -> str:
        """Return the text that people wrote about it; at first the spec's notes."""
        return self.view.note

    @property
    def url(self) -> str:
        """Return the URL of its page on the dashboard."""
        return f"{self._transport.server}{self._path}"

    def refresh(self) -> Self:
        """Read it again."""
        return self._update(self._transport.get(self._path))

    def cancel(self) -> Self:
        """Stop it without saving: a run, or all runs of a sweep or rollout."""
        return self._act("cancel")

    def archive(self) -> Self:
        """Hide it from lists, once it has ended; a sweep with its runs. Nothing is deleted."""
        return self._act("archive")

    def unarchive(self) -> Self:
        """Show it in lists again."""
        return self._act("unarchive")

    def set_note(self, note: str) -> Self:
        """Replace its note; an empty text removes it. Runs of a sweep or rollout keep theirs."""
        return self._update(self._transport.put(f"{self._path}/note", {"note": note}))

    def report(self, path: Path | str) -> Path:
        """Write a report to a file, as one HTML page that needs no network; return its path.

        It has the result with its figures, the cost, config and provenance. A file ``*.lehr.html``
        also has spec, code, streams and record, for ``Client.open``.

        Raises:
            UserError: the file cannot be written.
        """
        noun = "bundles" if str(path).endswith(SUFFIX) else "reports"
        return save(b"".join(self._transport.pieces(f"/{noun}/{self.id}")), path)

    def wait(
        self, *, timeout_s: float | None = None, progress: Callable[[Detail], None] | None = None
    ) -> Self:
        """Wait until it has ended, at most ``timeout_s``. Interrupting only stops the waiting,
        never a run.

        ``progress`` is called with each new view; of a sweep of more than 1,000 trials, with those
        that train or failed. Without it, a notebook shows a live table, a terminal a line on
        stderr.

        Raises:
            TimeoutError: it had not ended in time.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        answered_at: float | None = None
        with nullcontext(progress) if progress else self._shown() as show:
            while True:
                try:
                    view = self._watched()
                except ServerUnavailable:
                    # A server that restarts must not end a wait of hours.
                    if answered_at is None or time.monotonic() - answered_at > TIMEOUT_S:
                        raise
                else:
                    answered_at = time.monotonic()
                    show(view)
                if self.ended:
                    return self
                left = _PAUSE_S if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    what = f"{self.noun} {self.name} ({self.id})"
                    raise TimeoutError(f"{what} was {self.state} after {timeout_s:g} s")
                time.sleep(min(_PAUSE_S, left))

    def _watched(self) -> Detail:
        """Read it again; return the view that a wait shows."""
        return self.refresh().detail

    @contextmanager
    def _shown(self) -> Iterator[Callable[[Any], None]]:
        """Yield what shows each new view: a notebook's table, or a line on the terminal."""
        display = live_display()
        if display is not None:
            yield lambda _view: display(self._repr_html_() or repr(self))
        elif not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
            yield lambda _view: None
        else:
            from rich.console import Console
            from rich.markup import escape

            # Names and reasons are free text.
            with Console(stderr=True).status(escape(self.described)) as status:
                yield lambda _view: status.update(escape(repr(self)))

    def _repr_html_(self) -> str | None:
        raise NotImplementedError

    @property
    def _path(self) -> str:
        return f"/{self.noun}s/{self.id}"

    def _update(self, answer: bytes) -> Self:
        self.view = self._detail_type.model_validate_json(answer)
        return self

    def _act(
        self, verb: str, body: dict[str, Any] | None = None, *, key: str | None = None
    ) -> Self:
        return self._update(self._transport.post(f"{self._path}/{verb}", body, idempotency_key=key))
