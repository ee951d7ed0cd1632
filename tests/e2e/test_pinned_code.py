"""The code of a run is pinned at submission: every attempt trains with exactly it."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import lehr_trainer
from lehr.faces.client import Run
from lehr_testing.fakes import paced
from lehr_testing.faults.second_node import SecondNode, nodes_in_use
from lehr_testing.server import Server, rank_pids
from lehr_testing.specs import run
from lehr_testing.waiting import until
from lehr_trainer.contract import layout

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("platform"),
]
_LINE = "        return 1.0\n"


class Checkout:
    """A copy of the trainer that somebody edits; runs are submitted from it by the command line."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        source = Path(lehr_trainer.__file__).parent
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(source, folder / "trainer" / "lehr_trainer", ignore=ignored)
        self.schedule = folder / "trainer/lehr_trainer/configs/schedule.py"

    def edit(self, factor: float) -> None:
        """Change what the trainer computes: the learning rate of a constant schedule."""
        original = Path(lehr_trainer.__file__).parent / "configs/schedule.py"
        text = original.read_text()
        assert text.count(_LINE) == 1
        self.schedule.write_text(text.replace(_LINE, f"        return {factor}\n"))

    @property
    def environment(self) -> dict[str, str]:
        return {**self.server.environment, "PYTHONPATH": str(self.folder / "trainer")}

    def lehr(self, *arguments: str) -> None:
        command = [str(Path(sys.executable).parent / "lehr"), *arguments]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def submit(self, verb: str, spec: dict) -> None:
        path = self.folder / f"{spec['name']}.yaml"
        path.write_text(yaml.safe_dump(spec))
        self.lehr(verb, str(path), *(["-y"] if verb == "sweep" else []))

    def weights_without_platform(self, like: Run) -> str:
        """Train the config of a run by the files as they are now; return the weights' digest."""
        config = (self.server.home / "runs" / like.id / layout.CONFIG).read_text()
        folder = self.folder / "alone"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / layout.CONFIG).write_text(config)
        command = [sys.executable, "-P", "-m", "lehr_trainer", str(folder)]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stderr
        return weights(folder)


def weights(run_dir: Path) -> str:
    last = layout.checkpoints(layout.attempts(run_dir)[-1])[-1]
    return hashlib.sha256((last / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture
def checkout(server, tmp_path) -> Checkout:
    made = Checkout(tmp_path / "checkout", server)
    made.edit(0.5)
    return made


def spec_of(corpus: Path, name: str, **more) -> dict:
    schedule = {"name": "constant", "warmup_steps": 0}
    return paced(
        run(corpus, name, schedule=schedule, checkpoint={"every": 4, "keep_last": 9}, **more), 0.2
    )


@pytest.mark.nightly  # tests/platform/node/test_code_fetcher.py fetches and verifies.
def test_run_that_moves_to_another_node_takes_its_code_along(server, corpus, checkout):
    client = server.client()
    node = SecondNode(server, "n2", gpus=1)
    node.start()
    try:
        until(lambda: nodes_in_use(server) == 2, within_s=120, what="two nodes that answer")
        first = next(one.name for one in client.cluster().nodes if one.name != "n2")
        client.exclude_node("n2")
        checkout.submit("submit", spec_of(corpus, "to-move", steps=16))
        moved = client.run("to-move")
        until(
            lambda: moved.refresh().view.step and moved.view.step >= 5,
            within_s=120,
            what="five steps",
        )
        checkout.edit(0.25)
        client.readmit_node("n2")
        client.exclude_node(first)
        for pid in rank_pids(f"{moved.id}-1"):
            os.kill(pid, signal.SIGKILL)
        moved.wait(timeout_s=300)
        client.readmit_node(first)
        assert moved.state == "completed", moved.reason
        assert [a.placement[0].node for a in moved.detail.attempts] == [first, "n2"]
        checkout.edit(0.5)
        alone = checkout.weights_without_platform(moved)
        assert weights(server.home / "runs" / moved.id) == alone
    finally:
        node.kill()
        until(lambda: nodes_in_use(server) == 1, within_s=120, what="the second node to be gone")
