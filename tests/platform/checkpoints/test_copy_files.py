"""Checkpoints that a hostile worker wrote: links, pipes, devices and manifests without an end."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lehr.checkpoints.copies import Copy, Folder, Known, verify_folder
from lehr_testing.buckets import make_checkpoint
from lehr_trainer.contract import manifest
from lehr_trainer.contract.manifest import read_manifest
from lehr_trainer.errors import BadCheckpoint

SECRET = b"the token of the server"
PATH = "run1/attempt-1/checkpoints/step-00000005"


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a folder of copies that machines share, reached by a link, with one copy."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "shared").symlink_to(tmp_path / "disk")
    make_checkpoint(tmp_path / "shared" / PATH, step=5)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "token").write_bytes(SECRET)
    return tmp_path / "shared"


def of_copy(shared: Path) -> Known | None:
    return Copy(f"file://{shared}/{PATH}").verify()


def of_folder(shared: Path) -> Known | None:
    return verify_folder(shared / PATH, root=shared)


READERS = pytest.mark.parametrize("read", [of_copy, of_folder])


def describe(folder: Path, files: dict[str, Any]) -> None:
    text = json.dumps({"step": 5, "tokens": 1, "reason": "interval", "files": files})
    (folder / "manifest.json").write_text(text)


def entry(data: bytes) -> dict[str, Any]:
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def link_of_a_file(folder: Path) -> None:
    describe(folder, {"token": entry(SECRET)})
    (folder / "token").symlink_to(folder.parents[3].parent / "home" / "token")


def pipe_in_place_of_a_file(folder: Path) -> None:
    describe(folder, {"token": entry(SECRET)})
    os.mkfifo(folder / "token")


def device_in_place_of_a_file(folder: Path) -> None:
    describe(folder, {"zero": entry(b"\0" * 9)})
    (folder / "zero").symlink_to("/dev/zero")


def folder_in_place_of_a_file(folder: Path) -> None:
    describe(folder, {"token": entry(SECRET)})
    (folder / "token").mkdir()


def pipe_in_place_of_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    os.mkfifo(folder / "manifest.json")


def link_in_place_of_the_manifest(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").symlink_to("/dev/zero")


def endless_manifest(folder: Path) -> None:
    os.truncate(folder / "manifest.json", 1 << 40)


def link_in_the_path(folder: Path) -> None:
    attempt = folder.parents[1]
    elsewhere = attempt.parents[1].resolve().parent / "elsewhere"
    shutil.move(attempt, elsewhere)
    attempt.symlink_to(elsewhere)


def link_in_place_of_the_folder(folder: Path) -> None:
    elsewhere = folder.parents[3].resolve().parent / "elsewhere"
    shutil.move(folder, elsewhere)
    folder.symlink_to(elsewhere)


def too_many_files(folder: Path) -> None:
    describe(folder, {f"f{number}": entry(b"") for number in range(manifest.MOST_FILES + 1)})


ATTACKS = pytest.mark.parametrize(
    "attack",
    [
        link_of_a_file,
        pipe_in_place_of_a_file,
        device_in_place_of_a_file,
        folder_in_place_of_a_file,
        pipe_in_place_of_the_manifest,
        link_in_place_of_the_manifest,
        endless_manifest,
        link_in_the_path,
        link_in_place_of_the_folder,
        too_many_files,
    ],
)


@READERS
def test_sound_checkpoint_below_a_linked_place_is_read(
    shared: Path, read: Callable[[Path], Known | None]
) -> None:
    found = read(shared)
    assert found.manifest.step == 5


@ATTACKS
@READERS
@pytest.mark.timeout(60)
def test_nothing_but_regular_files_below_the_place_is_read(
    shared: Path, read: Callable[[Path], Known | None], attack: Callable[[Path], None]
) -> None:
    attack(shared / PATH)
    with pytest.raises((BadCheckpoint, OSError)):
        read(shared)


@ATTACKS
@pytest.mark.timeout(60)
def test_fetch_installs_nothing_of_it(
    shared: Path, tmp_path: Path, attack: Callable[[Path], None]
) -> None:
    attack(shared / PATH)
    with pytest.raises((BadCheckpoint, OSError)):
        Copy(f"file://{shared}/{PATH}").fetch(tmp_path / "node" / "step-00000005")
    assert not list((tmp_path / "node").glob("*"))


@pytest.mark.parametrize("name", ["a\nb", "a\x00", "\udc80", "x" * 241, "a/b", "..", "\u202egnp"])
def test_name_that_no_file_should_have_is_not_accepted(tmp_path: Path, name: str) -> None:
    describe(tmp_path, {name: entry(b"")})
    with pytest.raises(BadCheckpoint, match=r"not a plain file name|cannot be read"):
        read_manifest(tmp_path)


# ------------------------------------------------------------------------------------- writing


def test_copy_is_not_written_through_a_link(shared: Path, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "step-00000006", step=6)
    victim = tmp_path / "victim"
    victim.mkdir()
    (shared / "run2").mkdir()
    (shared / "run2" / "attempt-1").symlink_to(victim)
    url = f"file://{shared}/run2/attempt-1/checkpoints/step-00000006"
    with Folder(tmp_path / "step-00000006") as held, pytest.raises(NotADirectoryError):
        Copy(url).write(held)
    assert not list(victim.iterdir())


def test_link_in_place_of_a_file_is_replaced_not_followed(shared: Path, tmp_path: Path) -> None:
    make_checkpoint(tmp_path / "step-00000005", step=5)
    victim = tmp_path / "home" / "token"
    (shared / PATH / "state.json").unlink()
    (shared / PATH / "state.json").symlink_to(victim)
    with Folder(tmp_path / "step-00000005") as held:
        Copy(f"file://{shared}/{PATH}").write(held)
    assert victim.read_bytes() == SECRET
    assert of_copy(shared) is not None


def test_copy_is_not_removed_through_a_link(shared: Path, tmp_path: Path) -> None:
    link_in_the_path(shared / PATH)
    with pytest.raises(OSError):
        Copy(f"file://{shared}/{PATH}").remove()
    kept = tmp_path / "elsewhere" / "checkpoints" / "step-00000005"
    assert (kept / "manifest.json").is_file()
    shutil.rmtree(shared / "run1")
    Copy(f"file://{shared}/{PATH}").remove()
