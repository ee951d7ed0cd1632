"""Plain data of a session: the machine, the parts that it runs, and what came of each."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from lehr_trainer.callbacks import LogFn

Status = Literal["passed", "failed", "not here", "unfinished"]
"""``not here``: this machine lacks something that the part needs. ``unfinished``: the time that it may
take was too short; a further call goes on."""


class Failed(Exception):
    """A part failed; the message has the reason."""


class OutOfTime(Exception):
    """The session's time limit ended a part; a further call begins it again."""


class NotHere(Exception):
    """This machine lacks what the part needs; the message names it."""


@dataclass(frozen=True)
class Machine:
    """What a session runs on. Without a GPU it is rehearsed: on the CPU, with gloo."""

    device: Literal["cpu", "cuda"]
    gpus: tuple[str, ...]
    """Names of the GPUs; empty in a rehearsal."""
    torch: str
    commit: str | None
    """None if files differ from it."""

    @property
    def on_cuda(self) -> bool:
        return self.device == "cuda"

    @property
    def ranks(self) -> int:
        """How many ranks can train here. A rehearsal has two."""
        return len(self.gpus) if self.on_cuda else 2

    def identity(self) -> dict[str, Any]:
        """Return what a kept result must agree with."""
        return {"device": self.device, "gpus": list(self.gpus), "torch": self.torch}


@dataclass(frozen=True)
class Settings:
    """How long and how large the session may be."""

    bench_size: str
    bench_budget_s: float
    compile: bool = True
    """Whether parts that compile run. On a CPU they take minutes."""
    minutes: float | None = None
    """How long the session may take, if limited."""


@dataclass(frozen=True)
class Session:
    """What a part may use."""

    folder: Path
    machine: Machine
    settings: Settings
    log: LogFn
    deadline: float | None = None
    """When its time is over, by ``clock``; None without a limit."""
    clock: Callable[[], float] = time.monotonic

    @property
    def left_s(self) -> float:
        """Seconds until the time limit."""
        return math.inf if self.deadline is None else self.deadline - self.clock()

    def out_of_time(self) -> OutOfTime:
        return OutOfTime(
            f"the session's {self.settings.minutes:g} minutes were over; a further call begins it "
            "again"
        )

    def work(self, name: str, *, fresh: bool = True) -> Path:
        """Return the folder of a part's files, emptied if ``fresh``."""
        path = self.folder / "work" / slug(name)
        if fresh:
            shutil.rmtree(path, ignore_errors=True)
        path.mkdir(parents=True, exist_ok=True)
        return path


@dataclass
class Result:
    """What a part found."""

    figures: dict[str, Any] = field(default_factory=dict)
    """Short values by name, for the tables of the report."""
    text: str = ""
    """Markdown of its own, for the report."""
    unfinished: str = ""
    """What is left for a further call."""


@dataclass(frozen=True)
class Part:
    name: str
    group: str
    """The heading under which the report has it."""
    act: Callable[[Session], Result]
    compiles: bool = False
    always: bool = False
    """It takes seconds, and runs even if the time is over."""
    keeps_to_limit: bool = False
    """It ends by itself when the time is over, with what it has until then."""

    @property
    def kind(self) -> tuple[str, bool]:
        """Parts of one kind take about equally long."""
        return self.group, self.compiles


@dataclass
class Outcome:
    name: str
    group: str
    status: Status
    reason: str = ""
    seconds: float = 0.0
    commit: str | None = None
    time: str = ""
    identity: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def slug(name: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in name).split())
