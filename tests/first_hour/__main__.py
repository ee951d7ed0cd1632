"""``python -m first_hour``: checks, tests, trainings and the bench on a GPU machine, and a report.

Call it again after an interruption: it goes on with what has not passed. ``--fresh`` starts again.
``--rehearse`` runs the same parts on a CPU, on tiny models, with gloo in place of NCCL.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path

import torch

from first_hour import bench, checks, devices, gpu_tests, ranks, runs
from first_hour.parts import Failed, Machine, Outcome, Part, Session, Settings
from first_hour.session import run
from lehr_testing.paths import ROOT
from lehr_testing.tiers import commit

INTERRUPTED = 130
BY_VALUE = (
    "checks: *",
    "tests: *",
    # What a first training does.
    "run: plain",
    "run: blocks compiled",
    "ranks: alone",
    "ranks: like one",
    "ranks: fast",
    "ranks: resume",
    # Which spec is fast here.
    "bench: target",
    "bench: ranks",
    "run: *",
    "ranks: *",
    "bench: *",
)
"""Names of parts, most valuable first. A part comes after what it compares with."""


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    deadline = None if given.minutes is None else time.monotonic() + 60 * given.minutes
    if not given.rehearse and not torch.cuda.is_available():
        print(
            "error: torch sees no CUDA GPU here. Run `nvidia-smi` to see whether there is a driver, "
            "or rehearse on this CPU: make gpu ARGS=--rehearse",
            file=sys.stderr,
        )
        return 2
    try:
        machine = _machine(rehearse=given.rehearse)
    except Failed as error:
        print(f"error: torch cannot open the GPUs: {error}", file=sys.stderr)
        return 2
    folder: Path = given.out or ROOT / ("gpu-rehearsal" if given.rehearse else "gpu-report")
    if given.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    session = Session(folder.resolve(), machine, _settings(given), _log, deadline)
    chosen = [part for part in every_part(session) if _named(part, given.only)]
    if not chosen:
        print(f"error: no part has a name like {given.only}", file=sys.stderr)
        return 2
    os.environ["LEHR_DATA"] = str(session.folder / "data")
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        outcomes = run(session, chosen)
    except KeyboardInterrupt:
        _log("interrupted; the same command goes on from here")
        return _ended(session, [], INTERRUPTED)
    finally:
        signal.signal(signal.SIGTERM, previous)
    if gpu_tests.note_tier(machine, outcomes):
        _log("tests/TIERS.md has the tier's new row; commit it")
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    return _ended(session, failed, int(bool(failed)))


def every_part(session: Session) -> list[Part]:
    """List all parts in the order in which they run: by value, since time may end before them."""
    parts = [*checks.PARTS, *gpu_tests.parts(), *runs.PARTS, *ranks.parts(session), *bench.PARTS]

    def value(part: Part) -> int:
        return next(i for i, pattern in enumerate(BY_VALUE) if fnmatchcase(part.name, pattern))

    return sorted(parts, key=value)


def _ended(session: Session, failed: list[Outcome], code: int) -> int:
    for outcome in failed:
        _log(f"failed: {outcome.name}: {outcome.reason}")
    _log(f"report: {session.folder / 'report.md'} and report.json")
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make gpu ARGS=", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder of the report; default: gpu-report")
    parser.add_argument("--fresh", action="store_true", help="forget what an earlier call found")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, with tiny models")
    parser.add_argument(
        "--only", action="append", help="parts with such a name, e.g. 'run: *'; may be repeated"
    )
    parser.add_argument("--eager", action="store_true", help="leave out parts that compile")
    parser.add_argument(
        "--bench-budget-s", type=float, default=1800.0, help="begin no bench row after so long"
    )
    parser.add_argument(
        "--minutes",
        type=_positive,
        help="end after about so long: what is worth most runs first, the report names the rest",
    )
    parser.add_argument("--bench-size", help="of `lehr bench gpu`; default: llama-1b-64x2048")
    return parser


def _settings(given: argparse.Namespace) -> Settings:
    size = given.bench_size or ("tiny" if given.rehearse else "llama-1b-64x2048")
    return Settings(size, given.bench_budget_s, not given.eager, given.minutes)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _machine(*, rehearse: bool) -> Machine:
    gpus: tuple[str, ...] = ()
    if not rehearse:
        gpus = tuple(gpu.name for gpu in devices.gpus())
    return Machine("cpu" if rehearse else "cuda", gpus, torch.__version__, commit())


def _named(part: Part, patterns: list[str] | None) -> bool:
    return not patterns or any(fnmatchcase(part.name, pattern) for pattern in patterns)


def _log(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
