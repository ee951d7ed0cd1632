"""``make gpu``: check a machine with a GPU, run its tests and benches, and write a report.

    python tests/gpu/session.py [--out gpu-report] [--only tests bench ...] [--minutes 15] [--rehearse]

Each step is a command in a process of its own, whose output goes to the terminal and to a file of the
report's folder. A step that passed at this commit is not repeated by the next call; ``--fresh`` repeats
all of them. First come the parts of ``parts.py``: 15 minutes on one GPU, an hour on several.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sys.executable
# A healthy GPU reaches 0.7 of its dense peak; below half, see its power limit and its clocks.
PRODUCT = """
import time, torch
from lehr_trainer.planning.hardware import peak_flops
for index in range(torch.cuda.device_count()):
    name, size, repeats = torch.cuda.get_device_name(index), 8192, 50
    left, right = (torch.randn(size, size, device=f"cuda:{index}").bfloat16() for _ in range(2))
    for repeat in range(repeats + 3):
        if repeat == 3:
            torch.cuda.synchronize(index)
            began = time.perf_counter()
        left @ right
    torch.cuda.synchronize(index)
    speed = 2 * size**3 * repeats / (time.perf_counter() - began)
    peak = peak_flops(name, "bf16")
    share = f"{speed / peak:.0%} of the dense peak" if peak else "its peak is not known"
    print(f"GPU {index}, {name}: {speed / 1e12:.0f} TFLOP/s in a bf16 product of {size}, {share}")
    assert peak is None or speed > 0.5 * peak, "less than half of the peak: power limit, clocks?"
"""


@dataclass(frozen=True)
class Step:
    name: str
    command: Sequence[str]
    about: str


@dataclass
class Outcome:
    name: str
    code: int | None
    """Exit status; None where the time was over."""
    seconds: float
    time: str
    commit: str

    @property
    def status(self) -> str:
        if self.code is None:
            return "time was over"
        return "passed" if self.code == 0 else f"failed ({self.code})"


PARTS = {
    "pinned_torch": "llama-1b with this torch, micro-batches of 8 and 16",
    "fsdp_of_one": "FSDP2 of one rank against none: bitwise, speed",
    "slice_of_7b": "eight layers of a 7B: MFU, memory against the plan",
    "chunk_mb": "chunks of the loss of 1, 2, 4 GB",
    "pinning": "steps beside the first saves",
}
SEVERAL = {  # For two GPUs or more, where they come first.
    "scaling": "tokens/s at 1, 2, 4, 8 GPUs, DDP and each kind of sharding",
    "overlap": "communication that nothing hides; step times over ranks",
    "faults": "a killed and a hung rank of a sharded run: what is recorded, and the resume",
}


def parts(folder: Path, gpus: int, *, rehearse: bool) -> list[Step]:
    """List the parts that this machine can measure, most valuable first."""
    listed = {**(SEVERAL if gpus > 1 else {}), **PARTS}
    command = [PYTHON, "tests/gpu/parts.py", str(folder), *["--rehearse"] * rehearse]
    return [Step(name, [*command, name], about) for name, about in listed.items()]


def steps(folder: Path, budget_s: float, gpus: int) -> list[Step]:
    """List the steps, most valuable first: the time may be over before the last."""
    bench = ["-m", "lehr_trainer", "bench", "gpu", f"--out={folder / 'bench'}"]
    return [
        Step(
            "doctor",
            [str(Path(PYTHON).with_name("lehr")), "doctor"],
            "software, compilers, memory, disk",
        ),
        *parts(folder, gpus, rehearse=False),
        Step("driver", ["nvidia-smi", "-q"], "power limits, clocks, ECC, MIG, PCIe"),
        Step("product", [PYTHON, "-c", PRODUCT], "speed of a bf16 product on each GPU"),
        Step(
            "tests",
            [PYTHON, "-m", "pytest", "-m", "gpu", "-v", "--durations=20", "tests/gpu"],
            "kernels, and whole runs with each technique",
        ),
        Step("bench", [PYTHON, *bench, f"--budget-s={budget_s:.0f}"], "speed, memory and MFU"),
        Step("throughput", [PYTHON, "tests/bench/trainer_throughput.py"], "beside a bare loop"),
        Step("loader", [PYTHON, "tests/bench/loader.py"], "time to make a batch"),
        Step("idle", [PYTHON, "tests/bench/gpu_idle.py"], "idle time between two trials"),
    ]


def run(step: Step, folder: Path, left_s: float) -> Outcome:
    """Run one step to its end, or to the end of the time."""
    print(f"\n== {step.name}: {step.about}\n{shlex.join(step.command)[:200]}", flush=True)
    began = time.monotonic()
    environment = {**os.environ, "LEHR_DATA": str(folder / "data"), "PYTHONPATH": ""}
    code: int | None
    with (folder / f"{step.name}.txt").open("w") as output:
        process = subprocess.Popen(
            step.command,
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=left_s)
        except (subprocess.TimeoutExpired, KeyboardInterrupt) as error:
            end(process)
            if isinstance(error, KeyboardInterrupt):
                raise
            code = None
    print(tail(folder, step.name), flush=True)
    now = f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
    return Outcome(step.name, code, time.monotonic() - began, now, commit())


def end(process: subprocess.Popen[bytes]) -> None:
    """Interrupt the step's processes, so that they end what they started; kill them after a minute."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=60)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tail(folder: Path, name: str, lines: int = 15) -> str:
    return "\n".join((folder / f"{name}.txt").read_text(errors="replace").splitlines()[-lines:])


def commit() -> str:
    """Return the commit, with a mark if files differ from it; empty without git."""
    with suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "describe", "--always", "--dirty"]
        return subprocess.check_output(command, cwd=ROOT, text=True).strip()
    return ""


def write_report(folder: Path, outcomes: Sequence[Outcome], listed: Sequence[Step]) -> None:
    about = {step.name: step.about for step in listed}
    done = "\n".join(
        f"| {o.name} | {about[o.name]} | {o.status} | {o.seconds:.0f} | {o.time} | {o.commit} |"
        for o in outcomes
    )
    ends = "\n".join(
        f"\n## {o.name}\n\n```\n{tail(folder, o.name, 200 if o.name == 'bench' else 40)}\n```"
        for o in outcomes
    )
    left = [name for name in about if name not in {outcome.name for outcome in outcomes}]
    (folder / "report.md").write_text(
        "# GPU report\n\n| step | what it measures | result | s | UTC | commit |\n"
        f"|---|---|---|---:|---|---|\n{done}\n\nNot run yet: {', '.join(left) or 'nothing'}.\n{ends}\n"
    )
    (folder / "report.json").write_text(json.dumps([asdict(o) for o in outcomes], indent=1))


def earlier(folder: Path) -> dict[str, Outcome]:
    path = folder / "report.json"
    return {o["name"]: Outcome(**o) for o in json.loads(path.read_text())} if path.exists() else {}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make gpu ARGS=", description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "gpu-report", help="folder of the report"
    )
    parser.add_argument("--only", nargs="+", metavar="STEP", help="run these steps only")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so long")
    parser.add_argument("--bench-budget-s", type=float, default=1800, help="start no row after it")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier call found")
    parser.add_argument("--rehearse", action="store_true", help="the parts, at a toy size on a CPU")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    folder: Path = options.out.resolve()
    if not options.rehearse and shutil.which("nvidia-smi") is None:
        parser.error("nvidia-smi is not here, so this machine has no driver of an NVIDIA GPU")
    if options.rehearse:
        listed = parts(folder, 2, rehearse=True)
    else:
        gpus = len(subprocess.check_output(["nvidia-smi", "-L"], text=True).splitlines())
        listed = steps(folder, min(options.bench_budget_s, 60 * options.minutes), gpus)
    names = [step.name for step in listed]
    if unknown := set(options.only or ()) - set(names):
        parser.error(f"--only: {', '.join(sorted(unknown))}: the steps are {', '.join(names)}")
    if options.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = earlier(folder)
    for step in listed:
        if options.only and step.name not in options.only:
            continue
        known = outcomes.get(step.name)
        if known and known.code == 0 and known.commit == commit() and not options.only:
            print(f"== {step.name}: passed before")
        elif time.monotonic() < deadline:
            left_s = min(deadline - time.monotonic(), 1e6)
            outcomes[step.name] = run(step, folder, left_s)
        write_report(folder, [outcomes[n] for n in names if n in outcomes], listed)
    print(f"\nreport: {folder / 'report.md'}")
    return int(any(outcome.code for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
