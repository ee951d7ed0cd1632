"""Waiting for a run, sweep or rollout, and the progress that is shown meanwhile."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lehr.base import formats
from lehr.errors import ServerUnavailable
from lehr.faces.client.notebook import live_display, rollout_html, run_html, sweep_html
from lehr.faces.client.transport import TIMEOUT_S

if TYPE_CHECKING:
    from rich.progress import Progress

    from lehr.schemas.rollouts import RolloutDetail
    from lehr.schemas.runs import RunView
    from lehr.schemas.sweeps import SweepDetail

V = TypeVar("V")

_PAUSE_S = 1.0


class Waitable(Protocol):
    """A run, a sweep, a rollout."""

    @property
    def state(self) -> str: ...
    @property
    def ended(self) -> bool: ...
    def refresh(self) -> object: ...


def until_ended(
    handle: Waitable,
    waiting: Wait,
    shown: AbstractContextManager[Callable[[V], None]],
    view: Callable[[], V],
) -> None:
    """Read it repeatedly until it has ended, and show each view.

    Raises:
        TimeoutError: it had not ended in time.
    """
    with shown as show:
        while True:
            with waiting.patience():
                handle.refresh()
            show(view())
            if handle.ended:
                return
            waiting.pause(handle.state)


class Wait:
    def __init__(self, what: str, timeout_s: float | None) -> None:
        self._what = what
        self._timeout_s = timeout_s
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._answered_at: float | None = None

    @contextmanager
    def patience(self) -> Iterator[None]:
        """Tolerate a server that does not answer for a while, if it has answered before."""
        try:
            yield
        except ServerUnavailable:
            if self._answered_at is None or time.monotonic() - self._answered_at > TIMEOUT_S:
                raise
        else:
            self._answered_at = time.monotonic()

    def pause(self, state: str) -> None:
        """Sleep until the next read.

        Raises:
            TimeoutError: the deadline has passed.
        """
        left = _PAUSE_S if self._deadline is None else self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"{self._what} was {state} after {self._timeout_s:g} s")
        time.sleep(min(_PAUSE_S, left))


State = tuple[float, float | None, str]
"""Steps done, total steps (None if not known), and a text beside them."""
Shown = Callable[[float, float | None, str], None]
"""Shows a state."""


@contextmanager
def progress(noun: str, name: str, url: str) -> Iterator[Callable[[Any], None]]:
    """Yield a function to be called with each new view of a run, sweep or rollout."""
    html, state = _DRAWN[noun]
    display = live_display()
    if display is not None:
        yield lambda view: display(html(view, url))
        return
    with _bar(name) as show:
        yield lambda view: show(*state(view))


@contextmanager
def _bar(name: str) -> Iterator[Shown]:
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _done, _total, _words: None
        return
    with _rich() as progress:
        task = progress.add_task(name, total=None, words="")

        def show(done: float, total: float | None, words: str) -> None:
            progress.update(task, completed=done, total=total, words=words)

        yield show


def _rich() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        # Markup is off: names and reasons are free text.
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[words]}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    )


def _rollout(rollout: RolloutDetail) -> State:
    """Return how many gates were judged, of all that are switched on."""
    states = [gate.state for stage in rollout.stages for gate in stage.gates]
    enabled = [state for state in states if state != "off"]
    judged = sum(state not in {"waiting", "skipped"} for state in enabled)
    doing = next((s.reason for s in rollout.stages if s.state == "running" and s.reason), None)
    why = rollout.reason or doing
    words = "  ".join([rollout.stage or "", rollout.state, *([why] if why else [])]).strip()
    return judged, len(enabled), words


def _run(run: RunView) -> State:
    loss, speed = run.latest.get("train/loss"), run.latest.get("tokens_per_s")
    of = f" of {run.total_steps:,}" if run.total_steps else ""
    words = [f"{run.step or 0:,}{of}"]
    words += [f"loss {formats.loss(loss.value)}"] if loss else []
    words += [f"{formats.si(speed.value)} tok/s"] if speed else []
    why = run.reason or run.pending_reason
    text = "  ".join([run.state, *words, *([why] if why else [])])
    return run.step or 0, run.total_steps or None, text


def _sweep(sweep: SweepDetail) -> State:
    """Return the steps over all its runs; an ended run counts as complete."""
    counts = ", ".join(f"{count} {state}" for state, count in sweep.counts.items() if count)
    best = f"  best {sweep.metric} {formats.loss(sweep.best_value)}" if sweep.best_value else ""
    if sweep.held_out == "different":
        best = f"  no best: {sweep.metric} was measured on different held-out sets"
    return sweep.steps_done, sweep.steps_total or None, f"{counts}{best}"


_DRAWN: dict[str, tuple[Callable[[Any, str], str], Callable[[Any], State]]] = {
    "run": (run_html, _run),
    "sweep": (sweep_html, _sweep),
    "rollout": (rollout_html, _rollout),
}
