"""Real servers, shims and clients with a fake trainer: only the arithmetic is fake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from lehr.base import procfs
from lehr.cluster import ray_head
from lehr.node.attempt_dir import AttemptDir
from lehr_testing import specs
from lehr_testing.server import Server, alive, rank_pids
from lehr_testing.waiting import until


def faked(spec: dict[str, Any], *, step_s: float = 0.02, **more: Any) -> dict[str, Any]:
    """The spec of a run or a sweep, trained by the fake; ``more`` are its FAKE_... variables."""
    run = spec.get("run", spec)
    validation = run["train"].get("validation", {})
    run["env"] = {
        **run.get("env", {}),
        "FAKE": "1",
        "FAKE_STEP_S": str(step_s),
        "FAKE_EVALUATE_EVERY": str(validation.get("every") or 0),
        **{f"FAKE_{key}": str(value) for key, value in more.items()},
    }
    return spec


def paced(spec: dict[str, Any], step_s: float = 0.02) -> dict[str, Any]:
    """The spec of a run or a sweep, trained for real, and so slowly that a test can disturb it."""
    run = spec.get("run", spec)
    run["env"] = {**run.get("env", {}), "PACE_S": str(step_s)}
    return spec


class FakeServer(Server):
    """A server with fake trainings, whose parts can be killed and inspected."""

    def __init__(self, home: Path, *, gpus: int, corpus: Path) -> None:
        super().__init__(home, gpus=gpus)
        self.corpus = corpus
        self.witness = home.parent / "witness"
        self.witness.mkdir(parents=True, exist_ok=True)
        self.runs = home / "runs"

    def spec(
        self, name: str, *, gpus: int = 1, steps: int = 5, step_s: float = 0.05, **more: Any
    ) -> dict[str, Any]:
        """Keyword arguments in capitals become the trainer's FAKE_... variables."""
        env = {f"FAKE_{key}": str(more.pop(key)) for key in list(more) if key.isupper()}
        resources = {"gpus": gpus, **more.pop("resources", {})}
        batch = {"sequences": 8, "sequence_length": 64}  # Any gang of up to 8 shares it evenly.
        spec = specs.run(self.corpus, name, steps=steps, batch=batch, **more)
        spec["resources"] = resources
        spec["env"] = {
            "FAKE": "1",
            "FAKE_STEPS": str(steps),
            "FAKE_STEP_S": str(step_s),
            "FAKE_WITNESS": str(self.witness),
            **env,
        }
        return spec

    # ------------------------------------------------------------------- looking inside

    def entries(self) -> list[AttemptDir]:
        return [
            AttemptDir(str(path)) for path in self.home.glob("node/*/attempts/*") if path.is_dir()
        ]

    def shim(self, attempt_id: str) -> int:
        [entry] = [entry for entry in self.entries() if entry.attempt_id == attempt_id]
        return int(procfs.read_json(entry.file("shim.json"))["pid"])

    def shipper(self, attempt_id: str) -> int:
        [pid] = [p for p in procfs.children(self.shim(attempt_id)) if b"shipper.py" in command(p)]
        return pid

    def trainer(self, attempt_id: str) -> int:
        [pid] = rank_pids(attempt_id)
        return pid

    def ray_processes(self, what: str) -> list[int]:
        head = ray_head.recorded(self.home)
        return [p for p in head.processes() if what.encode() in command(p)] if head else []

    def bridge(self) -> int:
        [pid] = [p for p in procfs.children(self.pid) if b"lehr.cluster.bridge" in command(p)]
        return pid

    def violations(self) -> str:
        path = self.witness / "violations"
        return path.read_text() if path.exists() else ""

    def witnessed(self) -> dict[int, list[str]]:
        """By GPU, the attempts that saw it."""
        return {
            int(path.name.removeprefix("gpu-")): path.read_text().split()
            for path in self.witness.glob("*/gpu-*")
        }

    def nothing_left(self) -> None:
        """Whether no entry, and so no shim, is left on the node."""
        until(lambda: not self.entries(), within_s=30, what="the node's folder to be empty")

    def step(self, attempt_id: str) -> int:
        """Return the last step in the attempt's file, also without a server."""
        run_id, _, number = attempt_id.rpartition("-")
        path = self.runs / run_id / f"attempt-{number}" / "events.jsonl"
        try:
            lines = path.read_text().splitlines()
        except FileNotFoundError:
            return 0
        steps = [json.loads(line).get("step") or 0 for line in lines if line.endswith("}")]
        return max(steps, default=0)


def command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def gone(pid: int, *, within_s: float = 20) -> None:
    until(lambda: not alive(pid), within_s=within_s, what=f"the end of process {pid}")


S = TypeVar("S", bound=FakeServer)


def fake_server(folder: Path, *, gpus: int, kind: type[S] = FakeServer) -> Iterator[S]:
    server = kind(folder / "home", gpus=gpus, corpus=specs.text_corpus(folder / "corpus"))
    server.up()
    try:
        server.cluster_ready()
        yield server
    finally:
        server.down()
