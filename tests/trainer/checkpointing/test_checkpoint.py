"""Checkpoints are complete or absent, damage is found, and nothing is unpickled."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from lehr_testing.saved_checkpoints import TENSORS, attempt, save
from lehr_trainer.checkpointing import checkpoint
from lehr_trainer.checkpointing.checkpoint import (
    Manifest,
    choose_checkpoint,
    read_tensors,
    verify,
    write_checkpoint,
)
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.errors import BadCheckpoint, DiskFull, MissingCheckpoint

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


def save_and_die(folder: Path, calls: int) -> int:
    """Return the exit status of a child that saves until its ``calls``-th change of the disk."""
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


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "sub/file", ".."])
def test_a_manifest_cannot_point_outside_its_folder(tmp_path: Path, name: str) -> None:
    target = save(tmp_path)
    manifest = json.loads((target / layout.MANIFEST).read_text())
    manifest["files"][name] = {"size": 0, "sha256": "0" * 64}
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


def test_resume_uses_the_newest_valid_checkpoint_and_lists_skipped_ones(tmp_path: Path) -> None:
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
