"""How long a GPU is idle between two trials of a queue, compared with the minimum.

    python tests/bench/gpu_idle.py [--trials 20]

Trials of a fifth of a second on one slot, by the whole platform with a trainer that only sleeps.
Idle is from a training's last word to the next one's first, so it holds the end of one process,
its exit told to the server, the next decision, the agent, the shim, and a Python's start. Beside
it, in turns of the same run: a loop that starts the same trainer the moment the last one ended,
which is what a shell script would do, and knows nothing of what it ran.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from lehr_testing import specs  # noqa: E402 - the path is set above
from lehr_testing.fakes import FakeServer  # noqa: E402
from lehr_testing.server import TRAINER  # noqa: E402

STEP_S = 0.2


def gaps(streams: list[Path]) -> list[float]:
    """Seconds between one training's ``finished`` and the next one's ``started``."""
    spans = []
    for stream in streams:
        moments = {}
        for line in stream.read_text().splitlines():
            record = json.loads(line)
            moments[record["kind"]] = record["time"]
        spans.append((moments["started"], moments["finished"]))
    spans.sort()
    return [after[0] - before[1] for before, after in itertools.pairwise(spans)]


def lehr(folder: Path, trials: int) -> list[float]:
    corpus = specs.text_corpus(folder / "corpus")
    server = FakeServer(folder / "home", gpus=1, corpus=corpus)
    server.up()
    try:
        server.cluster_ready()
        server.client().submit(server.spec("warm", steps=1, step_s=0)).wait()
        run = server.spec("jobs", steps=1, step_s=STEP_S, CHECKPOINT_EVERY=0)
        trials = {"train.seed": {"values": list(range(trials))}}
        sweep = server.client().sweep(
            {"kind": "sweep", "name": "jobs", "parameters": trials, "run": run}
        )
        sweep.wait(timeout_s=600)
        assert sweep.refresh().detail.counts == {"completed": trials}, sweep.detail.counts
        assert not server.violations()
        runs = [server.home / "runs" / trial.run.id for trial in sweep.trials]
        return gaps([run / "attempt-1" / "events.jsonl" for run in runs])
    finally:
        server.down()


def bare(folder: Path, trials: int) -> list[float]:
    streams = []
    for number in range(trials):
        attempt = folder / f"bare-{number}" / "attempt-1"
        attempt.mkdir(parents=True)
        (attempt / "launch.json").write_text("{}")
        (attempt.parent / "config.yaml").write_text("steps: 1\n")
        environment: dict[str, Any] = {
            **os.environ,
            "FAKE": "1",
            "FAKE_STEPS": "1",
            "FAKE_STEP_S": str(STEP_S),
            "FAKE_CHECKPOINT_EVERY": "0",
            "CUDA_VISIBLE_DEVICES": "0",
        }
        subprocess.run(
            [sys.executable, "-P", str(TRAINER), str(attempt)],
            env=environment,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        streams.append(attempt / "events.jsonl")
    return gaps(streams)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lehr-bench-") as name:
        before = bare(Path(name) / "before", options.trials)
        ours = lehr(Path(name), options.trials)
        after = bare(Path(name) / "after", options.trials)
    floor = statistics.median([*before, *after])
    idle = statistics.median(ours)
    print(f"bare loop  {floor * 1e3:7.0f} ms between two trainings (median)")
    print(f"Lehr       {idle * 1e3:7.0f} ms, at most {max(ours) * 1e3:.0f} ms")
    print(
        f"Lehr - bare: {(idle - floor) * 1e3:.0f} ms of idle GPU a trial; ratio {idle / floor:.1f}"
    )
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main()
