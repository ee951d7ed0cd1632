"""Copies of checkpoints: written, fetched, checked and removed, on S3 and in folders."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lehr.checkpoints.copies import Copy, Folder, digest_of, whole
from lehr.node.fetcher import fetch_checkpoint
from lehr.specs.storage_url import normalised, open_place
from lehr_testing.buckets import Bucket, found_by_environment, make_checkpoint, s3_server
from lehr_trainer.configs.train import CheckpointConfig
from lehr_trainer.errors import BadCheckpoint


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3_server() as bucket:
        yield bucket


@pytest.fixture(params=["s3", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A storage for copies: a prefix of the bucket, or a folder."""
    if request.param == "file":
        yield f"file://{tmp_path}/shared"
        return
    bucket: Bucket = request.getfixturevalue("bucket")
    with found_by_environment(bucket):
        yield f"{bucket.url}/{tmp_path.name}"


def copied(place: str, folder: Path) -> Copy:
    copy = Copy(f"{place}/run/{folder.name}")
    held = Folder(folder)
    copy.write(held)
    held.close()
    return copy


def test_copy_is_fetched_back_unchanged(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "step-00000010"
    digest = make_checkpoint(folder, step=10, size=3_000_000)
    copy = copied(place, folder)
    assert copy.known() is not None
    assert copy.verify().digest == digest
    back = tmp_path / "elsewhere" / "step-00000010"
    assert copy.fetch(back).digest == digest
    assert {p.name: p.read_bytes() for p in back.iterdir()} == {
        p.name: p.read_bytes() for p in folder.iterdir()
    }
    assert [p.name for p in back.parent.iterdir()] == [back.name]
    assert (
        b"".join(copy.read("model.safetensors", 100, 50))
        == ((folder / "model.safetensors").read_bytes()[100:150])
    )


def test_removed_copy_is_gone_and_remove_is_idempotent(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "step-00000010"
    make_checkpoint(folder, step=10)
    copy = copied(place, folder)
    copy.remove()
    assert copy.known() is None
    copy.remove()
    with pytest.raises(BadCheckpoint, match="incomplete"):
        copy.fetch(tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_copy_without_a_manifest_is_incomplete(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "step-00000010"
    make_checkpoint(folder, step=10)
    copy = copied(place, folder)
    storage, path = open_place(copy.url)
    storage.rm_file(f"{path}/manifest.json")
    assert copy.known() is None
    with pytest.raises(BadCheckpoint, match="incomplete"):
        copy.verify()


@pytest.mark.parametrize("damage", ["changed", "shorter", "missing"])
def test_damaged_copy_is_detected_and_never_installed(
    place: str, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "step-00000010"
    make_checkpoint(folder, step=10)
    copy = copied(place, folder)
    storage, path = open_place(f"{copy.url}/model.safetensors")
    if damage == "missing":
        storage.rm_file(path)
    else:
        storage.pipe_file(path, b"x" * (1000 if damage == "changed" else 10))
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors"):
        copy.verify()
    with pytest.raises((BadCheckpoint, FileNotFoundError)):
        copy.fetch(tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_folder_removed_during_the_copy_is_copied_completely(place: str, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "step-00000010"
    digest = make_checkpoint(folder, step=10)
    held = Folder(folder)
    shutil.rmtree(folder)
    copy = Copy(f"{place}/run/{folder.name}")
    copy.write(held)
    held.close()
    assert copy.verify().digest == digest


def test_a_link_in_a_checkpoint_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "step-00000010"
    make_checkpoint(folder, step=10)
    content = (folder / "model.safetensors").read_bytes()
    (tmp_path / "secret").write_bytes(content)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to(tmp_path / "secret")
    assert whole(folder) is None


# ------------------------------------------------------------------------------------ fetching


def test_first_intact_copy_is_fetched(place: str, tmp_path: Path) -> None:
    there = tmp_path / "node-1"
    run_dir = tmp_path / "node-2"
    urls = {}
    for step in (10, 20):
        folder = there / f"step-{step:08d}"
        make_checkpoint(folder, step=step)
        urls[step] = copied(place, folder).url
    storage, path = open_place(f"{urls[20]}/model.safetensors")
    storage.pipe_file(path, b"x" * 1000)
    wanted = [
        {"path": "attempt-1/checkpoints/step-00000030", "url": None},
        {"path": "attempt-1/checkpoints/step-00000020", "url": urls[20]},
        {"path": "attempt-1/checkpoints/step-00000010", "url": urls[10]},
    ]
    assert fetch_checkpoint(run_dir, wanted) is None
    assert [p.name for p in (run_dir / "attempt-1/checkpoints").iterdir()] == ["step-00000010"]
    why = fetch_checkpoint(tmp_path / "node-3", wanted[:2])
    assert why is not None
    assert "is not on this node and has no copy" in why
    assert "is damaged" in why


# ----------------------------------------------------------------------------- words and policy


@pytest.mark.parametrize(
    ("written", "meant"),
    [("s3://b/p/", "s3://b/p"), ("/mnt/x", "file:///mnt/x"), ("file:///mnt/x/", "file:///mnt/x")],
)
def test_storage_urls_are_normalized(written: str, meant: str) -> None:
    assert normalised(written) == meant


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("gcs://b", "did you mean gs://"),
        ("git://b", "known: file, s3"),
        ("b/p", "write s3://bucket/prefix, or an absolute path"),
        ("s3://", "names no bucket"),
        ("file://mnt/x", "absolute path"),
        ("s3://me:secret@b/x", "the URL has a password"),
        ("s3://b/../x", "contains '..'"),
        ("gs://bucket/prefix::x", "contains '::'"),
        ("file:///mnt/x::zip://y", "contains '::'"),
        ("s3://bucket/*/x", "would match other folders"),
        ("sftp://host/a[bc]", "would match other folders"),
        ("s3://b/x?y=1", "query"),
    ],
)
def test_an_invalid_storage_url_is_an_error(written: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        normalised(written)


class Point:
    def __init__(self, step: int, val_loss: float | None = None, attempt: int = 1) -> None:
        self.step, self.val_loss, self.attempt = step, val_loss, attempt
        self.path = f"attempt-{attempt}/checkpoints/step-{step:08d}"


def test_the_trainers_retention_keeps_checkpoints_named_in_orders(tmp_path: Path) -> None:
    from lehr_trainer.checkpointing.retention import prune

    for step in (10, 20, 30, 40):
        make_checkpoint(tmp_path / Point(step).path, step=step)
    gone = prune(tmp_path, 1, CheckpointConfig(keep_last=2), spare=[Point(10).path])
    assert [one.step for one in gone] == [20]
    assert (tmp_path / Point(10).path / "manifest.json").is_file()
    assert [one.step for one in prune(tmp_path, 1, CheckpointConfig(keep_last=2))] == [10]


def test_verification_stops_between_pieces_once_nobody_waits():
    pieces = iter([b"one", b"two", b"three"])
    asked = []

    def stopped() -> bool:
        asked.append(1)
        return len(asked) == 2

    with pytest.raises(BadCheckpoint, match="nobody waits"):
        digest_of(pieces, stopped)
    assert list(pieces) == [b"three"]


def test_a_damaged_folder_is_not_copied(place: str, tmp_path: Path) -> None:
    folder = tmp_path / "step-00000010"
    make_checkpoint(folder, step=10)
    (folder / "model.safetensors").write_bytes(b"y" * 1000)
    with pytest.raises(BadCheckpoint, match="it is not copied"):
        copied(place, folder)
    assert Copy(f"{place}/run/{folder.name}").known() is None
