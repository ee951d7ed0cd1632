"""How far the exchange of gradients overlaps the backward pass, from a Chrome trace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lehr_trainer.diagnostics.trace_summary import GPU_EVENTS, class_times, kind_of

_EXCHANGE = "c10d::allreduce_"
"""The host's call that starts the exchange of a bucket of gradients."""
_BACKWARD_WORK = re.compile(
    r"autograd::engine::evaluate_function: (?!torch::autograd::AccumulateGrad)"
)
"""The autograd engine's name of a function's backward, without the one that stores gradients."""


@dataclass(frozen=True)
class Communication:
    """How much of the exchange of gradients happens while the backward pass computes."""

    sent: int
    """Exchanges that the host starts during a backward pass: one for each bucket of gradients."""
    before_the_end: int
    """Those of them after which the same backward pass still begins other work."""
    hidden: float | None
    """Share of the communication's time in which other work runs; None if there is none."""


def communication(events: Iterable[Mapping[str, Any]]) -> Communication:
    """Measure the overlap in a trace's ``traceEvents``, which name the phase ``backward``."""
    spans = [e for e in events if e.get("ph") == "X" and "ts" in e]
    marks = [e for e in spans if e.get("name") == "backward" and e.get("cat") == "user_annotation"]
    starts = [float(e["ts"]) for e in spans if e.get("name") == _EXCHANGE]
    work = [float(e["ts"]) for e in spans if _BACKWARD_WORK.match(str(e.get("name", "")))]
    sent = before_the_end = 0
    for mark in marks:
        begin, end = _ends(mark)
        last = max((time for time in work if begin <= time <= end), default=begin)
        within = [time for time in starts if begin <= time <= end]
        sent += len(within)
        before_the_end += sum(time < last for time in within)
    return Communication(sent, before_the_end, _hidden(spans))


def _hidden(spans: Sequence[Mapping[str, Any]]) -> float | None:
    on_gpu = [e for e in spans if e.get("cat") in GPU_EVENTS]
    work = on_gpu or [e for e in spans if e.get("cat") == "cpu_op"]
    talk = [e for e in work if kind_of(e) == "communication"]
    if not talk:
        return None
    begin = min(_ends(e)[0] for e in work)
    end = max(_ends(e)[1] for e in work)
    total = class_times(talk, begin, end)["communication"]
    return 1 - class_times(work, begin, end)["communication"] / total if total else None


def _ends(event: Mapping[str, Any]) -> tuple[float, float]:
    start = float(event["ts"])
    return start, start + float(event.get("dur", 0))
