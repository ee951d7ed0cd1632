"""64 one-second jobs over 8 slots: the whole path of Lehr compared with Ray Tune, in one run.

Lehr's is the real one: HTTP, record, dispatcher, bridge, agent, one shim and one shipper a job;
only the trainer is a sleep. Tune's jobs are sleeps in its own workers. Both clusters stand before
the clock starts; both clocks stop when the last job is recorded as done.

    python tests/bench/makespan.py [--jobs 64] [--slots 8] [--skip-tune]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from lehr_testing import specs  # noqa: E402 - the path is set above
from lehr_testing.fakes import FakeServer  # noqa: E402

TUNE = """
import sys, time
import ray
from ray import tune

jobs, slots = int(sys.argv[1]), int(sys.argv[2])
ray.init(num_gpus=slots, num_cpus=slots, include_dashboard=False, log_to_driver=False)

def job(config):
    time.sleep(1)
    tune.report({"loss": config["n"]})

began = time.perf_counter()
results = tune.Tuner(
    tune.with_resources(job, {"cpu": 1, "gpu": 1}),
    param_space={"n": tune.grid_search(list(range(jobs)))},
    run_config=tune.RunConfig(verbose=0),
).fit()
took = time.perf_counter() - began
assert len(results) == jobs and not results.errors
print("MAKESPAN", took)
"""


def lehr_makespan(jobs: int, slots: int) -> float:
    with tempfile.TemporaryDirectory(prefix="lehr-bench-") as folder:
        where = Path(folder)
        corpus = specs.text_corpus(where / "corpus")
        server = FakeServer(where / "home", gpus=slots, corpus=corpus)
        server.up()
        try:
            server.cluster_ready()
            # One job first, as Tune's workers are not counted from a cold cache either.
            server.client().submit(server.spec("warm", steps=1, step_s=0)).wait()
            run = server.spec("jobs", steps=1, step_s=1.0, CHECKPOINT_EVERY=0)
            trials = {"train.seed": {"values": list(range(jobs))}}
            began = time.time()
            sweep = server.client().sweep(
                {"kind": "sweep", "name": "jobs", "parameters": trials, "run": run}
            )
            sweep.wait(timeout_s=600)
            ends = [trial.run.ended_at or 0.0 for trial in sweep.refresh().trials]
            assert sweep.detail.counts == {"completed": jobs}, sweep.detail.counts
            assert not server.violations()
            return max(ends) - began
        finally:
            server.down()


def tune_makespan(jobs: int, slots: int) -> float:
    with tempfile.TemporaryDirectory(prefix="tune-bench-") as folder:
        done = subprocess.run(
            [sys.executable, "-c", TUNE, str(jobs), str(slots)],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("MAKESPAN")]
    if not lines:
        raise SystemExit(f"Ray Tune failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return float(lines[0].split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=64)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--skip-tune", action="store_true")
    options = parser.parse_args()
    ideal = options.jobs / options.slots
    ours = lehr_makespan(options.jobs, options.slots)
    print(f"{options.jobs} jobs of 1 s over {options.slots} slots; at best {ideal:.1f} s")
    print(f"Lehr      {ours:6.1f} s   {ours / ideal:.2f} x the best")
    if not options.skip_tune:
        tune = tune_makespan(options.jobs, options.slots)
        print(f"Ray Tune  {tune:6.1f} s   {tune / ideal:.2f} x the best")
        print(f"Lehr / Ray Tune: {ours / tune:.2f} (aim: at most 0.2)")


if __name__ == "__main__":
    main()
