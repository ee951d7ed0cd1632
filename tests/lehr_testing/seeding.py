"""Fill a real store as trainers and the dispatcher do: events through ``Streams.append``."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Iterable, Sequence
from typing import Any

from lehr.control.lifecycle import RunState
from lehr.specs import RunSpec, SweepSpec, expand, load_spec
from lehr.store import Store
from lehr.store.tables import RunRow, SweepRow
from lehr_trainer.contract import records
from lehr_trainer.contract.layout import EVENTS, MEDIA

STEPS = 1000
TOKENS_PER_STEP = 65_536
VALIDATE_EVERY = 100
HELD_OUT = "5e7a" * 16
"""Digest of the held-out set that runs are evaluated on, unless another is given."""


def train(*, steps: int = STEPS, lr: float = 3e-4, **changes: Any) -> dict[str, Any]:
    return {
        "model": "llama-1b-8layer",
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "tekken"},
        "batch": {"sequences": 32, "sequence_length": 2048},
        "steps": steps,
        "optimizer": {"lr": lr},
        "validation": {"every": VALIDATE_EVERY},
        **changes,
    }


def run_spec(name: str, *, gpus: int = 1, **changes: Any) -> RunSpec:
    top = {key: changes.pop(key) for key in ("tags", "project", "priority") if key in changes}
    spec = load_spec(
        {"kind": "run", "name": name, "train": train(**changes), "resources": {"gpus": gpus}, **top}
    )
    assert isinstance(spec, RunSpec)
    return spec


def lr_sweep(name: str, rates: Sequence[float], *, steps: int = STEPS, **more: Any) -> SweepSpec:
    spec = load_spec(
        {
            "kind": "sweep",
            "name": name,
            "metric": {"name": "val/loss", "goal": "minimize"},
            "parameters": {"train.optimizer.lr": {"values": list(rates)}, **more},
            "run": {"kind": "run", "name": name, "train": train(steps=steps)},
        }
    )
    assert isinstance(spec, SweepSpec)
    return spec


def loss_at(step: int, lr: float, *, seed: str, steps: int = STEPS) -> float:
    """A plausible training loss: a power law down to a floor that depends on the learning rate.

    Above 8e-3 it diverges for good.
    """
    noise = random.Random(f"{seed} {step}").gauss(0, 0.03)
    off = math.log10(lr / 1.2e-3)
    floor = 3.1 + 0.55 * off * off
    if lr > 8e-3 and step > 0.19 * steps:
        return math.nan
    speed = 60 * math.sqrt(3e-4 / lr)
    return floor + (11.9 - floor) * (1 + step / speed) ** -0.85 + noise


class NotWaiting(AssertionError):
    """The run to place is not queued, or its desired state is not "run"."""


class Attempt:
    """One attempt of a run, with a simulated trainer."""

    def __init__(
        self, store: Store, run: RunRow, number: int, *, at: float, held_out: str | None = HELD_OUT
    ) -> None:
        self.store = store
        self.run = run
        self.id = f"{run.id}-{number}"
        self.number = number
        self.at = at
        """The trainer's clock."""
        self.held_out = held_out
        self.offsets: dict[str, int] = {}
        self.pending: list[str] = []

    def add_record(self, record: records.Record) -> None:
        self.pending.append(record.model_dump_json() + "\n")

    def flush(self) -> None:
        """Send the pending records and apply them."""
        if self.pending:
            self._append(EVENTS, "".join(self.pending))
            self.pending = []
            self.store.event_applier.apply(self.id)

    def log(self, text: str, *, rank: int = 0) -> None:
        self._append(f"rank-{rank}.log", text)

    def _append(self, name: str, text: str) -> None:
        data = text.encode()
        at = self.offsets.get(name, 0)
        while data:
            chunk, data = data[: 1 << 20], data[1 << 20 :]
            at = self.store.streams.append(self.id, name, at, chunk)
        self.offsets[name] = at

    def started(self, *, device: str = "NVIDIA A100-SXM4-80GB", ranks: int = 1) -> None:
        self.add_record(
            records.Started(
                time=self.at,
                attempt=self.number,
                world_size=ranks,
                device=device,
                parameters=754_977_792,
                tokens_per_step=TOKENS_PER_STEP,
                total_steps=(self.run.spec["train"] or {"steps": 0})["steps"],
                validation_digest=self.held_out,
                held_out="32,768 of 249,404 held-out tokens, from 21 of 23 documents",
                versions={"torch": "2.13.0", "python": "3.11.7"},
                host={"name": "n1", "cpus": 64},
                startup_s={"imports": 3.2, "data": 0.4, "model": 2.1, "first_batch": 0.8},
            )
        )

    def train(self, steps: Iterable[int], *, lr: float | None = None, logs: bool = True) -> None:
        """Steps of training, with evaluations where they are due."""
        rate = lr if lr is not None else self.run.spec["train"]["optimizer"]["lr"]
        seed = self.run.spec["train"]["seed"]
        total = self.run.spec["train"]["steps"]
        lines = []
        for step in steps:
            self.at += 2.1
            loss = loss_at(step, rate, seed=self.run.name, steps=total)
            jitter = random.Random(f"{self.run.name} {step}").gauss(1, 0.01)
            values = {
                "train/loss": loss,
                "train/lr": rate
                * min(1.0, step / 20)
                * (0.55 + 0.45 * math.cos(3.1416 * step / total)),
                "train/grad_norm": abs(
                    1.1 + 4 / math.sqrt(step) + random.Random(f"g{step}").gauss(0, 0.08)
                ),
                "tokens_per_s": 31_200 * jitter,
                "step_time_s": 2.1 / jitter,
                "data_wait_s": 0.0021 * jitter,
                "data/digest": random.Random(f"{seed} {step}").getrandbits(52),
                "data/epoch": step / 12_000,
                "mfu": 0.49 * jitter,
                "memory/allocated_bytes": 21.4e9,
                "memory/peak_bytes": 61.3e9,
            }
            self.add_record(
                records.Metrics(
                    time=self.at, step=step, tokens=step * TOKENS_PER_STEP, values=values
                )
            )
            lines.append(f"step {step:>5}  loss {loss:.4f}  lr {rate:.2e}  31.2k tok/s\n")
            if step % VALIDATE_EVERY == 0:
                self.evaluate(step, loss + 0.04)
        self.flush()
        if logs:
            self.log("".join(lines))

    def evaluate(self, step: int, loss: float) -> None:
        self.at += 1.0
        self.add_record(
            records.Evaluation(
                time=self.at,
                step=step,
                tokens=step * TOKENS_PER_STEP,
                values={"val/loss": loss, "val/bits_per_byte": loss / 3.1},
                validation_digest=self.held_out,
                held_out="32,768 of 249,404 held-out tokens, from 21 of 23 documents",
            )
        )

    def checkpoint(
        self,
        step: int,
        *,
        val_loss: float | None = None,
        reason: str = "interval",
        digest: str | None = None,
    ) -> None:
        path = f"attempt-{self.number}/checkpoints/step-{step:08d}"
        self.add_record(
            records.Checkpoint(
                time=self.at,
                step=step,
                path=path,
                size_bytes=9_060_000_000,
                digest=digest or hashlib.sha256(path.encode()).hexdigest(),
                reason=reason,
                val_loss=val_loss,
            )
        )
        self.flush()

    def sample(self, step: int, text: str) -> None:
        prompt = "The meaning of life is "
        self.add_record(records.Sample(time=self.at, step=step, prompt=prompt, text=text))
        self.flush()

    def media(
        self,
        step: int,
        name: str,
        kind: Any,
        content: bytes,
        caption: str = "",
        *,
        late: bool = False,
    ) -> int:
        """Log content, of which only the record has arrived if it is ``late``; return its offset."""
        offset = self.offsets.get(MEDIA, 0)
        self.offsets[MEDIA] = offset + len(content)
        if not late:
            self.store.streams.append(self.id, MEDIA, offset, content)
        place = {"offset": offset, "size": len(content), "caption": caption}
        self.add_record(records.LoggedMedia(time=self.at, step=step, name=name, type=kind, **place))
        self.flush()
        return offset

    def warn(self, code: str, message: str, step: int | None = None) -> None:
        self.add_record(records.Warning_(time=self.at, code=code, message=message, step=step))
        self.flush()

    def lose(self, message: str) -> None:
        """Lose its node; the run is queued again."""
        self.store.attempts.update(
            self.id, exited_at=self.store.clock(), exit={"code": None, "signal": 9}
        )
        self.store.transitions.apply(
            self.run.id,
            old=RunState.RUNNING,
            new=RunState.QUEUED,
            attempt=self.number,
            cause="node_lost",
            message=message,
            actor="dispatcher",
        )
        self.store.attempts.close(self.id)

    def end(
        self, state: RunState, step: int, *, cause: str | None = None, message: str | None = None
    ) -> None:
        outcome = {RunState.COMPLETED: "completed", RunState.FAILED: "failed"}.get(state, "stopped")
        self.add_record(
            records.Finished(time=self.at, step=step, outcome=outcome, cause=cause, message=message)
        )
        self.flush()
        ended = self.store.clock()
        self.store.attempts.update(
            self.id, exited_at=ended, exit={"code": 0 if outcome != "failed" else 1, "signal": None}
        )
        old = RunState(self.store.runs.get(self.run.id).state)
        if state in {RunState.CANCELLED, RunState.PAUSED, RunState.PRUNED}:
            self.store.transitions.apply(
                self.run.id,
                old=old,
                new=RunState.STOPPING,
                attempt=self.number,
                cause="user",
                actor="user",
            )
            old = RunState.STOPPING
        self.store.transitions.apply(
            self.run.id,
            old=old,
            new=state,
            attempt=self.number,
            cause=cause or outcome,
            message=message,
            actor="dispatcher",
        )
        self.store.attempts.close(self.id)


def start(
    store: Store,
    run: RunRow,
    *,
    gpus: Sequence[int] = (0,),
    node: str = "n1",
    resume: int | None = None,
    ago_s: float = 0.0,
    held_out: str | None = HELD_OUT,
) -> Attempt:
    """Place a pending run and record its start."""
    placement = [{"node": node, "gpus": list(gpus)}]
    path = None
    if resume is not None:
        path = f"attempt-{run.attempt}/checkpoints/step-{resume:08d}"
    row = store.transitions.begin_attempt(
        run.id, placement=placement, resume_from=path, token_sha256="0" * 64
    )
    if row is None:
        raise NotWaiting(f"{run.name} does not wait")
    begun = time.time() - ago_s
    attempt = Attempt(store, store.runs.get(run.id), row.number, at=begun, held_out=held_out)
    attempt.log(f"lehr_trainer: {run.name}, attempt {row.number}\n")
    attempt.started(ranks=len(gpus))
    if resume is not None and path is not None:
        attempt.add_record(records.Resumed(time=attempt.at, step=resume, checkpoint=path))
    attempt.flush()
    return attempt


def create_sweep(store: Store, spec: SweepSpec) -> tuple[SweepRow, list[RunRow]]:
    sweep = store.sweeps.create(spec, expand(spec), actor="user")
    return sweep, [store.runs.get(trial.run_id) for trial in store.sweeps.trials(sweep.id)]
