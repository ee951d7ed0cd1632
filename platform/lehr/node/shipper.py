"""The shipper: sends an attempt's streams to the server, and fetches its orders.

Run as ``python -I -S shipper.py ENTRY`` by the shim, and restarted whenever it ends early. It keeps
no state of its own, so it may be killed at any moment. It never touches the training.

Streams are sent by offset: the server's offset decides, a wrong offset is answered with the right
one, and an outage only delays. Events go before logs, in whole lines. The answer to a heartbeat
contains the orders, which are written to orders.json for rank 0, and whether the attempt was
superseded (fenced); then the shim ends it. The last request is the exit with the streams' final
sizes, repeated until the server has everything.
"""

import json
import math
import os
import random
import signal
import stat
import sys
import time
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from lehr.base import killpoints, procfs
from lehr.node import torchrun
from lehr.node.attempt_dir import AttemptDir
from lehr.node.http_client import Outage, Rejected, ServerConnection

CHUNK = 1 << 20
FIRST_S = 1.0
"""Until the first heartbeat, and between looks for new data before it: its answer has the pace of
both. There are no orders yet, and short trainings need no heartbeat.
"""
BACKOFF_S = (0.5, 30.0)
REJECTED_S = 7 * 24 * 3600.0
"""How long the server rejects an attempt that has ended until its rest is given up.

The server may have been restored from a backup that lacks the attempt, or another one may use its
port for some time.
"""
EVENTS = "events.jsonl"
MEDIA = "media.bin"
_MAX_STEP = 1 << 60


class Unseen(Outage):
    """A stream cannot be looked at now, so nobody knows whether all of it is delivered."""


class Shipper:
    def __init__(self, entry: AttemptDir, launch: dict[str, Any]) -> None:
        self.entry = entry
        self.launch = launch
        self.gang = torchrun.Gang(**launch["gang"])
        self.attempt_dir = str(launch["attempt_dir"])
        self.server = ServerConnection(self.address, str(launch["token"]), entry.attempt_id)
        self.unseen: list[str] = []  # The files that could not be looked at the last time.
        # A new attempt has sent nothing; otherwise ask the server.
        self.offsets: dict[str, int] | None = {}
        if self.sizes():
            self.offsets = None
        self.parent = os.getppid()
        self.deleted = False
        self.step: int | None = None
        self.orders = b""
        self.next_heartbeat = time.monotonic() + FIRST_S
        self.send_s = FIRST_S
        self.next_send = 0.0
        self.rejected_since: float | None = None
        self.told: set[str] = set()  # The streams that became shorter, as far as the server knows.

    def address(self) -> str:
        return self.entry.server_url(self.launch)

    def run(self) -> None:
        pause = BACKOFF_S[0]
        while os.getppid() == self.parent:
            try:
                done = self.work()
                self.rejected_since = None
                if done:
                    killpoints.reached("shipper: before the delivery is recorded")
                    procfs.write_atomically(self.entry.file("delivered"), b"")
                    return
                pause = BACKOFF_S[0]
                wait = max(0.0, min(self.next_send, self.next_heartbeat) - time.monotonic())
            except Outage as outage:
                # A server that comes back may have been restored from a backup.
                self.offsets, self.next_send = None, 0.0
                wait = outage.wait_s or pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
                pause = min(pause * 2, BACKOFF_S[1])
                procfs.log(f"{time.time():.0f} {outage}; again in {wait:.1f} s")
                if isinstance(outage, Rejected | Unseen) and self.gives_up():
                    # The streams stay in the run directory.
                    procfs.write_atomically(self.entry.file("delivered"), b"")
                    return
            signal.sigtimedwait({signal.SIGUSR1}, wait)

    def gives_up(self) -> bool:
        """Return whether the server has rejected the ended attempt for too long."""
        now = time.monotonic()
        if self.rejected_since is None:
            self.rejected_since = now
        return now - self.rejected_since >= REJECTED_S and self.entry.exit() is not None

    def work(self) -> bool:
        """Send a heartbeat and new data if they are due. Return True once everything is
        delivered.
        """
        if self.offsets is None:
            self.offsets = self.server.get("streams").json()["offsets"]
            self.note_sent_step()
        ended = self.entry.exit()
        if ended is not None:
            self.next_heartbeat = math.inf
        elif time.monotonic() >= self.next_heartbeat:
            self.heartbeat()
        if ended is None and time.monotonic() < self.next_send:
            return False
        while not self.deleted and self.ship(final=ended is not None):
            if time.monotonic() >= self.next_heartbeat:
                self.heartbeat()
        self.next_send = time.monotonic() + self.send_s
        return ended is not None and self.report_exit(ended)

    # ------------------------------------------------------------------------------ streams

    def streams(self) -> dict[str, str]:
        """Return the streams that this node sends, by name: events first, images last."""
        rank = self.gang.node_rank
        of_node = [f"{name}-{rank}.log" if rank else f"{name}.log" for name in ("launcher", "hang")]
        names = [*(f"rank-{r}.log" for r in self.gang.ranks), *of_node]
        if rank == 0:
            names = [EVENTS, *names, MEDIA]
        return {name: os.path.join(self.attempt_dir, name) for name in names}

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each stream that has begun: 0 if its file is gone again.

        A stream that cannot be looked at now is left out.
        """
        sent = self.offsets or {}
        sizes, self.unseen = {}, []
        for name, path in self.streams().items():
            try:
                if (size := _size(path)) or sent.get(name):
                    sizes[name] = size
            except OSError:  # As while its file server is away: nothing is gone.
                self.unseen.append(path)
        return sizes

    def ship(self, *, final: bool) -> bool:
        """Send one chunk of the first stream with new data; return False if there is none."""
        assert self.offsets is not None
        sizes = self.sizes()
        for name, path in self.streams().items():
            offset = self.offsets.get(name, 0)
            if sizes.get(name, 0) <= offset:
                continue
            data = _read(path, offset, CHUNK)
            if name == EVENTS and not final:
                data = data[: data.rfind(b"\n") + 1] or (data if len(data) == CHUNK else b"")
            if not data:
                continue
            killpoints.reached("shipper: before a chunk is sent")
            answer = self.server.put(f"streams/{name}?offset={offset}", data)
            if answer.status == 409:
                self.offsets[name] = int(answer.json()["offset"])
                return True
            if answer.status == 410:  # The run was deleted while this node was out of reach.
                self.deleted = True
                self.request_stop("kill", "its run was deleted")
                return False
            answer.must(200)
            killpoints.reached("shipper: after a chunk is sent")
            self.offsets[name] = int(answer.json()["offset"])
            if name == EVENTS:
                self.note_step(data)
            return True
        return False

    def note_sent_step(self) -> None:
        """Read the step of what the server has: another shipper sent it, or its answer was lost.

        A training that makes no further step would never count as stalled.
        """
        end = min((self.offsets or {}).get(EVENTS, 0), self.sizes().get(EVENTS, 0))
        if end:
            begin = max(0, end - CHUNK)
            self.note_step(_read(self.streams()[EVENTS], begin, end - begin))

    def note_step(self, data: bytes) -> None:
        for line in reversed(data.splitlines()):
            if b'"step"' not in line:
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            step = record.get("step") if isinstance(record, dict) else None
            # Only what the server accepts: an odd step must not stop the heartbeats.
            if type(step) is int and 0 <= step <= _MAX_STEP:
                self.step = step
                return

    # ------------------------------------------------------------------------ heartbeat and exit

    def heartbeat(self) -> None:
        sizes, sent = self.sizes(), self.offsets or {}
        shorter = {
            name: size
            for name, size in sizes.items()
            if size < sent.get(name, 0) and name not in self.told
        }
        answer = self.server.post(
            "heartbeat",
            {
                "boot_id": procfs.boot_id(),
                "pid": self.parent,
                "node_rank": self.gang.node_rank,
                "sizes": sizes,
                "shorter": shorter,
                "launcher_alive": True,
                "step": self.step,
                "copying": self.copying(),
                "elapsed_s": round(
                    time.clock_gettime(time.CLOCK_BOOTTIME) - self.launch["launched_at_boottime"], 3
                ),
            },
        )
        reply = answer.must(200).json()
        self.told |= shorter.keys()
        self.next_heartbeat = time.monotonic() + float(reply["interval_s"])
        self.send_s = float(reply["send_s"])
        self.next_send = min(self.next_send, time.monotonic() + self.send_s)
        if reply.get("fenced"):
            self.request_stop("kill", "superseded by another attempt")
            return
        if reply.get("stop_level"):
            self.request_stop(
                str(reply["stop_level"]), str(reply.get("stop_reason") or "stop requested")
            )
        orders = json.dumps(reply["orders"]).encode()
        killpoints.reached("shipper: before orders are written")
        if orders != self.orders:
            procfs.write_atomically(os.path.join(self.attempt_dir, "orders.json"), orders)
            self.orders = orders

    def copying(self) -> bool:
        """Return whether a checkpoint of a program is being copied: it has a draft."""
        folder = os.path.join(self.attempt_dir, "checkpoints")
        program = self.launch.get("program") and os.path.isdir(folder)
        return bool(program) and any(name.endswith(".tmp") for name in os.listdir(folder))

    def request_stop(self, stop_level: str, reason: str) -> None:
        if self.entry.request_stop(stop_level, reason):
            procfs.send(self.parent, signal.SIGUSR1)

    def report_exit(self, ended: dict[str, Any]) -> bool:
        # The server stores no streams of a deleted run, so it must not wait for any.
        sizes = {} if self.deleted else self.sizes()
        if not self.deleted and self.unseen:
            raise Unseen(f"{self.unseen[0]} cannot be looked at")
        body = {"exit": ended, "sizes": sizes, "node_rank": self.gang.node_rank}
        killpoints.reached("shipper: before the exit report is sent")
        reply = self.server.post("exit", body).must(200).json()
        killpoints.reached("shipper: after the exit report is sent")
        if reply.get("closed"):
            return True
        if "offsets" in reply:
            self.offsets = dict(reply["offsets"])
        return False


def _size(path: str) -> int:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _read(path: str, offset: int, limit: int) -> bytes:
    with procfs.open_regular(path) as file:
        file.seek(offset)
        return file.read(limit)


def main() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    entry = AttemptDir(sys.argv[1])
    launch = entry.launch()
    if launch is None:
        sys.exit(f"{entry.path}: no launch.json")
    Shipper(entry, launch).run()


if __name__ == "__main__":
    main()
