"""One call of a soak: chapters of work under faults, each judged when it has come to rest."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lehr.errors import LehrError
from lehr_trainer.files import write_atomically
from soak import judge, samples
from soak.faults import Faults
from soak.machines import FAILED, Machines
from soak.work import Submitted, Work

STATE, EVENTS, SAMPLES = "state.json", "events.jsonl", "samples.csv"
NO_END_S = 900.0
"""Within which every run of a chapter ends once the faults are over."""


@dataclass(frozen=True)
class Pace:
    chapter_s: float = 540.0
    run_s: float = 10.0
    """Between two submissions, on average."""
    fault_s: tuple[float, float] = (30.0, 90.0)
    """Between the recovery from a fault and the next one."""
    sample_s: float = 15.0
    hard_every: int = 4
    """One chapter in so many kills the server and ends its bridge. In the others their memory is
    watched."""
    faults: tuple[str, ...] = ()
    """The faults of a chapter in their order; drawn if there are none."""


class Session:
    def __init__(self, folder: Path, pace: Pace, *, seed: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.pace = pace
        self.state: dict[str, Any] = {"hours": 0.0, "run": 0, "chapter": 0, "previous": 0}
        with contextlib.suppress(FileNotFoundError):
            self.state = json.loads((folder / STATE).read_text())
        drawn = random.SystemRandom().randrange(2**32)
        self.seed = drawn if seed is None else seed
        chance = random.Random(self.seed)
        self.lock = threading.Lock()
        self.stopping = threading.Event()
        """Set to end the call early: the chapter is brought to rest and judged all the same."""
        self.machines = Machines(folder, self.tell)
        self.work = Work(folder, self.machines.client, random.Random(chance.random()))
        self.faults = Faults(self.machines, random.Random(chance.random()), self.tell, self.breach)
        self.begun = time.monotonic()
        self.hours_before = float(self.state["hours"])
        self.broken = 0

    # ------------------------------------------------------------------------ recording

    @property
    def hours(self) -> float:
        """Hours of soak, over all calls."""
        return self.hours_before + (time.monotonic() - self.begun) / 3600

    def note(self, what: str, **fields: Any) -> None:
        line = {"what": what, "hours": round(self.hours, 4), "at": round(time.time(), 1), **fields}
        with self.lock, (self.folder / EVENTS).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def tell(self, text: str) -> None:
        print(f"{self.hours:7.3f} h  {text}", flush=True)
        self.note("told", text=text)

    def breach(self, text: str) -> None:
        self.broken += 1
        print(f"{self.hours:7.3f} h  BROKEN: {text}", flush=True)
        self.note("breach", text=text)

    def keep(self) -> None:
        self.state["hours"] = self.hours
        write_atomically(self.folder / STATE, json.dumps(self.state))

    # -------------------------------------------------------------------------- running

    def run(self, hours: float) -> None:
        """Run chapters until so many hours more have passed, or until ``stopping``."""
        self.note("call", seed=self.seed, asked_hours=hours)
        try:
            self.machines.start()
            self.begun = time.monotonic()  # Installing and booting is no soak.
            self.tell(f"both machines are up; seed {self.seed}")
            over = threading.Event()
            sampler = threading.Thread(target=self.sample_until, args=[over], daemon=True)
            sampler.start()
            try:
                end = self.hours_before + hours
                while self.hours < end and not self.stopping.is_set():
                    self.chapter(min(self.pace.chapter_s, (end - self.hours) * 3600))
            finally:
                over.set()
                sampler.join()
        except KeyboardInterrupt:
            self.tell("interrupted; what ran is not judged")
        finally:
            self.keep()
            self.machines.end()

    def sample_until(self, over: threading.Event) -> None:
        while not over.wait(self.pace.sample_s):
            self.sample(rest=False)

    def sample(self, *, rest: bool) -> None:
        with contextlib.suppress(*FAILED, ProcessLookupError):
            row = samples.take(self.machines.alpha, self.machines.beta, self.hours, rest=rest)
            if row is not None:
                with self.lock:
                    samples.append(self.folder / SAMPLES, row)
        self.keep()

    def chapter(self, seconds: float) -> None:
        state = self.state
        state["chapter"] += 1
        self.note("chapter", number=state["chapter"])
        self.work.begin()
        self.settle_leftovers()
        first = judge.first_of_chapter(self.machines)
        calm = threading.Event()
        weather = threading.Thread(target=self.storm, args=[calm], daemon=True)
        weather.start()
        end = time.monotonic() + seconds
        due = 0.0
        while time.monotonic() < end and not self.stopping.is_set():
            if time.monotonic() >= due:
                due = time.monotonic() + self.work.chance.uniform(0.5, 1.5) * self.pace.run_s
                state["run"] += 1
                self.keep()  # A name is never used twice, also not by the next call.
                self.work.submit(state["run"], self.hours)
            self.work.turn(self.hours)
            self.stopping.wait(1.0)
        calm.set()
        weather.join()
        self.rest(first)
        state["previous"] = first
        self.keep()

    def storm(self, calm: threading.Event) -> None:
        kinds = list(self.pace.faults)
        every = self.pace.hard_every
        if not kinds and every and self.state["chapter"] % every == 0:
            kinds = self.faults.hard()
        while not calm.wait(self.faults.chance.uniform(*self.pace.fault_s)):
            if self.pace.faults and not kinds:
                return
            kind = kinds.pop(0) if kinds else self.faults.draw()
            try:
                done, recovered_s = self.faults.strike(kind)
            except FAILED as error:
                self.breach(f"fault {kind}: {type(error).__name__}: {error}"[:1000])
                continue
            self.tell(f"{done}; in use again after {recovered_s:.0f} s")
            self.note("fault", kind=kind, done=done, recovered_s=round(recovered_s, 1))

    def settle_leftovers(self) -> None:
        """Wait for the ends of runs that an interrupted call left; they are not judged."""
        with contextlib.suppress(LehrError), self.machines.client() as client:
            for run in client.runs(states=["queued", "paused", "starting", "running", "stopping"]):
                with contextlib.suppress(LehrError):
                    run.cancel()
                    run.wait(timeout_s=300)

    def rest(self, first: int) -> None:
        """Wait for the end of every run, judge the chapter, and delete the runs of the one before."""
        open_runs = self.wait_for_ends()
        for one in open_runs:
            self.breach(f"no end: {one.name} ({one.kind}) is {one.state or 'not acknowledged'}")
        wrong = [*self.work.wrong_ends()] if not open_runs else []
        wrong += judge.breaches(self.machines, self.work.acknowledged, first)
        wrong += judge.record_is_sound(self.machines)
        for text in wrong:
            self.breach(text)
        with self.machines.client() as client:
            for one in self.work.runs:
                if one.id is not None:
                    attempts = client.run(one.id).attempt
                    self.note("ended", kind=one.kind, state=one.state, attempts=attempts, id=one.id)
        deleted = judge.forget(self.machines, self.state["previous"])
        self.stopping.wait(self.pace.sample_s)
        self.sample(rest=True)
        self.tell(
            f"chapter {self.state['chapter']}: {len(self.work.runs)} runs ended, {len(wrong)} rules "
            f"broken, {deleted} old runs deleted"
        )

    def wait_for_ends(self) -> list[Submitted]:
        deadline = time.monotonic() + NO_END_S
        while True:
            left = self.work.runs
            with contextlib.suppress(LehrError):
                self.work.turn(self.hours)
                left = self.work.refresh()
                if not left:
                    return []
            if time.monotonic() > deadline:
                return left
            time.sleep(1.0)
