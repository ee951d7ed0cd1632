"""The short runs of a soak: what is submitted, which end it must reach, and what people ask of it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from lehr import Client
from lehr.client.runs import Run
from lehr.errors import Conflict, LehrError
from lehr_testing import specs
from lehr_testing.fakes import faked
from lehr_testing.faults.history import Ack
from lehr_testing.faults.hosts import SHARED

ENDS = frozenset({"completed", "failed", "cancelled", "pruned"})
PLENTY = {"infrastructure": 100, "preemption": 100}
PROGRAM = """\
import json, os, time
import lehr_log

for step in range(lehr_log.resume_step + 1, lehr_log.config["steps"] + 1):
    time.sleep(0.2)
    lehr_log.log({"train/loss": 1.0 / step}, step=step)
    if step % 10 == 0 or lehr_log.should_stop():
        with open("state.json", "w") as file:
            json.dump({"step": step}, file)
        lehr_log.checkpoint("state.json", step=step)
    if lehr_log.should_stop():
        break
"""


@dataclass(frozen=True)
class Kind:
    share: float
    ends: frozenset[str]
    """States in which it may end. ``failed`` is right only for code that is to fail."""
    fake: dict[str, Any] = field(default_factory=dict)
    ask: str = ""
    resources: dict[str, int] = field(default_factory=lambda: {"gpus": 1})
    retries: dict[str, int] = field(default_factory=lambda: PLENTY | {"user": 0})
    steps: tuple[int, int] = (20, 80)


COMPLETES = frozenset({"completed"})
KINDS = {
    "plain": Kind(8, COMPLETES),
    "program": Kind(2, COMPLETES),
    "fails once": Kind(2, COMPLETES, {"FAIL_AT": 6, "FAIL_TIMES": 1}, retries=PLENTY | {"user": 2}),
    "fails": Kind(1, frozenset({"failed"}), {"FAIL_AT": 8}),
    "cancelled": Kind(2, COMPLETES | {"cancelled"}, ask="cancel", steps=(200, 400)),
    "deaf": Kind(0.5, frozenset({"cancelled"}), {"DEAF": 1}, ask="cancel", steps=(99_999, 99_999)),
    "paused": Kind(2, COMPLETES, ask="pause", steps=(100, 200)),
    "two nodes": Kind(0.5, COMPLETES, resources={"gpus": 2, "nodes": 2}),
}


@dataclass
class Submitted:
    name: str
    kind: str
    at_h: float
    id: str | None = None
    """None until the submission was acknowledged."""
    state: str = ""
    reason: str = ""
    due_h: float = 0.0
    """When a person does ``ask``."""
    ask: str = ""

    @property
    def ended(self) -> bool:
        return self.state in ENDS


class Work:
    """Submit runs and act on them; a server that does not answer is asked again later."""

    def __init__(self, folder: Path, client: Callable[[], Client], chance: random.Random) -> None:
        self.folder = folder / "specs"
        self.folder.mkdir(exist_ok=True)
        (self.folder / "program.py").write_text(PROGRAM)
        self.client = client
        self.chance = chance
        self.runs: list[Submitted] = []
        self.acknowledged: list[Ack] = []
        self.unanswered = 0

    def begin(self) -> None:
        """Begin a chapter: what was judged is forgotten here."""
        self.runs.clear()
        self.acknowledged.clear()

    def submit(self, number: int, now_h: float) -> None:
        kind = self.chance.choices(list(KINDS), [one.share for one in KINDS.values()])[0]
        one = Submitted(f"soak-{number}", kind, now_h, ask=KINDS[kind].ask)
        one.due_h = now_h + self.chance.uniform(2, 25) / 3600
        self.runs.append(one)
        self._send(one)

    def spec(self, one: Submitted) -> dict[str, Any]:
        kind = KINDS[one.kind]
        steps = random.Random(one.name).randint(*kind.steps)
        if one.kind == "program":
            return {
                "kind": "run",
                "name": one.name,
                "trainer": {"script": "program.py", "args": {"steps": steps}, "steps_arg": "steps"},
                "code": {"include": ["program.py"]},
                "resources": dict(kind.resources),
                "retries": kind.retries,
            }
        batch = {"sequences": 8, "sequence_length": 64}
        corpus = Path(SHARED, "corpus")
        spec = specs.run(corpus, one.name, steps=steps, batch=batch, retries=dict(kind.retries))
        spec["resources"] = dict(kind.resources)
        more = {"CHECKPOINT_EVERY": 10, "WITNESS": f"{SHARED}/witness", **kind.fake}
        return faked(spec, step_s=0.2, **more)

    def _send(self, one: Submitted) -> None:
        """Send it with its name as the key, so that sending it again records it once."""
        spec: Any = self.spec(one)
        if one.kind == "program":
            path = self.folder / f"{one.name}.yaml"
            path.write_text(yaml.safe_dump(spec))
            spec = path
        with self.client() as client:
            try:
                one.id = client.submit(spec, idempotency_key=one.name).id
            except LehrError:
                self.unanswered += 1
                return
        self.acknowledged.append(Ack("submit", one.id))
        (self.folder / f"{one.name}.yaml").unlink(missing_ok=True)

    def turn(self, now_h: float) -> None:
        """Send again what was not acknowledged, and do what people want by now."""
        for one in self.runs:
            if one.id is None:
                self._send(one)
        for one in self.runs:
            if one.ask and one.id is not None and now_h >= one.due_h:
                self._ask(one)

    def _ask(self, one: Submitted) -> None:
        assert one.id is not None
        with self.client() as client:
            try:
                run = client.run(one.id)
                if one.ask == "resume" and run.state not in ENDS | {"paused"}:
                    return  # It saves.
                if run.state not in ENDS:
                    self._act(run, one.ask)
            except Conflict:
                pass
            except LehrError:
                self.unanswered += 1
                return
        one.ask = "resume" if one.ask == "pause" else ""

    def _act(self, run: Run, verb: str) -> None:
        getattr(run, verb)()
        self.acknowledged.append(Ack("run" if verb == "resume" else verb, run.id))

    def refresh(self) -> list[Submitted]:
        """Read the states of what has not ended; return those that have not ended."""
        with self.client() as client:
            for one in self.runs:
                if one.id is not None and not one.ended:
                    run = client.run(one.id)
                    one.state, one.reason = str(run.state), run.reason or ""
        return [one for one in self.runs if not one.ended]

    def wrong_ends(self) -> list[str]:
        """Return runs that ended otherwise than they should have, or without a reason."""
        wrong = []
        for one in self.runs:
            if one.state not in KINDS[one.kind].ends:
                wrong.append(f"end: {one.name} ({one.kind}) is {one.state}: {one.reason}")
            elif one.state == "failed" and "broken" not in one.reason:
                wrong.append(f"end: {one.name} failed without its own reason: {one.reason!r}")
        return wrong
