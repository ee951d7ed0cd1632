"""Logger of a step's figures: from tensors on the device to a ``metrics`` record.

On a GPU the loss of a step is not known when the next step is launched; reading it would stop the
device until the host has caught up. So figures are copied to host memory without waiting, and read
one logged step later, or earlier where the host waits anyway (an evaluation, a save). Step times
are measured by the device's own clock, between events in its stream of work. So they do not depend
on when the host reads them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from lehr_trainer.checkpointing.state import TrainProgress
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract.records import LogFn, Metrics
from lehr_trainer.errors import NanLoss
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.environment import memory_values
from lehr_trainer.runtime.event_stream import EventStream, SystemSamples
from lehr_trainer.runtime.hangs import Pulse
from lehr_trainer.runtime.waits import Clock, Span, Waits, over_ranks

_LOG_EVERY_S = 1.0

DataValues = Callable[[], Mapping[str, float]]
"""Returns the values of a step that identify its data; may wait for other ranks."""


@dataclass(frozen=True)
class _Pending:
    step: int
    steps: int
    """Number of steps since the previous record."""
    spans: list[Span]
    """When they ran: from, to. Several, if an evaluation or a save came between."""
    waits: list[Span]
    """When this rank waited for others within them."""
    lr: float
    values: Tensor
    """Loss and gradient norm, in host memory once the last span has ended."""
    data_wait_s: float
    """Mean over the same steps."""
    extra: tuple[str, ...]
    """Names of the values that follow loss and gradient norm."""
    data: DataValues
    memory: dict[str, float]
    """Of the steps since the previous record: an evaluation after them is not theirs."""


class MetricsLogger:
    """Writes ``metrics`` records and progress lines; raises if the loss is not finite."""

    def __init__(
        self,
        config: TrainConfig,
        events: EventStream,
        device: torch.device,
        *,
        peak_flops: float | None,
        flops_per_token: Callable[[int], float],
        log: LogFn,
        total_steps: int | None = None,
        gradients_may_overflow: bool = False,
        ranks: Ranks | None = None,
        pulse: Pulse | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Start the clock.

        Args:
            config: the run's, or that of its stage.
            events: where records go; on ranks other than 0 nowhere.
            device: of the losses; its clock counts unless another is given.
            peak_flops: the dense peak of all ranks' devices, if known.
            flops_per_token: by the step, from 0: they change with the sequence length.
            log: prints a line of progress.
            total_steps: of all stages; by default those of ``config``.
            gradients_may_overflow: an infinite gradient norm is normal, as with fp16: its step is
                skipped, and the training goes on.
            ranks: of the run, if several; a record then has figures over all of them.
            pulse: learns of each step, and of what is none.
            clock: for tests.
        """
        self._clock = clock or Clock(device)
        self._ranks = ranks
        self._waits = (ranks and ranks.waits) or Waits(self._clock)
        self._may_overflow = gradients_may_overflow
        self._config, self._events, self._device, self._log = config, events, device, log
        self._total_steps = total_steps or config.steps
        self._replays = config.on(device.type).compile.cuda_graphs
        self._peak, self._flops_per_token = peak_flops, flops_per_token
        self._system = SystemSamples()
        self._pending: _Pending | None = None
        self._latest: tuple[int, Tensor] | None = None
        self._logged_at = 0.0
        self._pulse = pulse or Pulse()
        self.start_at(0, 0)

    def start_at(self, step: int, tokens: int) -> None:
        """Start the clock, with ``step`` steps taken and ``tokens`` trained on."""
        self._pulse.move(step, "first step")
        self._timed_step = step
        self._more_tokens = tokens - step * self._config.tokens_per_step
        self._spans: list[Span] = []
        self._waits_before: list[Span] = []
        self._waits.take()
        self._span_began = self._clock.mark()
        self._waited_s, self._noted = 0.0, 0

    def enter(
        self, config: TrainConfig, flops_per_token: Callable[[int], float], progress: TrainProgress
    ) -> None:
        """Go on with the config of another stage."""
        self.flush()
        self._config, self._flops_per_token = config, flops_per_token
        self.start_at(progress.step, progress.tokens)

    def due(self, step: int) -> bool:
        """Return whether ``step`` gets a record."""
        return step % self._config.diagnostics.log_every == 0 or step == self._config.steps

    def note(
        self,
        step: int,
        loss: Tensor,
        grad_norm: Tensor,
        lr: float,
        waited_s: float,
        extra: Mapping[str, Tensor] | None = None,
        data: DataValues = dict,
        always: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Record a step's figures, the same on all ranks, and write those of the last logged step.

        Args:
            step: steps taken, this one included.
            loss: its mean over all ranks.
            grad_norm: the global gradient norm before clipping.
            lr: the learning rate of the step.
            waited_s: how long the host waited for the step's data. The record has the mean over
                the steps since the previous record, as for the step time.
            extra: further values by metric name, 0-d; a step that has some is always logged.
            data: called when the record is written.
            always: as ``extra``, but no reason to log a step.
        """
        self._pulse.took(step, last=step == self._config.steps)
        logged = self.due(step) or bool(extra)
        extra = {**(always or {}), **(extra or {})}
        more = (value.detach().float() for value in extra.values())
        values = torch.stack([loss.detach(), grad_norm.detach(), *more])
        self._latest = (step, values)
        self._waited_s += waited_s
        self._noted += 1
        if not logged:
            return
        if self._device.type == "cuda":
            values = _copied_to_host(values)
        now = self._clock.mark()
        self._spans.append((self._span_began, now))
        before, self._pending = (
            self._pending,
            _Pending(
                step,
                max(1, step - self._timed_step),
                self._spans,
                self._waits_before + self._waits.take(),
                lr,
                values,
                self._waited_s / self._noted,
                tuple(extra),
                data,
                memory_values(self._device, cuda_graphs=self._replays),
            ),
        )
        self._timed_step, self._spans, self._span_began = step, [], now
        self._waits_before = []
        self._waited_s, self._noted = 0.0, 0
        if before is not None:
            self._write(before)
        if self._device.type != "cuda":
            self.flush()

    def flush(self) -> None:
        """Write the pending figures, waiting for the device if necessary.

        Raises:
            NanLoss: the last step's loss or gradient is not finite.
        """
        if self._pending is not None:
            pending, self._pending = self._pending, None
            self._write(pending)
        if self._latest is not None and self._config.diagnostics.stop_on_nan:
            step, values = self._latest
            loss, grad_norm = values[:2].tolist()
            if self._is_lost(loss, grad_norm):
                self._stop_on(step, loss, grad_norm)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Write the pending figures; exclude the time spent within from step times."""
        self.flush()
        with self.untimed():
            yield

    @contextmanager
    def untimed(self, *, when: bool = True) -> Iterator[None]:
        """Exclude the time spent within from step times, without waiting for the device."""
        if not when:
            yield
            return
        self._spans.append((self._span_began, self._clock.mark()))
        self._waits_before += self._waits.take()
        try:
            with self._pulse.lasting("beside its steps"):
                yield
        finally:
            self._waits.take()
            self._span_began = self._clock.mark()

    # --- one record --------------------------------------------------------------------------

    def _write(self, pending: _Pending) -> None:
        self._clock.wait(pending.spans[-1][1])
        loss, grad_norm, *extra = pending.values.tolist()
        step_time = max(self._clock.seconds(pending.spans), 1e-9) / pending.steps
        tokens_per_step = self._config.tokens_per_step
        values = {
            "train/loss": loss,
            "train/lr": pending.lr,
            "train/grad_norm": grad_norm,
            "tokens_per_s": tokens_per_step / step_time,
            "step_time_s": step_time,
            "data_wait_s": pending.data_wait_s,
            **pending.data(),
            **pending.memory,
            **dict(zip(pending.extra, extra, strict=True)),
            **self._system.due(),
        }
        if self._ranks is not None and self._ranks.waits is not None:
            waited = self._clock.seconds(pending.waits) / pending.steps
            memory = values.get("memory/peak_bytes", values.get("memory/rss_bytes", math.nan))
            rows = self._ranks.gather_on_rank0(
                [step_time, step_time - waited, pending.data_wait_s, memory, self._system.clock_mhz]
            )
            values |= over_ranks(rows)
        if values.get("train/loss_tokens") == 0:
            del values["train/loss"], values["train/grad_norm"]  # There is none.
        if self._peak is not None:
            timed = range(pending.step - pending.steps, pending.step)
            flops_per_token = sum(map(self._flops_per_token, timed)) / len(timed)
            values["mfu"] = values["tokens_per_s"] * flops_per_token / self._peak
        self._events.write(
            Metrics(
                time=time.time(),
                step=pending.step,
                tokens=pending.step * tokens_per_step + self._more_tokens,
                values=values,
            )
        )
        now = time.perf_counter()
        if now - self._logged_at >= _LOG_EVERY_S or pending.step == self._config.steps:
            self._logged_at = now
            mfu = f"  mfu {values['mfu']:.1%}" if "mfu" in values else ""
            self._log(
                f"step {pending.step}/{self._total_steps}  loss {loss:.4f}  lr {pending.lr:.3g}  "
                f"grad norm {grad_norm:.3f}  {values['tokens_per_s']:,.0f} tokens/s{mfu}"
            )
        if self._config.diagnostics.stop_on_nan and self._is_lost(loss, grad_norm):
            self._stop_on(pending.step, loss, grad_norm)

    def _is_lost(self, loss: float, grad_norm: float) -> bool:
        return not math.isfinite(loss if self._may_overflow else loss + grad_norm)

    def _stop_on(self, step: int, loss: float, grad_norm: float) -> None:
        kind = "NaN" if math.isnan(loss) or math.isnan(grad_norm) else "infinite"
        what = "the loss" if not math.isfinite(loss) else "the gradient norm"
        raise NanLoss(f"{what} became {kind} at step {step}")


def _copied_to_host(values: Tensor) -> Tensor:
    """Start a copy to host memory; it is complete once the device has done its work until now."""
    copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    return copy.copy_(values, non_blocking=True)
