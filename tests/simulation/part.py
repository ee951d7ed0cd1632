"""One node's part of an attempt: its shim, its shipper and the processes of its training."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from lehr.errors import Conflict, Fenced, LehrError, OffsetMismatch, StoreUnavailable
from simulation.server import Down

if TYPE_CHECKING:
    from simulation.node import Node
    from simulation.training import Training

STOP_LEVELS = ("order", "term", "kill")
GPU_WAIT_S = 30.0
EVENTS = "events.jsonl"


class Outage(Exception):
    """The server cannot be reached now."""


class Part:
    def __init__(self, node: Node, launch: dict[str, Any]) -> None:
        self.node = node
        self.world = node.world
        self.attempt_id = str(launch["attempt_id"])
        self.launch = launch
        self.rank = int(launch["gang"]["node_rank"])
        self.gpus: tuple[int, ...] = tuple(launch["gpus"])
        self.launched_at = self.world.timeline.now
        self.boot = node.boot
        self.registered = False
        self.shim = False  # Its shim lives.
        self.trainer = False  # Its training's processes live.
        self.holds = False  # It holds the locks of its GPUs.
        self.ending = False
        self.exit: dict[str, Any] | None = None
        self.delivered = False
        self.deleted = False  # The server closed its streams, because its run was deleted.
        self.erased = False  # Its node's disk is lost.
        self.stop_level = ""
        self.stop_reason = ""
        self.code: int | None = None
        self.signal: int | None = None
        self.log = ""
        self.offsets: dict[str, int] | None = {}
        self.step: int | None = None
        self.next_heartbeat = self.launched_at + 1.0
        self.orders = ""
        self.backoff = 0.5
        self.shipper_generation = 0
        self.training: Training = self.world.training(self)
        self.files: dict[str, bytearray] = self.training.files_of(self)

    # --------------------------------------------------------------------------- the shim

    def start(self) -> None:
        self.registered = True
        self.shim = True
        self.world.watch.begun(self)
        self._take_gpus(self.world.timeline.now + GPU_WAIT_S)

    def _take_gpus(self, deadline: float) -> None:
        if not self.shim or self.ending:
            return
        if self.stop_level in {"order", "term", "kill"}:
            self.end("stopped", self.stop_reason)
        elif all(self.node.holder(gpu, self) is None for gpu in self.gpus):
            self.holds = True
            self._start_trainer()
        elif self.world.timeline.now > deadline:
            self.world.watch.gpu_busy(self)
            self.end("gpu_busy", "held by processes that are not this attempt's")
        else:
            self.world.after(2.0, "gpu wait", lambda: self._take_gpus(deadline))

    def _start_trainer(self) -> None:
        if self.node.disk_full:
            self.end("launch_failed", f"{self.attempt_id}: No space left on device")
            return
        self.trainer = True
        self.world.watch.trains(self)
        self._start_shipper()
        self.training.joined(self)

    def request_stop(self, stop_level: str, reason: str) -> None:
        """Take a stop level; lower ones than before have no effect."""
        if self.stop_level and STOP_LEVELS.index(stop_level) <= STOP_LEVELS.index(self.stop_level):
            return
        self.stop_level, self.stop_reason = stop_level, reason
        self.world.after(
            self.world.rng.uniform(0.01, 1.0), "stop level", lambda: self._apply(stop_level)
        )

    def _apply(self, stop_level: str) -> None:
        if not self.shim or not self.trainer:
            return
        if stop_level == "kill":
            self.trainer_ended(signal=9)
        elif stop_level == "term":
            self.training.terminated(self)

    def trainer_ended(self, *, code: int | None = None, signal: int | None = None) -> None:
        """All processes of the training on this node have ended."""
        if not self.trainer:
            return
        self.trainer = False
        self.code, self.signal = code, signal
        if self.shim:
            self.world.after(
                self.world.rng.uniform(0.05, 2.0), "shim ends", lambda: self.end("", "")
            )
        else:
            self.holds = False
        self.training.left(self)

    def end(self, reason: str, detail: str) -> None:
        """Record how it ended, then free the GPUs."""
        if not self.shim or self.ending:
            return
        self.ending = True
        if self.trainer:
            self.trainer_ended(signal=9)
        if not reason and self.stop_level:
            reason, detail = "stopped", self.stop_reason
        failed = self.code != 0
        self._write_exit(
            {
                "code": self.code,
                "signal": self.signal,
                "reason": reason,
                "detail": detail,
                "log_tail": f"{self.log if failed else ''}\n{detail}".strip(),
                "started_at": self.node.clock(),
                "ended_at": self.node.clock(),
                "boot_id": str(self.node.boot),
                "finished": self.training.finished(self),
            }
        )

    def _write_exit(self, note: dict[str, Any]) -> None:
        self.holds = False
        if not self.shim:
            return
        if self.node.disk_full:
            self.world.after(5.0, "exit again", lambda: self._write_exit(note))
            return
        self.exit = note
        self.node.touch()
        self.world.note(f"{self.attempt_id}/{self.rank} ended: {note['reason']} {note['code']}")
        self._start_shipper()

    def finalize_orphan(self) -> None:
        """Finish it for a shim that was killed."""
        self.shim = True
        self.node.touch()
        self.shipper_generation += 1
        self.offsets = None
        if self.exit is not None:
            self._start_shipper()
            return
        self.ending = False
        if self.boot != self.node.boot:
            self.end("node_rebooted", "the node was restarted while it ran")
        else:
            self.end("shim_lost", "its launcher was killed")

    def kill_shim(self) -> None:
        """Its training goes on, and keeps the GPUs."""
        self.shim = False
        self.node.touch()
        self.shipper_generation += 1
        self.holds = self.trainer

    def vanish(self) -> None:
        """Its node loses power."""
        self.shim = self.holds = False
        self.node.touch()
        self.shipper_generation += 1
        if self.trainer:
            self.trainer = False
            self.training.left(self)

    # ------------------------------------------------------------------------- the shipper

    def _start_shipper(self) -> None:
        self.shipper_generation += 1
        generation = self.shipper_generation
        self.world.after(
            self.world.rng.uniform(0.5, 2.0), "shipper", lambda: self._ship_round(generation)
        )

    def _ship_round(self, generation: int) -> None:
        if generation != self.shipper_generation or not self.shim or self.delivered or self.erased:
            return
        plan = self.world.plan
        try:
            done = self._work()
        except Outage:
            self.offsets = None
            wait = self.backoff * self.world.rng.uniform(0.5, 1.0)
            self.backoff = min(self.backoff * 2, 30.0)
        else:
            if done:
                self.delivered = True
                self.shim = False
                self.node.touch()
                self.world.note(f"{self.attempt_id}/{self.rank} delivered")
                return
            self.backoff = 0.5
            wait = 1.0 if self.exit is not None else plan.ship_s
            if '"desired": "run"' not in self.orders and self.orders:
                wait = min(wait, 2.0)
        self.world.after(wait, "shipper", lambda: self._ship_round(generation))

    def _work(self) -> bool:
        if self.offsets is None:
            self.offsets = self.http("offsets", lambda s: s.store.streams.sizes(self.attempt_id))
            self._note_step(bytes(self.files.get(EVENTS, b""))[: self.offsets.get(EVENTS, 0)])
        ended = self.exit
        if ended is None and self.world.timeline.now >= self.next_heartbeat:
            self._heartbeat()
        while not self.deleted and self._ship(final=ended is not None):
            pass
        return ended is not None and self._report_exit(ended)

    def _ship(self, *, final: bool) -> bool:
        assert self.offsets is not None
        for name, content in self.files.items():
            offset = self.offsets.get(name, 0)
            if len(content) <= offset:
                continue
            data = bytes(content[offset : offset + self.world.rng.choice([300, 3000, 30000])])
            if name == EVENTS and not final:
                data = data[: data.rfind(b"\n") + 1] or bytes(
                    content[offset : content.find(b"\n", offset) + 1]
                )
            if not data:
                continue
            try:
                self.offsets[name] = self.http(
                    "append",
                    lambda s: s.store.streams.append(self.attempt_id, name, offset, data),  # noqa: B023
                )
            except OffsetMismatch as error:
                self.offsets[name] = error.expected
                return True
            except Fenced:
                self.deleted = True
                self.request_stop("kill", "its run was deleted")
                return False
            self.world.watch.acknowledged(self, name, self.offsets[name])
            if name == EVENTS:
                self._note_step(data)
            return True
        return False

    def _note_step(self, data: bytes) -> None:
        for line in reversed(data.splitlines()):
            if b'"step"' not in line:
                continue
            try:
                step = json.loads(line).get("step")
            except ValueError:
                continue
            if isinstance(step, int):
                self.step = step
                return

    def _heartbeat(self) -> None:
        payload = {
            "node_rank": self.rank,
            "step": self.step,
            "elapsed_s": round(self.world.timeline.now - self.launched_at, 3),
        }
        reply = self.http("heartbeat", lambda s: s.heartbeat(self.attempt_id, dict(payload)))
        self.next_heartbeat = self.world.timeline.now + float(reply["interval_s"])
        if reply["fenced"]:
            self.request_stop("kill", "superseded by another attempt")
            return
        if reply.get("stop_level"):
            self.request_stop(str(reply["stop_level"]), str(reply.get("stop_reason") or "asked"))
        orders = json.dumps(reply["orders"])
        if orders != self.orders:
            self.orders = orders
            self.training.ordered(self, reply["orders"])

    def _report_exit(self, ended: dict[str, Any]) -> bool:
        sizes = {name: len(content) for name, content in self.files.items() if content}
        if self.deleted:
            sizes = {}
        body = {"exit": ended, "sizes": sizes, "node_rank": self.rank}
        reply = self.http("exit", lambda s: s.dispatcher.on_exit(self.attempt_id, dict(body)))
        if reply.get("closed"):
            return True
        self.offsets = dict(reply["offsets"])
        return False

    def http(self, what: str, act: Any) -> Any:
        """Send a request. It may be lost, its answer may be lost, it may arrive once more, or late."""
        world, rng, plan = self.world, self.world.rng, self.world.plan
        if (
            not self.node.on
            or self.node.server_cuts
            or (world.lossy and rng.random() < plan.loss / 2)
        ):
            raise Outage(what)
        server = world.server
        if world.lossy and plan.late and rng.random() < plan.late:
            world.count("late requests")
            world.after(rng.choice([5.0, 60.0, 600.0]), f"{what} late", lambda: self._again(act))
            raise Outage(what)
        if world.lossy and rng.random() < plan.repeats:
            again = rng.choice([0.1, 5.0, 60.0, 600.0])
            world.after(again, f"{what} again", lambda: self._again(act))
        try:
            answer = server.call(lambda: act(server))
        except (Down, StoreUnavailable):
            raise Outage(what) from None
        except (OffsetMismatch, Conflict, Fenced):
            raise
        except LehrError as error:
            world.watch.refused(self, what, error)
            raise Outage(what) from None
        if world.lossy and rng.random() < plan.loss / 2:
            raise Outage(what)
        return answer

    def _again(self, act: Any) -> None:
        server = self.world.server
        with contextlib.suppress(Down, LehrError):
            server.call(lambda: act(server))
