"""A trainer for tests of the platform around it: starts in milliseconds, imports no torch.

It keeps to the run directory's contract as the real one does (events.jsonl, orders.json,
launch.json, checkpoints with a manifest). What it does comes from environment variables (a spec's
``env``):

FAKE_STEPS, FAKE_STEP_S    how long it trains; by default as many steps as the run's config has
FAKE_CHECKPOINT_EVERY      steps between checkpoints
FAKE_EVALUATE_EVERY        steps between evaluations, of which the last step has one, too
FAKE_FAIL_AT               step at which it raises; FAKE_FAIL_TIMES: only in the first so many attempts
FAKE_DEAF                  ignores orders and SIGTERM, as a hung training does
FAKE_HANG_AT               step at which it stops stepping, and lives on; as often as FAIL_TIMES
FAKE_WITNESS               a folder where each process notes the GPUs that it sees, for as long as
                           it has them; two at once on one GPU are noted as a violation. In
                           journal/ in it each rank notes when it began and that it still lives
FAKE_CHILDREN              starts so many grandchildren in sessions of their own, as loaders are
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lehr_trainer import process_start

ATTEMPT = Path(sys.argv[1])
RANK = int(os.environ.get("RANK", "0"))
CONFIG = (ATTEMPT.parent / "config.yaml").read_text()
STEPS = int(os.environ.get("FAKE_STEPS") or re.search(r"^steps: (\d+)", CONFIG, re.MULTILINE)[1])
STEP_S = float(os.environ.get("FAKE_STEP_S", "0.05"))
EVERY = int(os.environ.get("FAKE_CHECKPOINT_EVERY", "5"))
EVALUATE_EVERY = int(os.environ.get("FAKE_EVALUATE_EVERY", "0"))
FAIL_AT = int(os.environ.get("FAKE_FAIL_AT", "0"))
HANG_AT = int(os.environ.get("FAKE_HANG_AT", "0"))
FAIL_TIMES = int(os.environ.get("FAKE_FAIL_TIMES", "1000"))
DEAF = bool(os.environ.get("FAKE_DEAF"))
WITNESS = os.environ.get("FAKE_WITNESS")
NUMBER = int(ATTEMPT.name.rpartition("-")[2])

terminated = False


def on_term(_number: int, _frame: Any) -> None:
    global terminated  # noqa: PLW0603 - a script
    terminated = not DEAF


def write_record(kind: str, **fields: Any) -> None:
    if RANK:
        return
    with (ATTEMPT / "events.jsonl").open("a") as file:
        file.write(json.dumps({"kind": kind, "time": time.time(), **fields}) + "\n")


def handicap() -> float:
    """Decades between the learning rate and 1e-3: trials of a sweep differ by it."""
    found = re.search(r"^optimizer:$(?:\n +.*)*?\n  lr: (\S+)", CONFIG, re.MULTILINE)
    return abs(math.log10(float(found[1])) + 3) if found else 0.0


def orders() -> dict[str, Any]:
    try:
        return dict(json.loads((ATTEMPT / "orders.json").read_text()))
    except (OSError, ValueError):
        return {}


def save(step: int, reason: str) -> None:
    if RANK:
        return
    folder = ATTEMPT / "checkpoints" / f"step-{step:08d}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text("{}")
    path = folder.relative_to(ATTEMPT.parent)
    write_record(
        "checkpoint", step=step, path=str(path), size_bytes=2, digest="0" * 64, reason=reason
    )


def witness() -> list[Any]:
    """Hold a file per visible GPU exclusively; record if another process has it."""
    if not WITNESS or RANK:
        return []
    folder, held = Path(WITNESS), []
    # Two nodes both have a GPU 0; their lock folders distinguish them.
    node = folder / Path(os.environ["LEHR_GPU_LOCKS"].split(os.pathsep)[0]).parents[1].name
    node.mkdir(exist_ok=True)
    for gpu in os.environ["CUDA_VISIBLE_DEVICES"].split(","):
        held.append((node / f"gpu-{gpu}").open("a"))
        try:
            fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            (folder / "violations").open("a").write(f"{ATTEMPT} on GPU {gpu}\n")
        held[-1].write(f"{os.environ['LEHR_ATTEMPT']}\n")
        held[-1].flush()
    return held


class Journal:
    """The journal of this process on the machine's monotonic clock, independent of Lehr."""

    def __init__(self) -> None:
        self.file = None
        if WITNESS:
            folder = Path(WITNESS, "journal")
            folder.mkdir(exist_ok=True)
            name = f"{os.environ['LEHR_ATTEMPT']}.{RANK}.{os.getpid()}.jsonl"
            self.file = (folder / name).open("a", buffering=1)

    def note(self, what: str, **fields: Any) -> None:
        if self.file is not None:
            self.file.write(json.dumps({"what": what, "at": time.monotonic(), **fields}) + "\n")


def main() -> None:
    process_start.die_with_parent()
    process_start.hold_gpus()
    signal.signal(signal.SIGTERM, on_term)
    journal = Journal()
    gpus = os.environ.get("LEHR_GPU_LOCKS", "").split(os.pathsep)
    journal.note("began", attempt=os.environ.get("LEHR_ATTEMPT"), rank=RANK, gpus=gpus)
    seen = witness()
    print(
        f"fake trainer {os.environ.get('LEHR_ATTEMPT')} on {os.environ['CUDA_VISIBLE_DEVICES']}",
        flush=True,
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True
        )
        for _ in range(int(os.environ.get("FAKE_CHILDREN", "0")))
    ]
    step, worse = 0, handicap()
    write_record(
        "started",
        attempt=NUMBER,
        total_steps=STEPS,
        world_size=int(os.environ.get("WORLD_SIZE", "1")),
    )
    launch = json.loads((ATTEMPT / "launch.json").read_text())
    if launch.get("resume_from"):
        step = int(launch["resume_from"].rpartition("-")[2])
        write_record("resumed", step=step, checkpoint=launch["resume_from"])
    while step < STEPS:
        wanted = {} if DEAF else orders()
        if wanted.get("desired") == "stop":
            write_record("stopping", step=step, reason="cancel")
            return write_record("finished", step=step, outcome="stopped", cause="cancel")
        if wanted.get("desired") == "pause" or terminated:
            reason = "pause" if wanted.get("desired") == "pause" else "signal"
            write_record("stopping", step=step, reason=reason)
            save(step, "stop")
            return write_record("finished", step=step, outcome="stopped", cause=reason)
        time.sleep(STEP_S)
        step += 1
        journal.note("step", step=step)
        while step == HANG_AT and NUMBER <= FAIL_TIMES:
            time.sleep(STEP_S)
        if step == FAIL_AT and NUMBER <= FAIL_TIMES:
            raise RuntimeError(os.environ.get("FAKE_FAIL_TEXT", "the user's code is broken"))
        loss = 1.0 / step + worse
        write_record("metrics", step=step, tokens=step * 10, values={"train/loss": loss})
        if EVALUATE_EVERY and (step % EVALUATE_EVERY == 0 or step == STEPS):
            write_record("evaluation", step=step, tokens=step * 10, values={"val/loss": loss})
        if EVERY and step % EVERY == 0:
            save(step, "interval")
    write_record("finished", step=step, outcome="completed")
    journal.note("ended")
    del seen, children
    return None


if __name__ == "__main__":
    main()
