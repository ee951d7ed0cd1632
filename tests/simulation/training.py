"""A training: what the ranks of one attempt write, and how they end."""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulation.part import EVENTS, Part

if TYPE_CHECKING:
    from simulation.world import World

STEPS_A_RECORD = 10
RENDEZVOUS_S = 600.0
LOGS = {
    "user_code": "Traceback (most recent call last):\nValueError: simulated",
    "nccl": "ncclSystemError: simulated",
    "ecc": "CUDA error: uncorrectable ECC error encountered",
    "memory": "torch.OutOfMemoryError: CUDA out of memory",
}


ANOMALIES = ("first_loss", "falling_loss", "memory", "mfu", "no_alerts")
"""What may be wrong with the training of a rollout's stage: each is named like the gate for it."""


def _number(config: str, name: str) -> int:
    """Return a number of a resolved config. To parse it all takes longer than the attempt."""
    found = re.search(rf"^ *{name}: (\d+)$", config, re.MULTILINE)
    return int(found[1])


class Training:
    """All parts of one attempt together. Its rank 0 writes the events."""

    def __init__(self, world: World, attempt_id: str, launch: dict[str, Any]) -> None:
        self.world = world
        self.attempt_id = attempt_id
        self.run_id, _, number = attempt_id.rpartition("-")
        self.number = int(number)
        self.nodes = int(launch["gang"]["nodes"])
        self.env: dict[str, str] = launch["env"]
        config = launch["files"]["config.yaml"]
        self.evaluates = launch["program"]
        """It evaluates a checkpoint of another run: it records once, and saves nothing."""
        self.steps = 0 if self.evaluates else _number(config, "steps")
        self.record_s = float(self.env["SIM_RECORD_S"])
        self.folder = Path(launch["run_dir"])
        self.staged = "SIM_ROLLOUT" in self.env
        """It belongs to a rollout, whose gates judge what it logs."""
        self.log_words = math.log(_number(config, "vocab_size")) if self.staged else 0.0
        rate = (
            re.search(r"^ *lr: (\S+)$", config, re.MULTILINE)
            if "SIM_CAMPAIGN" in self.env
            else None
        )
        self.rate = float(rate[1]) if rate else 0.0  # The learning rate of a campaign's trial.
        self.anomaly: str | None = None
        if self.staged and world.rng.random() < world.plan.failing / 2:
            self.anomaly = world.rng.choice(ANOMALIES)
        self.drifts = self.staged and world.rng.random() < world.plan.failing / 2
        """It does not resume exactly."""
        self.held: list[str] = []  # Its checkpoints that retention has not removed.
        self.keep: set[str] = set()  # Checkpoints that forks wait for, by its orders.
        self.parts: dict[int, Part] = {}
        self.written: dict[str, bytearray] = {}  # Every byte that was written, by stream.
        self.step = 0
        self.first_step = 0
        self.begun = False
        self.over = False
        self.stopping = False
        self.save_ordered = False
        self.fate, self.fate_at = self._draw_fate()
        rng = world.rng
        self.ignores_orders = rng.random() < world.plan.stubborn
        self.ignores_term = self.ignores_orders and rng.random() < 0.5
        note = json.loads(launch["files"][f"attempt-{self.number}/launch.json"])
        self.resume_from: str | None = note["resume_from"]
        if self.resume_from is not None:
            world.watch.resumes(self, self.resume_from)
            self.step = self.first_step = int(self.resume_from.rpartition("-")[2])

    def _draw_fate(self) -> tuple[str, int]:
        """Draw how the attempt ends, and at which record, if it comes so far."""
        rng, plan = self.world.rng, self.world.plan
        if not self.world.lossy or rng.random() >= plan.failing:
            return "completed", 0
        fates = ["user_code", "crash", "killed", "nan_loss", "memory", "nccl", "early", "silent"]
        if "SIM_STALL" in self.env:
            fates += ["stall", "stall"]
        fate, at = rng.choice(fates), rng.randrange(1 + self.steps // STEPS_A_RECORD)
        # A stall counts only after the first step.
        return fate, max(1, at) if fate == "stall" else at

    def files_of(self, part: Part) -> dict[str, bytearray]:
        """Return the streams that this part sends."""
        log = f"launcher-{part.rank}.log" if part.rank else "launcher.log"
        names = [EVENTS, log] if part.rank == 0 else [log]
        if self.world.plan.shared_storage:
            return {name: self.written.setdefault(name, bytearray()) for name in names}
        if any(self.written.get(name) for name in names):
            self.world.watch.written_again(part)
        return {name: self.written.setdefault(name, bytearray()) for name in names}

    # ------------------------------------------------------------------------------- steps

    def joined(self, part: Part) -> None:
        """A part's processes have started."""
        self.parts[part.rank] = part
        self.write(part, f"rank of {part.node.name} starts\n".encode())
        self.world.after(
            RENDEZVOUS_S + self.world.rng.uniform(0, 5), "rendezvous", lambda: self._too_late(part)
        )
        if part.rank == 0:
            self.world.after(self.world.rng.uniform(3.0, 45.0), "boot", lambda: self._boot(part))

    def _too_late(self, part: Part) -> None:
        if part.trainer and not self.begun and not (part.rank == 0 and self.nodes == 1):
            part.log = "RendezvousTimeoutError: simulated"
            part.trainer_ended(code=1)

    def whole(self) -> bool:
        return len(self.parts) == self.nodes and all(part.trainer for part in self.parts.values())

    def _boot(self, part: Part) -> None:
        if not part.trainer or self.begun:
            return
        if not self.whole():
            self.world.after(10.0, "boot", lambda: self._boot(part))
            return
        if any(one.node.bad_gpu and one.gpus for one in self.parts.values()):
            bad = next(one for one in self.parts.values() if one.node.bad_gpu and one.gpus)
            bad.log = LOGS["ecc"]
            bad.trainer_ended(code=1)
            return
        if self.fate == "silent" and self.fate_at == 0:
            part.trainer_ended(signal=11)
            return
        why = None
        if self.world.storage.on and self.resume_from is not None:
            why = self.world.storage.resume(self)
        if why is not None:
            for one in list(self.parts.values()):
                one.end(why, "no checkpoint to resume from")
            return
        self.begun = True
        self.record(
            "started",
            schema_version=1,
            attempt=self.number,
            total_steps=self.steps,
            device="NVIDIA H100 80GB HBM3" if part.gpus else "cpu",
        )
        if self.resume_from is not None:
            checkpoint = "/".join(self.resume_from.split("/")[-3:])
            self.record("resumed", step=self.step, checkpoint=checkpoint)
        elif self.staged:
            self.record("metrics", step=1, tokens=1000, values=self._judged(1))
        self._next_record()

    def _next_record(self) -> None:
        self.world.after(
            self.record_s * self.world.rng.uniform(0.8, 1.2), "record", self._make_record
        )

    def _make_record(self) -> None:
        if self.over or self.stopping or not self.whole():
            return
        if self.fate != "completed" and self.step >= (
            self.first_step + self.fate_at * STEPS_A_RECORD
        ):
            self._fail()
            return
        self.step += STEPS_A_RECORD
        loss = round(5.0 / (1.0 + self.step / 50.0) + self.world.rng.random() / 10, 4)
        if self.rate:  # Smooth, so that it can be forecast: the best rate is 1e-3.
            loss = (2.0 + abs(math.log10(self.rate / 1e-3))) * (1.0 + 2.0 * self.step**-0.5)
        values: dict[str, float | str] = {"val/loss": loss}
        if self.staged:
            values |= self._judged(self.step)
        self.record("metrics", step=self.step, tokens=self.step * 1000, values=values)
        if self.step >= self.steps:
            self._complete()
            return
        middle = self.staged and self.step == self.steps // 2
        if middle or self.step % (STEPS_A_RECORD * 3) == 0:
            self.save("interval")
        self._next_record()

    def _judged(self, step: int) -> dict[str, float | str]:
        """Return what the gates of a rollout read."""
        loss: float | str = self.log_words - step / 40.0
        if self.anomaly == "first_loss":
            loss = self.log_words + 3.0 - step / 40.0
        elif self.anomaly == "falling_loss":
            loss = self.log_words + step / 100.0
        elif self.anomaly == "no_alerts" and step == 2 * STEPS_A_RECORD:
            loss = "NaN"
        return {
            "train/loss": loss,
            "memory/peak_bytes": 1e13 if self.anomaly == "memory" else 1e5,
            "mfu": 0.01 if self.anomaly == "mfu" else 0.4,
        }

    def save(self, reason: str) -> None:
        if self.evaluates:
            return
        path = f"attempt-{self.number}/checkpoints/step-{self.step:08d}"
        self.record(
            "checkpoint", step=self.step, path=path, size_bytes=1, digest="0" * 64, reason=reason
        )
        self.world.watch.saved(self, path)
        if self.staged:
            self._write_manifest(path)
        if self.world.storage.on:
            self.world.storage.saved(self, path)

    def _write_manifest(self, path: str) -> None:
        """Write what the gate of an exact resume reads; other checkpoints have no files."""
        weights = f"{self.step} {self.attempt_id if self.drifts else ''}"
        digest = hashlib.sha256(weights.encode()).hexdigest()
        folder = self.folder / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_bytes(b"")
        entry = {"size": 0, "sha256": digest}
        content = {"step": self.step, "tokens": 0, "reason": "interval"}
        content |= {"files": {"model.safetensors": entry}}
        (folder / "manifest.json").write_text(json.dumps(content))

    def _complete(self) -> None:
        self.save("last")
        self.record("finished", step=self.step, outcome="completed")
        self.world.watch.completed(self)
        rng = self.world.rng
        rough = rng.random() < 0.03
        for part in list(self.parts.values()):
            self._end_soon(part, rng.uniform(0.1, 60.0 if self.nodes > 1 else 5.0), rough=rough)
        self.over = True

    def _end_soon(self, part: Part, seconds: float, *, rough: bool = False) -> None:
        def act() -> None:
            if rough and part.rank == 0:
                part.trainer_ended(signal=11)
            else:
                part.trainer_ended(code=0)

        self.world.after(seconds, "training ends", act)

    def _fail(self) -> None:
        rank0 = self.parts[0]
        victim = self.world.rng.choice(sorted(self.parts.items()))[1]
        if self.fate == "stall":
            self.fate = "stalled"
            return
        if self.fate in {"user_code", "nan_loss", "memory"}:
            cause = {"user_code": "error", "nan_loss": "nan_loss", "memory": "out_of_memory"}
            self.record(
                "finished", step=self.step, outcome="failed", cause=cause[self.fate], message="so"
            )
            self.over = True
            rank0.log = LOGS.get(self.fate, "")
            rank0.trainer_ended(code=1)
        elif self.fate in {"crash", "silent"}:
            victim.trainer_ended(signal=11)
        elif self.fate == "killed":
            victim.trainer_ended(signal=9)
        elif self.fate == "nccl":
            victim.log = LOGS["nccl"]
            victim.trainer_ended(code=1)
        else:
            victim.trainer_ended(code=0)

    def left(self, part: Part) -> None:
        """A part's processes are gone: those of the other nodes wait for it, and then fail."""
        self.world.watch.living.touch_training(self)
        well = part.code == 0 and self.over
        if well:
            return
        wait = self.world.rng.choice([5.0, 60.0, 600.0, 1800.0])
        for other in self.parts.values():
            if other is not part and other.trainer:
                self.world.after(wait, "peer lost", lambda other=other: self._peer_lost(other))

    def _peer_lost(self, part: Part) -> None:
        if part.trainer and not self.over:
            part.log = "Watchdog caught collective operation timeout"
            part.trainer_ended(code=1)

    # ----------------------------------------------------------------------------- orders

    def ordered(self, part: Part, orders: dict[str, Any]) -> None:
        """Rank 0 reads its orders at a step boundary."""
        self.keep = set(orders.get("keep") or ())
        if part.rank != 0 or orders["desired"] == "run" or self.ignores_orders:
            return
        save = orders["desired"] == "pause"
        self.world.after(self.world.rng.uniform(0.2, 4.0), "orders", lambda: self._stop(save=save))

    def terminated(self, part: Part) -> None:
        """SIGTERM: the ranks agree to save and to stop; a broken gang just ends."""
        if self.ignores_term:
            return
        if self.whole() and self.fate != "stalled":
            self.world.after(
                self.world.rng.uniform(0.2, 4.0), "term", lambda: self._stop(save=True)
            )
        elif self.fate != "stalled":
            self.world.after(
                self.world.rng.uniform(0.2, 4.0), "term", lambda: part.trainer_ended(signal=15)
            )

    def _stop(self, *, save: bool) -> None:
        if self.over or self.stopping or self.fate == "stalled" or not self.whole():
            return
        self.stopping = True
        wait = self.world.rng.choice([0.5, 5.0, 60.0]) if save else 0.2
        self.world.after(wait, "stopped", lambda: self._stopped(save=save))

    def _stopped(self, *, save: bool) -> None:
        if self.over or not self.whole():
            return
        if save and self.begun and self.step > self.first_step:
            self.save("stop")
        self.record("finished", step=self.step, outcome="stopped")
        self.over = True
        for part in list(self.parts.values()):
            self._end_soon(part, self.world.rng.uniform(0.1, 3.0))

    # ------------------------------------------------------------------------------ files

    def record(self, kind: str, **fields: Any) -> None:
        part = self.parts[0]
        line = json.dumps({"kind": kind, "time": part.node.clock(), **fields})
        part.files[EVENTS] += line.encode() + b"\n"
        self.write(part, f"{kind}\n".encode())

    def write(self, part: Part, text: bytes) -> None:
        name = next(name for name in part.files if name != EVENTS)
        part.files[name] += text

    def finished(self, part: Part) -> dict[str, Any] | None:
        """Return the last record, if it is ``finished`` and the part's node can read it."""
        if part.rank and not self.world.plan.shared_storage:
            return None
        lines = bytes(self.written.get(EVENTS, b"")).splitlines()
        last = json.loads(lines[-1]) if lines else {}
        return last if last.get("kind") == "finished" else None
