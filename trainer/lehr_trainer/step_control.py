"""Between two steps: what the platform and the signals want, agreed by all ranks.

Rank 0 reads the orders; any rank may get a signal. Ranks that acted each on what it saw would
wait for each other for ever, so one small exchange over the CPU settles it.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from lehr_trainer.contract.orders import Orders, read_orders
from lehr_trainer.runtime.distributed import Ranks


class Interrupted(BaseException):
    """A signal before the first step: there is nothing to save."""


class StopSignal:
    """SIGTERM and SIGINT. Once ``wait_for_boundary`` is set, they only leave word."""

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
    """The same on every rank."""

    checkpoint: bool = False
    stop: StopReason | None = None
    save_failed: bool = False
    """In the background, since the last boundary."""


class StepControl:
    def __init__(self, orders_path: Path, signals: StopSignal, known_checkpoint_seq: int) -> None:
        """Begin to watch.

        Args:
            orders_path: the attempt's ``orders.json``.
            signals: what this process was sent.
            known_checkpoint_seq: the sequence number when the attempt began; a larger one is
                an order.
        """
        self._path = orders_path
        self._signals = signals
        self._checkpoint_seq = known_checkpoint_seq
        self._stamp: tuple[int, int] | None = None
        self._orders = Orders()

    def agree(self, ranks: Ranks, *, save_failed: bool = False) -> StepDecision:
        """What to do now, as all ranks see it; ``save_failed`` is what this one knows."""
        orders = self._read() if ranks.is_main else Orders()
        signalled, pausing, stopping, seq, failed = ranks.largest(
            [
                int(self._signals.received),
                int(orders.desired == "pause"),
                int(orders.desired == "stop"),
                orders.checkpoint_seq,
                int(save_failed),
            ]
        )
        if stopping:
            # Before a failed save: who wants nothing kept does not mind it.
            return StepDecision(stop=StopReason(orders.reason or "cancel", save=False))
        if failed:
            return StepDecision(save_failed=True)
        ordered = seq > self._checkpoint_seq
        self._checkpoint_seq = max(seq, self._checkpoint_seq)
        if pausing or signalled:
            return StepDecision(stop=StopReason("pause" if pausing else "signal", save=True))
        return StepDecision(checkpoint=ordered)

    def _read(self) -> Orders:
        """Parsed only when the file changed; looking costs a microsecond."""
        try:
            found = self._path.stat()
        except OSError:
            return self._orders
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp != self._stamp:
            self._stamp = stamp
            self._orders = read_orders(self._path)
        return self._orders
