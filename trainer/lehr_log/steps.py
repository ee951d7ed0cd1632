"""The step of a call of ``wandb.log``, as W&B counts or by what the program logs as its step."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

NAMES = (
    "step", "_step", "global_step", "train/global_step", "iter", "iteration", "steps", "it",
    "trainer/global_step", "update", "num_updates", "iters",
)  # fmt: skip
"""Usual names of the step, the first before the others."""


class Steps:
    """The step of each call.

    It is, in this order: the argument ``step``; a number in the call with one of the step's names;
    the step of the call before, if the program gave it and no name comes again; one more.
    """

    def __init__(self, done: int) -> None:
        self._last = done
        self._open: set[str] | None = None
        """What was logged at the last step, while more may be logged at it."""
        self._first: dict[str, int] = {}
        self._restarted: set[str] = set()

    @property
    def next(self) -> int:
        """The step of a call that gives none."""
        return self._last + (self._open is None)

    def given(self, values: Mapping[str, float], declared: Sequence[str]) -> int | None:
        """Return the step that a call has among its values; ``declared`` by ``define_metric``."""
        for name in declared:
            if (step := _whole(values.get(name))) is not None:
                return step
        low = {name.lower(): value for name, value in values.items()}
        for name in NAMES:
            step = _whole(low.get(name))
            if step is None or name in self._restarted:
                continue
            if step < self._last and step <= self._first.get(name, 1):
                # It counts within an epoch, or again after a resumption.
                self._restarted.add(name)
                continue
            if step >= self._last:
                self._first.setdefault(name, step)
            return step
        return None

    def take(
        self, values: Mapping[str, float], given: int | None, *, commit: bool | None = None
    ) -> int:
        """Return the step of a call with the step that it gives, and count it."""
        if given is not None:
            step = given
            before = self._open if self._open is not None and step == self._last else set()
            self._open = None if commit else before | values.keys()
        elif self._open is not None and self._open.isdisjoint(values):
            step = self._last
            self._open |= values.keys()
        else:
            step = self._last + 1
            self._open = None
        self._last = max(self._last, step)
        return step


def _whole(value: float | None) -> int | None:
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if value is not None and value >= 0 and value == int(value):
            return int(value)
    return None
