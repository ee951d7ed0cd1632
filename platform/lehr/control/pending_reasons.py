"""Messages that explain why a run waits.

A text changes only when the situation does: times are rounded and positions left out, so that a
start does not rewrite the reasons of ten thousand queued runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lehr.control.resources import Need, count

_NAMED = 4  # Names of nodes in a reason, at most.
_MINUTES = (1, 2, 3, 5, 10, 15, 20, 30, 40, 50)


@dataclass(frozen=True, slots=True)
class Blocker:
    """The missing GPUs on one node."""

    node: str
    free: int  # GPUs of the required type that are free on the node now.
    size: int  # GPUs of the required type that the node has.
    missing: int
    holder: str | None  # Of the runs that hold the missing GPUs, the one that ends first.
    holder_frees: int
    remaining_s: float | None


def about(seconds: float) -> str:
    """Round a time to what is known: ``about 40 m``, ``about 3 h``."""
    minutes = seconds / 60
    if minutes < 1:
        return "less than 1 m"
    if minutes <= 55:
        return f"about {min(_MINUTES, key=lambda m: abs(m - minutes))} m"
    hours = minutes / 60
    return f"about {round(hours)} h" if hours < 48 else f"about {round(hours / 24)} d"


def paused_after(cause: str, seconds: float) -> str:
    return f"waits {seconds:g} s before it tries again: its last attempt ended as {cause}"


def waits_for_trunk(stage: str, trunk: str) -> str:
    return f"waits for the end of stage {stage} of {trunk}"


def sweep_limit(sweep: str, limit: int) -> str:
    return f"waits for its sweep: {sweep} runs at most {limit} at a time"


def over_quota(project: str, used: int, quota: int) -> str:
    return f"waits for the quota of project {project}: it uses {used} of {count(quota, 'GPU')}"


def above_quota(need: Need, project: str, quota: int) -> str:
    return (
        f"needs {need}; the quota of project {project} is {count(quota, 'GPU')}: an admin can "
        "raise it by lehr admin quota set"
    )


def cpu_places(places: int) -> str:
    taken = "the only place is" if places == 1 else f"all {places} places are"
    return f"waits for a node's CPU ({taken} taken)"


def only_on(nodes: Sequence[str]) -> str:
    """Return the part that names the nodes to which a run's checkpoint binds it."""
    if not nodes:
        return ""
    if len(nodes) > _NAMED:
        return f"; only {len(nodes)} nodes have its checkpoint"
    return f"; only {_names(nodes)} {'has' if len(nodes) == 1 else 'have'} its checkpoint"


def avoided(nodes: Sequence[str], *, used: bool) -> str:
    """Return the part that names the nodes that failed a run twice. ``used``: no others can hold
    it, so it starts on them nevertheless.
    """
    if used:
        return f"{_names(nodes)} failed it twice, but no others can hold it"
    return f"not on {_names(nodes)}, which failed it twice"


def no_usable_node(
    need: Need,
    silent: Sequence[str],
    out: Sequence[str] = (),
    faulty: Sequence[tuple[str, str]] = (),
    closed: Sequence[str] = (),
    left: Sequence[str] = (),
    away: Sequence[tuple[str, str]] = (),
) -> str:
    """Return the reason when nodes could hold the run, but none can be used now.

    ``faulty``: nodes that answer and have a problem, each with it. ``closed``: nodes that are
    available for too short a time. ``left``: nodes that have left the cluster. ``away``: nodes that
    the last server knew and that are not there, each with why.
    """
    parts = [f"node {name} cannot be used: {problem}" for name, problem in faulty]
    parts += [f"node {name} {why}" for name, why in away]
    if silent:
        parts.append(f"{_names(silent)} {'does' if len(silent) == 1 else 'do'} not answer")
    if left:
        have = "has" if len(left) == 1 else "have"
        parts.append(f"{_names(left)} {have} left: lehr node join on {left[0]}")
    if out:
        parts.append(f"{_out(out)}: lehr node readmit {out[0]}")
    if closed:
        parts.append(
            f"{_names(closed)} {_are(closed)} available for too short a time: lehr node until "
            f"{closed[0]}"
        )
    return f"waits for {need}" + (f" ({'; '.join(parts)})" if parts else "")


def waits(
    need: Need,
    blockers: Sequence[Blocker],
    *,
    free: int,
    total: int,
    keeper: str | None,
    next_at: int | None,
    out: Sequence[str] = (),
) -> str:
    """Return e.g. ``waits for 8 x H100 (node n2 has 6 free; k3 frees 2 in about 40 m); next in line
    ...``.

    Args:
        need: what it needs.
        blockers: what is missing where its reservation is; empty without a reservation.
        free: GPUs of its type that are free now, including reserved ones.
        total: GPUs of its type.
        keeper: the run for which free GPUs are reserved, if any.
        next_at: the priority at which it is next in line, if it is.
        out: excluded nodes with such GPUs.
    """
    lacking = [blocker for blocker in blockers if blocker.missing]
    if free == 0:
        detail = "the only one is busy" if total == 1 else f"all {total} are busy"
        if lacking and next_at is not None:
            detail += _freed_by(lacking[0])
    elif keeper is not None:
        are = "is" if free == 1 else "are"
        detail = f"{free} {are} free, kept for {keeper}"
    elif lacking:
        detail = f"node {lacking[0].node} has {lacking[0].free} free{_freed_by(lacking[0])}"
    else:
        detail = f"{free} free, but not on the nodes it needs"
    if out:
        detail += f"; {_out(out)}"
    text = f"waits for {need} ({detail})"
    return text if next_at is None else f"{text}; next in line at priority {next_at}"


def _freed_by(blocker: Blocker) -> str:
    if blocker.holder is None or blocker.remaining_s is None:
        return ""
    return f"; {blocker.holder} frees {blocker.holder_frees} in {about(blocker.remaining_s)}"


def _names(nodes: Sequence[str]) -> str:
    return f"{'node' if len(nodes) == 1 else 'nodes'} {', '.join(nodes)}"


def _out(nodes: Sequence[str]) -> str:
    return f"{_names(nodes)} {_are(nodes)} excluded"


def _are(nodes: Sequence[str]) -> str:
    return "is" if len(nodes) == 1 else "are"
