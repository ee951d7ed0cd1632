"""Decisions between two steps: what the platform and signals demand, agreed by all ranks.

Rank 0 reads the orders; any rank may receive a signal. If each rank acted on its own, they would
wait for each other forever; one small exchange over the CPU prevents that. It begins once a step's
gradients are computed, so it is over when the step ends.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from lehr_trainer.contract.orders import Orders, read_orders
from lehr_trainer.runtime.distributed import Ranks


class Interrupted(BaseException):
    """Raised by a signal before the first step: there is nothing to save."""


class StopSignal:
    """Handler of SIGTERM and SIGINT. With ``wait_for_boundary`` set, a signal is only recorded."""

    def __init__(self) -> None:
        self.received = False
        self.wait_for_boundary = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.received = True
        if not self.wait_for_boundary:
            raise Interrupted


@dataclass(frozen=True)
class StopReason:
    reason: str
    """As in the ``stopping`` record: signal, pause, cancel, prune, ..."""
    save: bool


@dataclass(frozen=True)
class StepDecision:
    """What to do between two steps; the same on every rank."""

    checkpoint: bool = False
    stop: StopReason | None = None
    save_failed: bool = False
    """A save in the background has failed since the last decision."""

    @property
    def discard(self) -> StopReason | None:
        """The order to stop without a save, if there is one."""
        return self.stop if self.stop is not None and not self.stop.save else None


class StepControl:
    def __init__(self, orders_path: Path, signals: StopSignal, known_checkpoint_seq: int) -> None:
        """Watch them; a ``checkpoint_seq`` above that of the attempt's start is an order."""
        self._path = orders_path
        self._signals = signals
        self._checkpoint_seq = known_checkpoint_seq
        self._stamp: tuple[int, int] | None = None
        self._orders = Orders()
        self._save_failed = False
        self._begun: tuple[Callable[[], list[int]], str] | None = None

    def begin(self, ranks: Ranks, digest: int = 0) -> Callable[[], int]:
        """Begin this step's one exchange; return a reader of the sum of ``digest``.

        It runs beside the update, and ``agree`` takes what it has brought.
        """
        orders = self._read() if ranks.is_main else Orders()
        # Only rank 0 has orders, so a sum is what it has read.
        sums = ranks.begin_sum(
            int(self._signals.received),
            int(orders.desired == "pause"),
            int(orders.desired == "stop"),
            orders.checkpoint_seq,
            int(self._save_failed),
            digest,
        )
        self._begun = sums, orders.reason
        return lambda: sums()[-1]

    def agree(
        self, ranks: Ranks, *, save_failed: bool = False, again: bool = False
    ) -> StepDecision:
        """Decide what to do now, the same on all ranks; ``save_failed`` is this rank's state.

        The exchange that has begun in this step counts, and ``save_failed`` in the next one. With
        ``again``, or if none has begun, there is a new one.
        """
        self._save_failed = save_failed
        if again or self._begun is None:
            self.begin(ranks)
        assert self._begun is not None
        (sums, reason), self._begun = self._begun, None
        signalled, pausing, stopping, seq, failed, _ = sums()
        if stopping:
            # This comes before a failed save: a run that is to be discarded needs no save.
            return StepDecision(stop=StopReason(reason or "cancel", save=False))
        if failed:
            return StepDecision(save_failed=True)
        ordered = seq > self._checkpoint_seq
        self._checkpoint_seq = max(seq, self._checkpoint_seq)
        if pausing or signalled:
            return StepDecision(stop=StopReason("pause" if pausing else "signal", save=True))
        return StepDecision(checkpoint=ordered)

    def _read(self) -> Orders:
        """Read the orders; the file is parsed only if it changed (a look costs a microsecond)."""
        try:
            found = self._path.stat()
        except OSError:
            return self._orders
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp != self._stamp:
            self._stamp = stamp
            self._orders = read_orders(self._path)
        return self._orders
