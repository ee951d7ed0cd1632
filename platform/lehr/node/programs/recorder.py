"""From what a program logs to the records of ``events.jsonl``: in order, finite in number."""

from __future__ import annotations

import bisect
import contextlib
import re
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from pydantic import ValidationError

from lehr.analysis.curve_files.names import UNITLESS, metric_of
from lehr_trainer.contract.records import (
    LATEST,
    MOST,
    Evaluation,
    LoggedConfig,
    LoggedMedia,
    Metrics,
    Record,
    Warning_,
)
from lehr_trainer.errors import DiskFull
from lehr_trainer.runtime.event_stream import EventStream, SystemSamples

MOST_NAMES = 1_000  # Metrics of a program. Lehr's own trainer logs about fifty.
LONGEST_NAME = 200
_LONGEST_TEXT = 500  # Characters of a text in the config of a program.
_CLOCK_S = 0.02
"""A file's time of change may be so much older than the clock showed when it was written."""
_SOON_S = 1.0  # Time after a save within which the record of its own step comes.
_AROUND = 10  # Records before and after a save that its name may refer to.
_STEP_IN_NAME = re.compile(r"(?:checkpoint|ckpt|step|iter)[-_=]?(\d{1,15})(?!\d)", re.IGNORECASE)
_REMEMBERED = 100_000  # Records whose times are kept, to find the step of a file.


class Sink(Protocol):
    """Where records go."""

    def write(self, record: Record) -> None: ...


class Recorder:
    """Writes metrics in the order of their steps, each under its own name.

    A usual name of a standard metric (``loss``, ``eval_loss``) is recorded under the standard name
    as well, so that charts, diagnosis and comparisons find it. A name that shows no unit needs its
    factor for that; if it is itself that of a standard metric, ``program/`` is put before it.
    """

    def __init__(
        self,
        events: Sink,
        *,
        tokens_per_step: int,
        resumed_step: int = 0,
        secrets: Sequence[str] = (),
        factors: Mapping[str, float] | None = None,
    ) -> None:
        self._events = events
        # The longest first: one may begin with another.
        self._secrets = sorted(secrets, key=len, reverse=True)
        self._tokens_per_step = tokens_per_step
        self.step = resumed_step
        self.count = 0  # Records written.
        self._factors = factors or {}
        self._system = SystemSamples()
        self._names: dict[str, str | None] = {}
        self._warned: Counter[str] = Counter()
        self._timed: tuple[int, float] | None = None
        self._history: deque[tuple[float, int]] = deque([(0.0, resumed_step)], _REMEMBERED)

    def metrics(self, step: int, values: Mapping[str, float], at: float) -> None:
        """Record values after ``step`` steps; a step that goes back is left out."""
        if not self.is_step(step):
            return
        if not 0 <= at < LATEST:
            at = time.time()
        if step < self.step:
            self.warn(
                "step_back",
                f"step {step} came after step {self.step}; values of earlier steps are left out. "
                "Log with the step of the optimizer, which only grows",
            )
            return
        found: dict[str, float] = {}
        for name, value in values.items():
            if not self._known(name):
                continue
            own = f"program/{name}" if UNITLESS.get(name) == name else name
            found[own] = value
            standard = self._names[name]
            if standard is not None and (standard not in values or standard == name):
                found.setdefault(standard, value * self._factors.get(name, 1.0))
        if not found:
            return
        if "step_time_s" not in found and (took := self._step_time(step, at)) is not None:
            found["step_time_s"] = took
            if self._tokens_per_step > 1 and took > 0 and "tokens_per_s" not in found:
                found["tokens_per_s"] = self._tokens_per_step / took
        found = self._system.due() | found
        self.step = max(self.step, step)
        self._history.append((max(at, self._history[-1][0]), self.step))
        self.count += 1
        tokens = min(step * self._tokens_per_step, MOST - 1)
        self._events.write(Metrics(time=at, step=step, tokens=tokens, values=found))

    def held_out(self, step: int, digests: Mapping[str, Any], at: float) -> None:
        """Record digests of what values are measured on: fields of an evaluation."""
        if self.is_step(step):
            tokens = min(step * self._tokens_per_step, MOST - 1)
            record = {"time": at, "step": step, "tokens": tokens, "values": {}, **digests}
            self._events.write(Evaluation.model_validate(record))

    def config(self, values: Mapping[str, Any]) -> None:
        clean = {
            self.hide(n)[:LONGEST_NAME]: self.hide(v)[:_LONGEST_TEXT] if isinstance(v, str) else v
            for n, v in values.items()
        }
        with contextlib.suppress(ValidationError):
            self._events.write(LoggedConfig(time=time.time(), values=clean))

    def media(self, record: Mapping[str, Any]) -> None:
        """Record where an image, table, histogram or file is."""
        try:
            texts = {field: self.hide(str(record.get(field, ""))) for field in ("name", "caption")}
            self._events.write(LoggedMedia.model_validate({**record, **texts}))
        except ValidationError as error:
            self.warn("bad_line", f"a line of the log is no {error.title}; it was skipped")

    def hide(self, text: str) -> str:
        """Return the text without the values of the run's secrets."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def is_step(self, step: int) -> bool:
        """Return whether it can be a number of steps; warn if not."""
        if 0 <= step < MOST:
            return True
        self.warn("bad_step", f"step {str(step)[:30]} is not a number of steps; it was left out")
        return False

    def step_of_file(self, changed: float, path: str | None = None) -> int:
        """Return the step at which a file was saved, by its name and the records around it.

        A step in its name, as of transformers' ``checkpoint-400``, counts if it is one of theirs.
        Programs log a step just before they save it, or just after, as Lightning does. So the
        nearest record decides. In doubt the later step is the better answer: a resumed attempt
        may record a step once more, but what is between its checkpoint and its first step is lost.
        """
        index = bisect.bisect_right(self._history, (changed + _CLOCK_S, MOST))
        around = islice(self._history, max(0, index - _AROUND), index + _AROUND)
        steps = {step for at, step in around if at <= changed + _SOON_S}
        for number in _STEP_IN_NAME.findall((path or "").rpartition("/")[2]):
            if int(number) in steps:
                return int(number)
        before, step = self._history[max(0, index - 1)]
        if index < len(self._history):
            next_at, next_step = self._history[index]
            if next_at - changed <= min(_SOON_S, changed - before):
                return next_step
        return step

    def warn(self, code: str, message: str, *, most: int = 1) -> None:
        """Record a warning, at most so often for each code, and print it into the log."""
        self._warned[code] += 1
        if self._warned[code] <= most:
            with contextlib.suppress(OSError):
                print(f"warning: {message}", flush=True)
            self._events.write(
                Warning_(time=time.time(), code=code, message=message, step=self.step)
            )

    def _known(self, name: str) -> bool:
        if name in self._names:
            return True
        if not name or len(name) > LONGEST_NAME or not name.isprintable():
            self.warn("bad_name", f"{name[:50]!r} is not the name of a metric; it was left out")
            return False
        if len(self._names) >= MOST_NAMES:
            self.warn(
                "too_many_names",
                f"the program logs more than {MOST_NAMES:,} metrics; the others are left out, "
                f"{name[:50]} first",
            )
            return False
        meant = metric_of(name)
        standard = meant[0] if meant is not None and meant[0] != name else None
        if name in UNITLESS:
            standard = UNITLESS[name] if name in self._factors else None
        taken = standard in self._names.values() or standard in self._names
        self._names[name] = None if taken else standard
        return True

    def _step_time(self, step: int, at: float) -> float | None:
        before, now = self._timed, (step, at)
        if before is None or step > before[0]:
            self._timed = now
        if before is None or step <= before[0] or at <= before[1]:
            return None
        return (at - before[1]) / (step - before[0])


_LAST_S = 30.0  # How long the last records wait for space after the program has ended.


class PatientStream:
    """Writes to ``events.jsonl`` in order, as soon as there is space."""

    def __init__(self, events: EventStream) -> None:
        self._events = events
        self._waiting: deque[Record] = deque()

    def write(self, record: Record) -> None:
        """Append ``record``, now or later."""
        self._waiting.append(record)
        self.flush()

    def flush(self) -> bool:
        """Write what waits, as far as there is space; return whether nothing is left."""
        while self._waiting:
            try:
                self._events.write(self._waiting[0])
            except DiskFull:
                return False
            self._waiting.popleft()
        return True

    def finish(self) -> None:
        """Write all and sync it to disk.

        Raises:
            DiskFull: there was no space in half a minute.
        """
        deadline = time.monotonic() + _LAST_S
        while not self.flush():
            if time.monotonic() > deadline:
                raise DiskFull(f"no space left for the last {len(self._waiting):,} records")
            time.sleep(0.5)
        self._events.fsync()
