"""The metric that a comparison shows where the user names none."""

from __future__ import annotations

from collections.abc import Collection, Sequence

USUAL = "val/loss"
_NEXT = "train/loss"


def compared_metric(logged: Sequence[Collection[str]], own: Collection[str]) -> str:
    """Return ``val/loss``, or another metric if not all runs have that one.

    The first of these that all runs with any metric have: ``val/loss``; ``train/loss``; another
    loss; a metric that is not in ``own``, the names that Lehr itself records. Those of a
    validation come first.
    """
    with_metrics = [set(names) for names in logged if names]
    common = set.intersection(*with_metrics) if with_metrics else set()
    for usual in (USUAL, _NEXT):
        if usual in common:
            return usual
    rest = sorted(common - set(own), key=_rank)
    return rest[0] if rest else USUAL


def note(metric: str, logged: Sequence[Collection[str]]) -> str | None:
    """Return why this metric was chosen; None for the usual one."""
    if metric == USUAL:
        return None
    who = "some have" if any(USUAL in names for names in logged) else "none has"
    return f"{metric} is compared, which all these runs have; {who} {USUAL}."


def _rank(name: str) -> tuple[bool, bool, str]:
    held_out = any(part in name for part in ("val", "eval", "test"))
    return "loss" not in name, not held_out, name
