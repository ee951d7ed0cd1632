"""Checkpoints are complete or absent, damage is found, and nothing is unpickled."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import random
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from lehr_trainer.checkpointing import checkpoint, state
from lehr_trainer.checkpointing.checkpoint import (
    Manifest,
    read_tensors,
    verify,
    write_checkpoint,
)
from lehr_trainer.checkpointing.resume import choose_checkpoint
from lehr_trainer.checkpointing.retention import Held, prune, superfluous
from lehr_trainer.checkpointing.state import TrainProgress
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import AdamWConfig, CheckpointConfig, LlamaConfig
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.errors import BadCheckpoint, DiskFull, MissingCheckpoint
from lehr_trainer.models import build_model
from lehr_trainer.optim import build_optimizer

TENSORS = {
    "model": {
        "a": torch.arange(12.0).reshape(3, 4),
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0, 4),
        "half": torch.randn(5, dtype=torch.bfloat16),
        "strided": torch.arange(12).reshape(3, 4).t(),
    },
    "optimizer": {"a/exp_avg": torch.ones(3, 4)},
}


def save(folder: Path, step: int = 1, **manifest: object) -> Path:
    values = {"step": step, "tokens": 10 * step, "reason": "interval", **manifest}
    target = layout.checkpoint_dir(folder, step)
    write_checkpoint(
        target,
        tensors=TENSORS,
        documents={"state": {"step": step}},
        manifest=Manifest.model_validate(values),
    )
    return target


def attempt(run_dir: Path, number: int) -> Path:
    folder = layout.attempt_dir(run_dir, number)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# --- writing and reading ---------------------------------------------------------------------


def test_tensors_are_read_back_bitwise(tmp_path: Path) -> None:
    target = save(tmp_path)
    manifest = verify(target)
    for kind, named in TENSORS.items():
        read = read_tensors(target, manifest, kind)
        assert read.keys() == named.keys()
        for name, tensor in named.items():
            assert read[name].dtype == tensor.dtype
            assert torch.equal(read[name], tensor), name
    assert checkpoint.read_document(target, "state") == {"step": 1}


def test_files_are_valid_safetensors(tmp_path: Path) -> None:
    target = save(tmp_path)
    theirs = safetensors.torch.load_file(target / "model.safetensors")
    assert torch.equal(theirs["strided"], TENSORS["model"]["strided"])
    assert {path.suffix for path in target.iterdir()} == {".safetensors", ".json"}


def test_many_tensors_are_spread_over_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "FILE_BYTES", 60)
    target = save(tmp_path)
    manifest = verify(target)
    assert sum(name.startswith("model-") for name in manifest.files) > 1
    assert read_tensors(target, manifest, "model").keys() == TENSORS["model"].keys()


def test_the_manifest_lists_every_file_with_its_size_and_digest(tmp_path: Path) -> None:
    target = save(tmp_path)
    manifest = verify(target)
    names = {path.name for path in target.iterdir()} - {layout.MANIFEST}
    assert set(manifest.files) == names
    for name, entry in manifest.files.items():
        content = (target / name).read_bytes()
        assert (entry.size, entry.sha256) == (len(content), hashlib.sha256(content).hexdigest())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    target = save(tmp_path)
    before = (target / layout.MANIFEST).read_bytes()
    with pytest.raises(OSError):
        save(tmp_path)
    assert (target / layout.MANIFEST).read_bytes() == before


def save_and_die(folder: Path, calls: int) -> int:
    """Save in a child that is killed at its ``calls``-th call that changes the disk.

    Returns:
        The child's exit status; 0 if it came to the end.
    """
    left = iter(range(calls))

    def counting(call: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **kwargs: Any) -> Any:
            if next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return instead

    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        os.fsync = counting(os.fsync)
        for name in ("open", "mkdir", "rename"):
            setattr(Path, name, counting(getattr(Path, name)))
        save(folder, 2)
        os._exit(0)
    finally:
        os._exit(1)


def test_save_killed_anywhere_leaves_a_complete_folder_or_none(tmp_path: Path) -> None:
    outcomes = []
    for calls in range(50):
        folder = attempt(tmp_path / f"run-{calls}", 1)
        status = save_and_die(folder, calls)
        named = [path for path in folder.glob("checkpoints/*") if path.suffix != ".tmp"]
        for path in named:
            verify(path)
        outcomes.append((status, len(named)))
        if status == 0:
            break
    assert outcomes[-1] == (0, 1), outcomes
    assert outcomes[0] == (signal.SIGKILL, 0)
    assert (signal.SIGKILL, 1) in outcomes, "after the rename it is whole already"
    assert len(outcomes) > 10, "it has to have been killed at many places"


# --- damage and malice -----------------------------------------------------------------------


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    target = save(tmp_path)
    path = target / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors is damaged"):
        verify(target)


def test_a_truncated_file_is_found(tmp_path: Path) -> None:
    target = save(tmp_path)
    path = target / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadCheckpoint, match=r"optimizer\.safetensors has .* but its manifest has"):
        verify(target)


def test_a_missing_file_is_found(tmp_path: Path) -> None:
    target = save(tmp_path)
    (target / "state.json").unlink()
    with pytest.raises(BadCheckpoint, match=r"state\.json cannot be read"):
        verify(target)


class Planted:
    """A class whose unpickling leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (os.mkdir, (str(self.mark),))


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json", ".metadata"],
)
def test_a_planted_pickle_never_runs(tmp_path: Path, name: str) -> None:
    target, mark = save(tmp_path), tmp_path / "it ran"
    for payload in (pickle.dumps(Planted(mark)), _as_torch_file(Planted(mark), tmp_path)):
        (target / name).write_bytes(payload)
        if name in {"manifest.json", ".metadata"}:
            files = None
        else:
            # The attacker makes the digests right, too.
            files = json.loads((target / layout.MANIFEST).read_text())
            files["files"][name] = {
                "size": len(payload),
                "sha256": hashlib.sha256(payload).hexdigest(),
            }
            (target / layout.MANIFEST).write_text(json.dumps(files))
        if name == ".metadata":
            verify(target)
        else:
            with pytest.raises(BadCheckpoint):
                verify(target)
    assert not mark.exists()


def _as_torch_file(value: object, folder: Path) -> bytes:
    torch.save(value, folder / "planted.pt")
    return (folder / "planted.pt").read_bytes()


def test_planted_pickle_runs_if_it_is_unpickled(tmp_path: Path) -> None:
    mark = tmp_path / "it ran"
    pickle.loads(pickle.dumps(Planted(mark)))
    assert mark.exists()


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "sub/file", ".."])
def test_a_manifest_cannot_point_outside_its_folder(tmp_path: Path, name: str) -> None:
    target = save(tmp_path)
    manifest = json.loads((target / layout.MANIFEST).read_text())
    manifest["files"][name] = {"size": 0, "sha256": ""}
    (target / layout.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(BadCheckpoint, match="not a plain file name"):
        verify(target)


# --- a full disk -----------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)], check=False
    )
    if mounted.returncode:
        pytest.skip("this machine does not let root mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_is_reported_and_leaves_earlier_checkpoints_intact(small_disk: Path) -> None:
    earlier = save(small_disk, 1)
    with pytest.raises(DiskFull, match="no space left for checkpoint step-00000002"):
        write_checkpoint(
            layout.checkpoint_dir(small_disk, 2),
            tensors={"model": {"a": torch.ones(2_000_000)}},
            documents={},
            manifest=Manifest(step=2, tokens=2, reason="interval"),
        )
    verify(earlier)
    assert [p.name for p in (small_disk / layout.CHECKPOINTS).iterdir()] == [earlier.name]


# --- which stay, which is taken --------------------------------------------------------------


def held(*steps_and_losses: tuple[int, float | None]) -> list[Held]:
    return [Held(Path(f"step-{step}"), step, loss) for step, loss in steps_and_losses]


def kept_steps(policy: CheckpointConfig, every: list[Held]) -> list[int]:
    gone = superfluous(every, policy)
    return [one.step for one in every if one not in gone]


def test_retention_keeps_the_last_the_best_and_every_mth() -> None:
    every = held((10, 3.0), (20, 2.0), (30, 2.5), (40, None), (50, 2.2), (60, 2.6))
    assert kept_steps(CheckpointConfig(keep_last=2, keep_best=False), every) == [50, 60]
    assert kept_steps(CheckpointConfig(keep_last=2), every) == [20, 50, 60]
    assert kept_steps(CheckpointConfig(keep_last=3, keep_every=10), every) == [
        10,
        20,
        30,
        40,
        50,
        60,
    ]
    assert kept_steps(CheckpointConfig(keep_every=30), every) == [20, 30, 50, 60]


def test_pruning_removes_whole_folders_and_leftovers_of_earlier_attempts(tmp_path: Path) -> None:
    first, second = attempt(tmp_path, 1), attempt(tmp_path, 2)
    for step in (1, 2):
        save(first, step)
    torn = layout.checkpoint_dir(first, 3)
    torn.with_name("step-00000003.tmp").mkdir()
    torn.mkdir()
    save(second, 3)
    gone = prune(tmp_path, 2, CheckpointConfig(keep_last=2))
    assert [one.path for one in gone] == [layout.checkpoint_dir(first, 1)]
    assert sorted(p.name for p in (first / layout.CHECKPOINTS).iterdir()) == ["step-00000002"]
    assert layout.checkpoints(second)


def test_a_replaced_attempt_prunes_nothing(tmp_path: Path) -> None:
    first = attempt(tmp_path, 1)
    for step in (1, 2, 3):
        save(first, step)
    attempt(tmp_path, 2)
    assert prune(tmp_path, 1, CheckpointConfig(keep_last=2)) == []
    assert len(layout.checkpoints(first)) == 3


def test_resume_uses_the_newest_valid_checkpoint_and_lists_skipped_ones(
    tmp_path: Path,
) -> None:
    first, second, third = (attempt(tmp_path, n) for n in (1, 2, 3))
    good, newest = save(first, 5), save(second, 7)
    (newest / "state.json").write_text("{")
    choice = choose_checkpoint(tmp_path, third, LaunchNote())
    assert choice.directory == good
    assert len(choice.skipped) == 1
    assert choice.skipped[0].startswith("attempt-2/checkpoints/step-00000007/state.json has")


def test_pinned_checkpoint_is_used_although_newer_ones_exist(tmp_path: Path) -> None:
    first, second = attempt(tmp_path, 1), attempt(tmp_path, 2)
    pinned, _ = save(first, 5), save(first, 6)
    note = LaunchNote(resume="pinned", resume_from="attempt-1/checkpoints/step-00000005")
    assert choose_checkpoint(tmp_path, second, note).directory == pinned


def test_a_damaged_pinned_checkpoint_falls_back_to_older_ones_only(tmp_path: Path) -> None:
    first, second = attempt(tmp_path, 1), attempt(tmp_path, 2)
    older, pinned, _newer = save(first, 4), save(first, 5), save(first, 6)
    (pinned / "state.json").write_text("{")
    note = LaunchNote(resume="pinned", resume_from="attempt-1/checkpoints/step-00000005")
    assert choose_checkpoint(tmp_path, second, note).directory == older
    (older / "state.json").write_text("{")
    with pytest.raises(
        BadCheckpoint, match="cannot resume from attempt-1/checkpoints/step-00000005"
    ):
        choose_checkpoint(tmp_path, second, note)


def test_a_pinned_checkpoint_that_is_elsewhere_is_missing_not_bad(tmp_path: Path) -> None:
    second = attempt(tmp_path, 2)
    note = LaunchNote(resume="pinned", resume_from="attempt-1/checkpoints/step-00000005")
    with pytest.raises(MissingCheckpoint, match="step-00000005 is not on this machine") as raised:
        choose_checkpoint(tmp_path, second, note)
    assert raised.value.cause == "missing_checkpoint"
    pinned = save(attempt(tmp_path, 1), 5)
    (pinned / "state.json").write_text("{")
    with pytest.raises(BadCheckpoint) as raised:
        choose_checkpoint(tmp_path, second, note)
    assert raised.value.cause == "bad_checkpoint"


def test_a_checkpoint_of_another_run_can_be_pinned(tmp_path: Path) -> None:
    other = save(attempt(tmp_path / "other", 1), 9)
    mine = attempt(tmp_path / "mine", 1)
    note = LaunchNote(resume="pinned", resume_from=str(other))
    assert choose_checkpoint(tmp_path / "mine", mine, note).directory == other


def test_resume_never_starts_at_step_0(tmp_path: Path) -> None:
    save(attempt(tmp_path, 1), 5)
    note = LaunchNote(resume="never")
    assert choose_checkpoint(tmp_path, attempt(tmp_path, 2), note).directory is None


# --- state -----------------------------------------------------------------------------------


def trained(config: LlamaConfig, *, fused: bool) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = build_model(config, device="cpu", seed=0)
    optimizer = build_optimizer(model, AdamWConfig(fused=fused))
    for seed in range(2):
        torch.manual_seed(seed)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return model, optimizer


def save_state(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Path:
    target = layout.checkpoint_dir(folder, 2)
    write_checkpoint(
        target,
        tensors={
            "model": model.state_dict(),
            "optimizer": state.optimizer_tensors(model, optimizer),
        },
        documents={
            "state": {
                "step": 2,
                "tokens": 20,
                "best_val_loss": 1.5,
                "generators": [json.loads(state.save_generators())],
            }
        },
        manifest=Manifest(step=2, tokens=20, reason="interval"),
    )
    return target


@pytest.mark.parametrize("fused", [True, False])
def test_restored_optimizer_takes_the_same_next_steps(tmp_path: Path, fused: bool) -> None:
    config = LlamaConfig.model_validate(MODEL_PRESETS["tiny"].values)
    model, optimizer = trained(config, fused=fused)
    target = save_state(tmp_path, model, optimizer)
    again = build_model(config, device="cpu", seed=9)
    again_optimizer = build_optimizer(again, AdamWConfig(fused=fused))
    progress, _ = state.restore(target, model=again, optimizer=again_optimizer, rank=0)
    assert (progress.step, progress.tokens, progress.best_val_loss) == (2, 20, 1.5)
    for seed in (7, 8):
        for one, its_optimizer in ((model, optimizer), (again, again_optimizer)):
            torch.manual_seed(seed)
            for parameter in one.parameters():
                parameter.grad = torch.randn_like(parameter)
            its_optimizer.step()
    for (name, a), b in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b), name
    for key, value in state.optimizer_tensors(model, optimizer).items():
        assert torch.equal(value, state.optimizer_tensors(again, again_optimizer)[key]), key


def test_every_random_generator_is_restored(tmp_path: Path) -> None:
    config = LlamaConfig.model_validate(MODEL_PRESETS["tiny"].values)
    model, optimizer = trained(config, fused=True)

    def draw() -> tuple[float, float, float, list[float]]:
        gaussian = random.gauss(0, 1)
        legacy = float(np.random.normal())  # noqa: NPY002
        return random.random(), gaussian, legacy, torch.rand(3).tolist()

    draw()
    target = save_state(tmp_path, model, optimizer)
    want = draw()
    draw()
    state.restore(target, model=model, optimizer=optimizer, rank=0)
    assert draw() == want


def test_checkpoint_of_another_model_names_the_difference(tmp_path: Path) -> None:
    values = MODEL_PRESETS["tiny"].values
    model, optimizer = trained(LlamaConfig.model_validate(values), fused=True)
    target = save_state(tmp_path, model, optimizer)
    wider = LlamaConfig.model_validate({**values, "intermediate_size": 256})
    other = build_model(wider, device="cpu", seed=0)
    with pytest.raises(
        BadCheckpoint, match=r"belongs to another model: its .*gate_proj.weight has shape"
    ):
        state.restore(target, model=other, optimizer=build_optimizer(other, AdamWConfig()), rank=0)
    deeper = LlamaConfig.model_validate({**values, "num_hidden_layers": 5})
    other = build_model(deeper, device="cpu", seed=0)
    with pytest.raises(BadCheckpoint, match=r"missing tensors: layers\.4\..* and 6 more;"):
        state.restore(target, model=other, optimizer=build_optimizer(other, AdamWConfig()), rank=0)


def test_a_loss_of_nan_is_never_the_best() -> None:
    progress = TrainProgress()
    assert not progress.is_new_best(math.nan)
    assert progress.is_new_best(2.0)
    assert not progress.is_new_best(math.nan)
    assert progress.is_new_best(1.0)
    assert progress.best_val_loss == 1.0
