"""``make soak``: hours of short runs under kills on this machine, and a report of what grew.

    python tests/soak.py --hours 3 [--folder soak-report] [--seed 1] [--hard-every 4]

Work goes in chapters of nine minutes. In each, a run is submitted about every ten seconds, some are
cancelled or paused and resumed, and now and then one process is killed or frozen. Then all runs must end
as they should, and the rules of every fault test judge the record, the streams and what is left. Runs of
the chapter before are deleted. Only every fourth chapter kills the server, its bridge or Ray, so that
their memory can be watched in between.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import random
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from statistics import fmean, linear_regression

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from lehr.base import procfs  # noqa: E402
from lehr.faces.client.runs import Run  # noqa: E402 - the path is set above
from lehr_testing.faults.fault_server import FaultServer, fault_server  # noqa: E402
from lehr_testing.faults.process_killer import ProcessKiller  # noqa: E402

CHAPTER_S = 540.0
RUN_S = 10.0
"""Between two submissions, on average."""
STRIKE_S = (20.0, 60.0)
SAMPLE_S = 15.0
WARM_UP_H = 10 / 60
"""Of each life of a process: its caches fill."""
HARD = {"server", "bridge", "agent", "raylet", "head"}
PLENTY = {"infrastructure": 100, "preemption": 100, "user": 100}
LIMITS = {
    "server": 6.0,
    "bridge": 6.0,
    "agent": 6.0,
    "lehr.db": 20.0,
    "streams.db": 2.0,
    "write-ahead logs": 4.0,
    "replica": 2.0,
    "node": 2.0,
    "logs": 20.0,
}
"""MB per hour below which each counts as flat. Records of runs stay, so lehr.db may grow."""


class Soak:
    def __init__(self, server: FaultServer, folder: Path, chance: random.Random) -> None:
        self.server, self.folder, self.chance = server, folder, chance
        self.began = time.monotonic()
        self.breaches: list[str] = []
        self.ends: Counter[str] = Counter()
        self.strikes: Counter[str] = Counter()
        self.samples: list[dict[str, float | str]] = []
        self.runs = 0
        self.previous: list[Run] = []

    @property
    def hours(self) -> float:
        return (time.monotonic() - self.began) / 3600

    def breach(self, text: str) -> None:
        print(f"{self.hours:7.3f} h  BROKEN: {text}", flush=True)
        self.breaches.append(f"{self.hours:.3f} h: {text}")

    # ---------------------------------------------------------------------------- a chapter

    def chapter(self, seconds: float, *, hard: bool) -> None:
        self.server.begin()
        killer = ProcessKiller(self.server, random.Random(self.chance.random()))
        killer.kinds = {k: find for k, find in killer.kinds.items() if hard or k not in HARD}
        over = threading.Event()

        def storm() -> None:
            while not over.wait(killer.chance.uniform(*STRIKE_S)):
                killer.strike()
                killer.wait_until_recovered(over)

        thread = threading.Thread(target=storm, daemon=True)
        thread.start()
        runs: list[tuple[Run, str]] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            runs.append(self.submit())
            for run, verb in runs[-3:-2]:
                if verb:
                    self.server.verb(run, verb)
            for run, verb in runs[-5:-4]:
                if verb == "pause" and self.server.state(run) == "paused":
                    self.server.verb(run, "resume")
            time.sleep(self.chance.uniform(0.5, 1.5) * RUN_S)
        over.set()
        thread.join()
        self.strikes.update(
            strike.removesuffix(" killed").partition(" frozen")[0] for strike in killer.done
        )
        self.rest(runs)

    def submit(self) -> tuple[Run, str]:
        self.runs += 1
        spec = self.server.spec(
            f"soak-{self.runs}",
            gpus=self.chance.choice([1, 1, 1, 2]),
            steps=self.chance.randint(20, 80),
            step_s=0.2,
            CHECKPOINT_EVERY=10,
            retries=PLENTY,
        )
        return self.server.submit(spec), self.chance.choice(["", "", "", "", "cancel", "pause"])

    def rest(self, runs: list[tuple[Run, str]]) -> None:
        """Wait for the end of every run, judge the chapter, and delete the runs of the one before."""
        self.server.revive()
        try:
            for run, verb in runs:
                if self.server.state(run) == "paused":
                    self.server.verb(run, "resume")
                [state] = self.server.ends(run, within_s=900)
                self.ends[state] += 1
                if state != "completed" and (verb, state) != ("cancel", "cancelled"):
                    self.breach(f"{run.name} ({verb or 'undisturbed'}) is {state}")
            self.server.cluster_ready()
            self.server.verdict(within_s=120)
        except AssertionError as error:
            self.breach(str(error))
        checked = self.server.cli("db", "check", check=False)
        if checked.returncode:
            self.breach(f"lehr db check: {checked.stdout[-2000:]}")
        for run in self.previous:
            self.server.with_retries(lambda client, run_id=run.id: client.run(run_id).delete())
        self.previous = [run for run, _ in runs]
        print(
            f"{self.hours:7.3f} h  {len(runs)} runs, {len(self.breaches)} rules broken", flush=True
        )

    # ----------------------------------------------------------------------------- samples

    def sample_until(self, over: threading.Event) -> None:
        while not over.wait(SAMPLE_S):
            # A process may end at this moment, or may not be back yet.
            with contextlib.suppress(OSError, ValueError, KeyError, AttributeError):
                self.samples.append(self.sample())

    def sample(self) -> dict[str, float | str]:
        home = self.server.home
        agents = self.server.ray_processes("ray::Agent")
        pids = {"server": self.server.pid, "bridge": self.server.bridge(), "agent": min(agents)}
        return {
            "hours": self.hours,
            **{f"{name} life": f"{pid}@{procfs.start_time(pid)}" for name, pid in pids.items()},
            **{name: memory_mb(pid) for name, pid in pids.items()},
            "lehr.db": size_mb([home / "lehr.db"]),
            "streams.db": size_mb([home / "streams.db"]),
            "write-ahead logs": size_mb(home.glob("*.db-wal")),
            **{name: size_mb((home / name).rglob("*")) for name in ("replica", "node", "logs")},
        }

    # ------------------------------------------------------------------------------ report

    def report(self, seed: int) -> str:
        rows = [self.row(name, limit) for name, limit in LIMITS.items()]
        strikes = ", ".join(f"{n} x {kind}" for kind, n in self.strikes.most_common())
        return "\n".join(
            [
                f"# Soak of {self.hours:.2f} hours, seed {seed}\n",
                f"{self.runs} runs: {', '.join(f'{n} {end}' for end, n in self.ends.items())}.",
                f"Processes killed or frozen: {strikes}.\n",
                "## Broken rules\n",
                *(f"- {text}" for text in self.breaches or ["none"]),
                "\n## What grew\n",
                "Growth is the slope by least squares over the longest life of a process, or over all",
                "samples of a file, without the first ten minutes. It is flat below the limit.\n",
                "| what | first (MB) | last (MB) | most (MB) | growth (MB/h) | limit | verdict |",
                "|---|---:|---:|---:|---:|---:|---|",
                *rows,
            ]
        )

    def row(self, name: str, limit: float) -> str:
        lives = Counter(sample.get(f"{name} life", "") for sample in self.samples)
        life = lives.most_common(1)[0][0] if lives else ""
        points = [s for s in self.samples if s.get(f"{name} life", "") == life]
        points = [s for s in points if float(s["hours"]) >= float(points[0]["hours"]) + WARM_UP_H]
        if len(points) < 8:
            return f"| {name} | | | | | {limit:g} | not known: {len(points)} samples |"
        hours, values = ([float(s[key]) for s in points] for key in ("hours", name))
        slope = linear_regression(hours, values).slope
        return (
            f"| {name} | {fmean(values[:4]):.1f} | {fmean(values[-4:]):.1f} | {max(values):.1f} "
            f"| {slope:+.2f} | {limit:g} | {'flat' if slope < limit else 'grows'} |"
        )


def memory_mb(pid: int) -> float:
    [line] = [
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmRSS:")
    ]
    return int(line.split()[1]) * 1024 / 1e6


def size_mb(paths) -> float:
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):
            total += path.stat().st_size if path.is_file() else 0
    return total / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=ROOT / "soak-report", help="of the report")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--hard-every", type=int, default=4, help="0: no chapter kills the server")
    parser.add_argument("--chapter-s", type=float, default=CHAPTER_S)
    options = parser.parse_args()
    folder: Path = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.contextmanager(fault_server)(folder / f"{os.getpid()}", gpus=4) as server:
        soak = Soak(server, folder, random.Random(options.seed))
        over = threading.Event()
        sampler = threading.Thread(target=soak.sample_until, args=[over], daemon=True)
        sampler.start()
        try:
            number = 0
            while (left_s := 3600 * (options.hours - soak.hours)) > 0:
                number += 1
                hard = bool(options.hard_every) and number % options.hard_every == 0
                soak.chapter(min(options.chapter_s, left_s), hard=hard)
        except KeyboardInterrupt:
            print("interrupted; the runs of this chapter are not judged")
        over.set()
        sampler.join()
    if soak.samples:
        with (folder / "samples.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(soak.samples[0]))
            writer.writeheader()
            writer.writerows(soak.samples)
    text = soak.report(options.seed)
    (folder / "report.md").write_text(text + "\n")
    print(text)
    return int(bool(soak.breaches) or "| grows |" in text)


if __name__ == "__main__":
    sys.exit(main())
