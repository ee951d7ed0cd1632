"""Decide what maintenance windows do: which runs do not start, and which are stopped.

While a window is open, nothing starts on its nodes. When it begins, what runs there is stopped: a
training saves a checkpoint, is queued again without spending a retry, and resumes from it, on other
nodes at once or on these after the window. A run that saved nothing new spends a retry of the kind
preemption. A node that is shut down in a window is not excluded for the runs that it had.

Before a window, a run that saves may start at any time, since it loses nothing. Lehr's own
trainings save; a program does if its spec names ``trainer.saves``, or if it has a checkpoint
of its own already. Any other run starts only if its time limit ends it some minutes before the
window: without a limit it may still run then, and would begin again. Estimates do not decide here,
since a slow run would lose its work.

Pure: values in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lehr.control.queue_entries import Active, Waiting
from lehr.control.resources import Node, can_ever_place

MAINTENANCE = "maintenance"
"""The cause of the states of a run that is stopped for a window."""
MARGIN_S = 300.0
"""A time limit must end this much before a window: a run starts a moment after the decision, and
takes a while to stop at its limit.
"""
PERIODS_S = {"daily": 86_400.0, "weekly": 7 * 86_400.0}


@dataclass(frozen=True, slots=True)
class Window:
    """The current or the next time of a declared window."""

    node: str | None
    """None: all nodes."""
    starts_in_s: float
    """Negative or 0 while it is open."""
    ends_in_s: float
    text: str
    """Text for people: the nodes, the begin, the end, and the note."""

    @property
    def open(self) -> bool:
        return self.starts_in_s <= 0.0 < self.ends_in_s

    def covers(self, node: str) -> bool:
        return self.node is None or self.node == node


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the attempt of a run: it saves, and is queued again."""

    run_id: str
    attempt: int
    message: str


def occurrence(
    starts_at: float, duration_s: float, repeat: str | None, now: float
) -> tuple[float, float] | None:
    """Return begin and end of the current or the next time of a window; None if it is over."""
    begin = starts_at
    if repeat is not None and now >= starts_at + duration_s:
        period = PERIODS_S[repeat]
        begin += ((now - starts_at) // period) * period
        if now >= begin + duration_s:
            begin += period
    return (begin, begin + duration_s) if now < begin + duration_s else None


def closes(window: Window, run: Waiting) -> bool:
    """Return whether the run may not start now on the nodes of the window."""
    if window.open:
        return True
    if window.ends_in_s <= 0.0:
        return False
    return reaches(window.starts_in_s, can_save=run.can_save, time_limit_s=run.time_limit_s)


def reaches(starts_in_s: float, *, can_save: bool, time_limit_s: float | None) -> bool:
    """Return whether a run that starts now may lose its work to a window that begins then."""
    return not can_save and (time_limit_s is None or time_limit_s + MARGIN_S > starts_in_s)


def outside_windows(
    waiting: Sequence[Waiting], nodes: Sequence[Node], windows: Sequence[Window]
) -> tuple[list[Waiting], dict[str, str]]:
    """Return the runs that may start somewhere now, and the reasons of the others.

    A run that may start has the nodes that are closed to it in ``closed_nodes``.
    """
    if not windows:
        return list(waiting), {}
    allowed: list[Waiting] = []
    why: dict[str, str] = {}
    known: dict[tuple[object, ...], tuple[frozenset[str], str | None]] = {}
    for run in waiting:
        closing = tuple(index for index, one in enumerate(windows) if closes(one, run))
        if not closing:
            allowed.append(run)
            continue
        key = (closing, run.need, run.excluded_nodes, run.time_limit_s)
        if key not in known:
            known[key] = _closed(run, nodes, [windows[index] for index in closing])
        closed, reason = known[key]
        if reason is None:
            allowed.append(replace(run, closed_nodes=closed))
        else:
            why[run.run_id] = reason
    return allowed, why


def _closed(
    run: Waiting, nodes: Sequence[Node], closing: Sequence[Window]
) -> tuple[frozenset[str], str | None]:
    """Return the nodes that are closed to the run, and the reason if no others could hold it."""
    closed = frozenset(
        node.name for node in nodes if any(window.covers(node.name) for window in closing)
    )
    able = [n for n in nodes if n.usable and not n.excluded and n.name not in run.excluded_nodes]
    left = [node for node in able if node.name not in closed]
    if can_ever_place(run.need, able) is not None or can_ever_place(run.need, left) is None:
        return closed, None
    return closed, _reason(run, min(closing, key=lambda one: (one.starts_in_s, one.text)))


def _reason(run: Waiting, window: Window) -> str:
    text = f"waits for the end of the maintenance {window.text}"
    if window.open:
        return text
    limit = (
        "it has no time limit"
        if run.time_limit_s is None
        else f"its limit is {run.time_limit_s:g} s, with {MARGIN_S:g} s for its start and stop"
    )
    return f"{text}: it may still run when that begins ({limit}), and saves no checkpoint"


def stops(holders: Iterable[Active], windows: Sequence[Window]) -> list[Stop]:
    """Return the runs to stop, because a window of one of their nodes is open."""
    opened = [window for window in windows if window.open]
    found: list[Stop] = []
    for holder in holders if opened else ():
        if holder.ending or not holder.attempt:
            continue
        window = next(
            (w for w in opened if any(w.covers(share.node) for share in holder.placement)), None
        )
        if window is not None:
            message = f"stopped for the maintenance {window.text}"
            found.append(Stop(holder.run_id, holder.attempt, message))
    return found


def limits_s(windows: Iterable[Window], waiting: Iterable[Waiting]) -> list[float]:
    """Return in how many seconds a window begins, ends, or comes too near for a waiting run."""
    windows = list(windows)
    found = [at for one in windows for at in (one.starts_in_s, one.ends_in_s)]
    if windows:
        lengths = {run.time_limit_s for run in waiting if not run.can_save and run.time_limit_s}
        found += [one.starts_in_s - length - MARGIN_S for one in windows for length in lengths]
    return found
