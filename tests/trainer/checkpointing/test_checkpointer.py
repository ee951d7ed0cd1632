"""Background saves: what they hold, when they are recorded, and where their errors are raised."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from lehr_testing import optimizers
from lehr_testing.optimizers import OPTIMIZERS
from lehr_testing.specs import train as train_values
from lehr_trainer.checkpointing import checkpoint, staging
from lehr_trainer.checkpointing import checkpointer as saving
from lehr_trainer.checkpointing.checkpoint import read_manifest, verify
from lehr_trainer.checkpointing.checkpointer import Checkpointer
from lehr_trainer.checkpointing.staging import HostCopy
from lehr_trainer.checkpointing.state import TrainProgress
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.course import Course
from lehr_trainer.data.token_dataset import PreparedData
from lehr_trainer.errors import DiskFull
from lehr_trainer.models import build_model
from lehr_trainer.optim import build_optimizer
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.environment import RunContext
from lehr_trainer.runtime.event_stream import EventStream
from lehr_trainer.runtime.launch import RunPaths
from lehr_trainer.step_control import StepControl, StepDecision
from lehr_trainer.update_step import UpdateStep


def prepared(**changes: Any) -> PreparedData:
    """Describe a corpus of bytes that does not exist."""
    facts: dict[str, Any] = {
        "directory": Path("nowhere"),
        "digest": "d",
        "tokens": 1_000_000,
        "documents": 100,
        "validation_tokens": 5_000,
        "validation_digest": "v",
        "bytes_per_token": 1.0,
        "dtype": "uint16",
        "vocab_size": 257,
        "eos_id": 256,
        "tokenizer": "byte",
        "held_out": None,
        "masked": False,
    }
    return PreparedData(**{**facts, **changes})


CPU = torch.device("cpu")
TIMEOUT_S = 60.0


class Run:
    """The parts of a training that a checkpointer needs, and steps that change all state."""

    def __init__(
        self, folder: Path, optimizer: dict[str, Any] | None = None, **policy: Any
    ) -> None:
        values = train_values(folder, checkpoint={"every": 1, **policy})
        config = TrainConfig.model_validate({**values, "optimizer": optimizer or {"lr": 1e-3}})
        self.attempt = layout.attempt_dir(folder, 1)
        self.attempt.mkdir(parents=True)
        self.logged: list[str] = []
        none: Any = None
        context = RunContext(
            config=config,
            place=RunPaths(folder, self.attempt, LaunchNote(), standalone=True),
            ranks=Ranks(rank=0, world_size=1, device=CPU),
            events=EventStream(self.attempt / layout.EVENTS),
            signals=none,
            timeline=none,
            log=self.logged.append,
        )
        self.model = build_model(config.model, device="cpu", seed=0)
        self.optimizer = build_optimizer(self.model, config.optimizer)
        course = Course(context, none)
        course.data = [prepared()]
        self.checkpointer = Checkpointer(
            context, course, self.model, self.optimizer, UpdateStep(CPU)
        )
        self.config, self.steps = config, 0

    def step(self) -> None:
        generator = torch.Generator().manual_seed(self.steps)
        for parameter in self.model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        self.optimizer.step()
        self.steps += 1

    def save(self, val_loss: float | None = None, *, final: bool = False) -> None:
        progress = TrainProgress(step=self.steps, tokens=self.steps)
        self.checkpointer.save(progress, "interval", val_loss, final=final)

    def records(self, kind: str = "checkpoint") -> list[dict[str, Any]]:
        lines = (self.attempt / layout.EVENTS).read_text().splitlines()
        return [record for record in map(json.loads, lines) if record["kind"] == kind]

    def folder(self, step: int) -> Path:
        return layout.checkpoint_dir(self.attempt, step)

    def digests(self, step: int) -> dict[str, str]:
        files = read_manifest(self.folder(step)).files
        return {name: file.sha256 for name, file in files.items() if name != "state.json"}

    def state(self, step: int) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.folder(step) / "state.json").read_text())
        for own in ("checkpoint", "data"):  # How it saves, and the run's own folder.
            document["config"].pop(own)
        return document


class Gate:
    """A gate in front of ``write_checkpoint``: nothing is written until it opens."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.error: Exception | None = None
        whole = checkpoint.write_checkpoint

        def write(*args: Any, **kwargs: Any) -> Any:
            self.reached.set()
            assert self.opened.wait(TIMEOUT_S)
            if self.error is not None:
                raise self.error
            return whole(*args, **kwargs)

        monkeypatch.setattr(checkpoint, "write_checkpoint", write)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_checkpoint_holds_the_state_at_the_call_of_save(
    name: str, tmp_path: Path, gate: Gate
) -> None:
    optimizer = optimizers.settings(name)
    beside = Run(tmp_path / "beside", optimizer, asynchronous=True)
    blocking = Run(tmp_path / "blocking", optimizer, asynchronous=False)
    for run in (beside, blocking):
        run.step()
        run.checkpointer.poll()
        run.step()
    beside.save()
    assert gate.reached.wait(TIMEOUT_S)
    beside.step()  # Everything changes before a byte is written.
    beside.step()
    gate.opened.set()
    beside.checkpointer.wait()
    blocking.save()
    assert beside.digests(2) == blocking.digests(2)
    assert beside.state(2) == blocking.state(2)
    verify(beside.folder(2))


def test_background_saves_keep_the_last_the_best_and_every_mth(tmp_path: Path) -> None:
    run = Run(tmp_path, keep_last=2, keep_best=True, keep_every=4)
    for val_loss in (3.0, 2.0, 2.5, None, 2.2, 2.6, None):
        run.step()
        run.save(val_loss)
    run.checkpointer.wait()
    kept = [layout.checkpoint_step(path) for path in layout.checkpoints(run.attempt)]
    assert kept == [2, 4, 6, 7]
    assert [record["step"] for record in run.records("checkpoint_removed")] == [1, 3, 5]


# --- errors ----------------------------------------------------------------------------------


def test_error_is_raised_once_after_the_next_step_and_earlier_checkpoints_stay(
    tmp_path: Path, gate: Gate
) -> None:
    run = Run(tmp_path)
    gate.opened.set()
    run.step()
    run.save()
    run.checkpointer.wait()
    gate.error = DiskFull("no space left for checkpoint step-00000002")
    run.step()
    run.save()
    with pytest.raises(DiskFull, match="step-00000002"):
        _boundaries(run.checkpointer.poll, run.checkpointer.wait)
    assert not run.checkpointer.poll(), "the error was already raised"
    run.checkpointer.wait()
    verify(run.folder(1))
    assert [record["step"] for record in run.records()] == [1]


def _boundaries(attend: Callable[[], bool], wait: Callable[[], None]) -> None:
    """Do what the loop does between steps, until a save has failed."""
    ended = threading.Event()
    for _ in range(int(TIMEOUT_S * 100)):
        if attend():
            wait()
        ended.wait(0.01)


def test_failing_run_lets_the_save_finish_and_reports_its_end(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    run.step()
    run.save()
    monkeypatch.setattr(saving, "WAIT_WHEN_FAILING_S", 0.05)
    run.checkpointer.end()
    assert "not done within 0.05 s" in run.logged[-1]
    gate.opened.set()
    monkeypatch.setattr(saving, "WAIT_WHEN_FAILING_S", TIMEOUT_S)
    run.checkpointer.end()
    assert [record["step"] for record in run.records()] == [1]
    gate.error = DiskFull("full")
    run.step()
    run.save()
    run.checkpointer.end()
    assert run.logged[-1] == "warning: the save in progress failed: full"


def test_ranks_agree_that_a_save_failed() -> None:
    signals: Any = SimpleNamespace(received=True)
    boundary = StepControl(Path("nowhere"), signals, 0)
    alone = Ranks(rank=0, world_size=1, device=CPU)
    # Before a stop: the checkpoint that a stop would write is in doubt, too.
    assert boundary.agree(alone, save_failed=True) == StepDecision(save_failed=True)
    assert boundary.agree(alone).stop is not None


# --- memory ----------------------------------------------------------------------------------


def test_saves_block_with_a_warning_if_memory_is_too_small_for_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "free_memory", lambda: 100_000)
    run = Run(tmp_path)
    run.step()
    run.checkpointer.poll()
    run.save()
    assert run.folder(1).exists(), "it is whole when save returns"
    run.step()
    run.save()
    (warning,) = run.records("warning")
    assert warning["code"] == "saves_block"
    assert (
        "a copy of the state takes 0.00 GB of host memory, and 0.00 GB are free"
        in (warning["message"])
    )
    assert "checkpoint.asynchronous: false" in warning["message"]
    assert all(r["blocked_s"] == r["seconds"] for r in run.records())


def test_every_copy_uses_the_same_memory() -> None:
    copy = HostCopy(CPU)
    tensors = {
        "model": {"a": torch.randn(3, 5).t(), "b": torch.tensor(2), "none": torch.empty(0, 4)},
        "optimizer": {"a/codes": torch.arange(7, dtype=torch.uint8), "a/on": torch.tensor(True)},
    }
    first = copy.take(tensors)
    places = {name: view.data_ptr() for name, view in first["model"].items()}
    for kind, named in tensors.items():
        assert first[kind].keys() == named.keys()
        for name, tensor in named.items():
            assert torch.equal(first[kind][name], tensor), name
            assert first[kind][name].dtype == tensor.dtype
    tensors["model"]["a"].add_(1)
    second = copy.take(tensors)
    assert torch.equal(second["model"]["a"], tensors["model"]["a"])
    assert {name: view.data_ptr() for name, view in second["model"].items()} == places
    wider = {"model": {"a": torch.randn(300)}}
    assert torch.equal(copy.take(wider)["model"]["a"], wider["model"]["a"])
    assert copy.nbytes == 1216
