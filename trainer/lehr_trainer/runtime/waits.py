"""How long a rank waits for the others: its own part of a step is the rest.

In synchronous training all ranks take the same time for a step, and the slowest one is that which
waits least. A wait lies between two marks around an exchange. On a GPU these are events in the
stream of the computation, so the time between them is that in which it could not go on; an exchange
beside the computation is no wait. PyTorch's flight recorder has the durations of collectives, but
with what overlaps with the computation; of gloo it has none.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

Moment = float | torch.cuda.Event
"""Seconds of ``time.perf_counter``, or an event of CUDA's stream."""
Span = tuple[Moment, Moment]
"""From, to."""


class Clock:
    """Marks moments in the device's stream of work; on a CPU, by the host's clock."""

    def __init__(self, device: torch.device) -> None:
        self._on_cuda = device.type == "cuda"

    def mark(self) -> Moment:
        """Return the moment at which the work that has been launched so far is done."""
        if not self._on_cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def wait(self, moment: Moment) -> None:
        if not isinstance(moment, float):
            moment.synchronize()

    def seconds(self, spans: list[Span]) -> float:
        """Return the seconds within spans that have passed."""
        seconds = 0.0
        for first, last in spans:
            if isinstance(first, float) or isinstance(last, float):
                assert isinstance(first, float)
                assert isinstance(last, float)
                seconds += last - first
            else:
                seconds += float(first.elapsed_time(last)) / 1e3
        return seconds


FIGURES = ("step_time_s", "own_time_s", "data_wait_s", "memory_bytes", "gpu_clock_mhz")
"""What each rank sends to rank 0 with a record."""


def over_ranks(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the largest, median and least of ``FIGURES`` over ranks, and which rank is slowest.

    Of an even number of ranks, the median is the lower one in the middle: of two, the other one. A
    figure that a rank lacks (NaN) is left out.
    """
    values: dict[str, float] = {}
    for name, column in zip(FIGURES, zip(*rows, strict=True), strict=False):
        if all(map(math.isfinite, column)):
            values[f"ranks/max_{name}"] = max(column)
            values[f"ranks/median_{name}"] = statistics.median_low(column)
            values[f"ranks/min_{name}"] = min(column)
    if rows:
        values["ranks/slowest"] = float(max(range(len(rows)), key=lambda rank: rows[rank][1]))
    return values


class Waits:
    """The waits of this rank since they were last taken."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spans: list[Span] = []
        self._began: Moment | None = None
        self._depth = 0

    def take(self) -> list[Span]:
        """Return the spans since the last call."""
        spans, self._spans = self._spans, []
        return spans

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the time within as a wait."""
        self._begin()
        try:
            yield
        finally:
            self._end()

    def watch(self, model: nn.Module) -> None:
        """Count the waits of a model that DDP wraps, or that is sharded, in training.

        At the end of backward they are for the last gradients. A sharded model also waits for
        parameters before each block, and for the gradients of an earlier one.
        """
        # First of all hooks, so that it comes before the wait of FSDP's own callback.
        model.register_forward_hook(self._after_forward, prepend=True)
        for module in model.modules():
            state = getattr(module, "_get_fsdp_state", None)
            for group in () if state is None else groups_of(state()):
                for name in ("unshard", "wait_for_unshard", "post_backward"):
                    setattr(group, name, self._timed_call(getattr(group, name)))

    def _after_forward(self, _model: nn.Module, _inputs: object, hidden: Tensor) -> None:
        if hidden.requires_grad:
            hidden.register_hook(self._in_backward)  # type: ignore[no-untyped-call]

    def _in_backward(self, _gradient: Tensor) -> None:
        """Queue the marks. Those who wait at the end of backward queue theirs in between."""
        engine = torch.autograd.Variable._execution_engine  # noqa: SLF001

        def computed() -> None:
            self._begin()
            engine.queue_callback(self._end)

        engine.queue_callback(computed)

    def _timed_call(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.timed():
                return call(*args, **kwargs)

        return timed

    def _begin(self) -> None:
        self._depth += 1
        if self._depth == 1:
            self._began = self._clock.mark()

    def _end(self) -> None:
        self._depth -= 1
        if self._depth == 0 and self._began is not None:
            self._spans.append((self._began, self._clock.mark()))


def groups_of(state: Any) -> list[Any]:
    """Return the parameter groups of a sharded module; older versions of torch have one."""
    groups: list[Any] | None = getattr(state, "_fsdp_param_groups", None)
    return [state._fsdp_param_group] if groups is None else groups  # noqa: SLF001
