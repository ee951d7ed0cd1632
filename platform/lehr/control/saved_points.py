"""Decide on checkpoints: which one is resumed, and which copies are kept."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypedDict

from lehr_trainer.checkpointing.retention import OF_STAGE, Held, best_of, superfluous
from lehr_trainer.configs.train import CheckpointConfig
from lehr_trainer.contract import layout


class SavedPoint(Protocol):
    @property
    def attempt(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def path(self) -> str: ...


class Rewound(TypedDict):
    """A rewind: what a run trained in vain, and the data that it skips."""

    attempt: int  # The one that was stopped for it.
    before: int  # The step at which the spike began: the run restarts from a checkpoint before it.
    through: int  # The last step whose data are skipped.


def point_before(
    points: Iterable[SavedPoint], rewound: Rewound, resumed: Mapping[int, str | None]
) -> str | None:
    """Return the newest checkpoint before a spike that the rewound attempt descends from.

    ``resumed``: by attempt, the checkpoint that it resumed from.
    """
    points = list(points)
    attempt, last = rewound["attempt"], rewound["before"] - 1
    while True:
        own = [point for point in points if point.attempt == attempt and point.step <= last]
        if own:
            return max(own, key=lambda point: point.step).path
        parent = layout.checkpoint_at(resumed.get(attempt) or "")
        if parent is None:
            return None
        attempt, last = parent[0], min(last, parent[1])


def skipped_through(rewound: Rewound | None, resume_from: str | None) -> int | None:
    """Return the last step whose data an attempt skips that resumes from this checkpoint.

    A checkpoint that was saved after the rewind has them behind it.
    """
    saved_by = layout.checkpoint_at(resume_from or "")
    if rewound is None or (saved_by is not None and saved_by[0] > rewound["attempt"]):
        return None
    return rewound["through"]


def point_to_resume(
    points: Iterable[SavedPoint],
    base: str | None,
    rewound: Rewound | None = None,
    resumed: Mapping[int, str | None] | None = None,
) -> str | None:
    """Return the checkpoint that the next attempt resumes from, relative to the run directory or
    absolute.

    It is the newest readable checkpoint of the newest attempt. If that attempt fell back to an
    older checkpoint, the newer ones were damaged. After a rewind it is the newest one before the
    spike, until a later attempt has saved; ``resumed`` is then as for ``point_before``. Without any
    it is ``base``, a fork's checkpoint of another run.
    """
    found = [point for point in points if layout.checkpoint_at(point.path) is not None]
    if not found:
        return base
    if rewound is not None and all(point.attempt <= rewound["attempt"] for point in found):
        return point_before(found, rewound, resumed or {}) or base
    return max(found, key=lambda point: (point.attempt, point.step)).path


def has_progressed(points: Iterable[SavedPoint], attempt: int) -> bool:
    """Return whether the attempt has saved a newer checkpoint than all attempts before it."""
    own = earlier = -1
    for point in points:
        if point.attempt == attempt:
            own = max(own, point.step)
        elif point.attempt < attempt:
            earlier = max(earlier, point.step)
    return own > earlier


def copies_at(spec: Mapping[str, Any], run_id: str, path: str) -> str | None:
    """Return the URL of the copy of a run's checkpoint; None if the spec requests no copies."""
    place = spec.get("checkpoints", {}).get("upload")
    return None if place is None else f"{place}/{run_id}/{path}"


class RetainedCheckpoint(SavedPoint, Protocol):
    @property
    def val_loss(self) -> float | None: ...
    @property
    def score(self) -> float | None: ...
    @property
    def reason(self) -> str: ...


def kept_because(
    existing: Sequence[RetainedCheckpoint], policy: CheckpointConfig
) -> dict[tuple[int, int], list[str]]:
    """Return (attempt, step) -> why the policy keeps it, for each existing checkpoint."""
    ordered = sorted(existing, key=lambda one: (one.attempt, one.step))
    last = {(one.attempt, one.step) for one in ordered[-policy.keep_last :]}
    best = best_of(ordered, policy)
    found: dict[tuple[int, int], list[str]] = {}
    for point in ordered:
        key = (point.attempt, point.step)
        reasons = found[key] = []
        if key in last:
            reasons.append(f"one of the last {policy.keep_last}")
        if policy.keep_best and point is best:
            reasons.append("the best")
        if point.reason == OF_STAGE:
            reasons.append("the end of a stage")
        if policy.keep_every and point.step % policy.keep_every == 0:
            reasons.append(f"every {policy.keep_every:,} steps")
    return found


def copies_to_remove(
    existing: Sequence[RetainedCheckpoint], policy: CheckpointConfig, needed: Collection[str]
) -> list[str]:
    """Return the paths of copies to remove. ``needed`` are paths that forks wait for."""
    ordered = sorted(existing, key=lambda one: (one.attempt, one.step))
    held = [
        Held(Path(one.path), one.step, one.val_loss, one.reason == OF_STAGE, one.score)
        for one in ordered
    ]
    return [str(one.path) for one in superfluous(held, policy) if str(one.path) not in needed]
