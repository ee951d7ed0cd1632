"""A checkpoint: a folder that is either complete or absent, safetensors and JSON only.

It is written as ``step-N.tmp/``: each file is written, hashed and fsynced; ``manifest.json`` (size
and SHA-256 of each file) comes last; then rename, and fsync of the parent. Nothing is ever
overwritten. Nothing is unpickled when read, so a planted pickle is only bytes that do not parse.
A run resumes from the newest one that verifies.

Ranks that hold parts of a sharded model each write files of their own, whose header says which rows
of a tensor they are. Whoever reads a checkpoint sees whole tensors, or asks for some rows.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from lehr_trainer.checkpointing.saved_tensors import (
    RankPart,
    SavedTensors,
    open_tensors,
    read_document,
    read_json,
    read_tensors,
)
from lehr_trainer.contract import layout
from lehr_trainer.contract.manifest import FileEntry, Manifest, read_manifest
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.errors import BadCheckpoint, DiskFull, MissingCheckpoint
from lehr_trainer.files import fsync_folder
from lehr_trainer.runtime.event_stream import NO_SPACE
from lehr_trainer.runtime.sharding import Rows

__all__ = [
    "DTYPES",
    "FileEntry",
    "Manifest",
    "SavedTensors",
    "Written",
    "bytes_of",
    "open_tensors",
    "read_document",
    "read_json",
    "read_manifest",
    "read_tensors",
    "verify",
    "write_checkpoint",
    "write_safetensors",
]

FILE_BYTES = 2 * 10**9
"""Tensors of one kind are spread over files of about this size, written in parallel."""

_WRITERS = 8

DTYPES: dict[torch.dtype, str] = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Written:
    directory: Path
    manifest: Manifest
    digest: str
    """SHA-256 of manifest.json, and thereby of every file in it."""


# --- writing -------------------------------------------------------------------------------


def write_checkpoint(
    directory: Path,
    *,
    tensors: Mapping[str, Mapping[str, Tensor]],
    documents: Mapping[str, Any],
    manifest: Manifest,
    part: RankPart | None = None,
) -> Written:
    """Write a checkpoint folder, atomically. ``directory`` must not exist.

    ``tensors`` has for each kind (``model``, ``optimizer``) its tensors by name; a document is
    written as ``<name>.json``; the ``files`` of the manifest are filled in here. Of a sharded model
    every rank must call it with its ``part``, and it is complete when all have written theirs.

    Raises:
        DiskFull: there was no space, on this rank or on another. The unfinished folder was removed.
    """
    temporary = directory.with_name(directory.name + ".tmp")
    try:
        parent_is_new = not temporary.parent.exists()
        temporary.mkdir(parents=True, exist_ok=part is not None)
        if parent_is_new:
            fsync_folder(temporary.parent.parent)
        files = _write_part(temporary, tensors, part)
        if part is not None and part.rank > 0:
            return Written(directory, manifest, "")
        for name, document in documents.items():
            text = json.dumps(document, indent=1).encode()
            files[f"{name}.json"] = _write_bytes(temporary / f"{name}.json", text)
        complete = manifest.model_copy(update={"files": dict(sorted(files.items()))})
        listing = complete.model_dump_json(indent=1).encode()
        entry = _write_bytes(temporary / layout.MANIFEST, listing)
        fsync_folder(temporary)
        temporary.rename(directory)
        fsync_folder(directory.parent)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        free = shutil.disk_usage(directory.parent).free
        if part is None or part.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        raise DiskFull(
            f"no space left for checkpoint {directory.name} in {directory.parent} "
            f"({free / 1e9:.2f} GB were free when it failed); earlier checkpoints are intact. "
            "Make space, then retry the run: it resumes from its last checkpoint"
        ) from error
    return Written(directory, complete, entry.sha256)


def _write_part(
    directory: Path, tensors: Mapping[str, Mapping[str, Tensor]], part: RankPart | None
) -> dict[str, FileEntry]:
    """Write this rank's tensors; return the files of all ranks, or raise the error of one."""
    if part is None:
        return _write_tensors(directory, tensors, "", {})
    failure: OSError | None = None
    try:
        kept = {
            kind: {
                name: tensor
                for name, tensor in named.items()
                if (part.writes and tensor.numel() if name in part.rows else part.rank == 0)
            }
            for kind, named in tensors.items()
        }
        own = _write_tensors(directory, kept, f"-rank{part.rank:05d}", part.rows)
        reply: dict[str, Any] = {name: entry.model_dump() for name, entry in own.items()}
    except OSError as error:
        failure, reply = error, {"errno": error.errno}
    replies = [json.loads(text) for text in part.exchange(json.dumps(reply))]
    if failure is not None:
        raise failure
    for other in replies:
        if "errno" in other:
            raise OSError(other["errno"], os.strerror(other["errno"]))
    files = {name: FileEntry(**entry) for other in replies for name, entry in other.items()}
    away = [name for name in files if part.rank == 0 and not (directory / name).exists()]
    if away:
        raise BadCheckpoint(
            f"{directory / away[0]}, which another rank has written, is not on this machine: "
            "several nodes that shard a model need a shared folder for runs (LEHR_RUNS)"
        )
    return files


def _write_tensors(
    directory: Path,
    tensors: Mapping[str, Mapping[str, Tensor]],
    rank: str,
    rows: Mapping[str, Rows],
) -> dict[str, FileEntry]:
    files: dict[str, dict[str, Tensor]] = {}
    for kind, named in tensors.items():
        if rank and not named:
            continue
        parts = _parts(named)
        for index, part in enumerate(parts, start=1):
            place = f"-{index:05d}-of-{len(parts):05d}" if len(parts) > 1 else ""
            files[f"{kind}{rank}{place}.safetensors"] = part
    # Hashing and writing release the interpreter lock.
    with ThreadPoolExecutor(max_workers=_WRITERS) as pool:
        entries = pool.map(
            lambda name: write_safetensors(directory / name, files[name], rows=rows), list(files)
        )
        return dict(zip(files, entries, strict=True))


def _parts(named: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    parts: list[dict[str, Tensor]] = [{}]
    size = 0
    # A fixed order, so that equal states have equal digests (a resumed optimizer holds its tensors
    # in another order); wide types first, as safetensors aligns them.
    for name, tensor in sorted(named.items(), key=lambda item: (-item[1].element_size(), item[0])):
        if parts[-1] and size + tensor.nbytes > FILE_BYTES:
            parts.append({})
            size = 0
        parts[-1][name] = tensor
        size += tensor.nbytes
    return parts


def write_safetensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    contents: Iterable[Tensor] | None = None,
    *,
    rows: Mapping[str, Rows] | None = None,
) -> FileEntry:
    """Write the safetensors format by hand.

    ``contents`` are written in place of the tensors, whose shapes and types they have: one after
    the other, so that not all of them need to exist at once. ``rows`` says of which whole tensors
    some are rows.

    The library does not do this: the digest is computed from memory, not from data read back from a
    disk; there is no second copy of the tensors; and a full disk is an ``OSError`` with its number.
    """
    parts = {n: f"{r.first}:{r.last}:{r.whole}" for n, r in (rows or {}).items() if n in tensors}
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **parts}}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with _HashedFile(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values() if contents is None else contents:
            file.write(bytes_of(tensor))
    return file.entry


def bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def _write_bytes(path: Path, content: bytes) -> FileEntry:
    with _HashedFile(path) as file:
        file.write(content)
    return file.entry


class _HashedFile:
    """A new file that is hashed as it is written, and fsynced when it is closed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, content: bytes | memoryview) -> None:
        rest = memoryview(content)
        self._hash.update(rest)
        self._size += rest.nbytes
        while rest:
            rest = rest[self._file.write(rest) :]

    @property
    def entry(self) -> FileEntry:
        return FileEntry(size=self._size, sha256=self._hash.hexdigest())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._file:
            if kind is None:
                os.fsync(self._file.fileno())


# --- reading -------------------------------------------------------------------------------


def verify(directory: Path, kinds: Collection[str] | None = None) -> Manifest:
    """Check that every file matches the manifest and parses; only those of ``kinds``, if given.

    Raises:
        BadCheckpoint: the first thing that is wrong.
    """
    manifest = read_manifest(directory)
    with ThreadPoolExecutor(max_workers=_WRITERS) as pool:
        checks = [
            pool.submit(_verify_file, directory / name, entry)
            for name, entry in manifest.files.items()
            if kinds is None or layout.file_kind(name) in kinds
        ]
        for check in checks:
            check.result()
    return manifest


def _verify_file(path: Path, entry: FileEntry) -> None:
    try:
        size = path.stat().st_size
        if size != entry.size:
            raise BadCheckpoint(f"{path} has {size:,} bytes, but its manifest has {entry.size:,}")
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadCheckpoint(f"{path} cannot be read: {error.strerror}") from error
    if digest != entry.sha256:
        raise BadCheckpoint(
            f"{path} is damaged: its SHA-256 is {digest[:12]}, but its manifest has "
            f"{entry.sha256[:12]}"
        )
    if path.suffix == ".safetensors":
        with open_tensors(path):
            pass
    elif path.suffix == ".json":
        read_json(path)


@dataclass(frozen=True)
class ResumeChoice:
    directory: Path | None
    """None: start at step 0."""
    skipped: tuple[str, ...] = ()
    """Newer checkpoints that did not verify, each with the reason."""


def choose_checkpoint(run_dir: Path, attempt_dir: Path, note: LaunchNote) -> ResumeChoice:
    """Choose the first candidate that verifies.

    Raises:
        MissingCheckpoint: one was pinned, and its folder is not on this machine.
        BadCheckpoint: one was pinned, and neither it nor an older one verifies.
    """
    skipped: list[str] = []
    for path in _candidates(run_dir, attempt_dir, note):
        try:
            verify(path)
        except BadCheckpoint as error:
            skipped.append(str(error).replace(f"{run_dir}/", ""))
        else:
            return ResumeChoice(path, tuple(skipped))
    if note.resume == "pinned" and note.resume_from is not None:
        if not (run_dir / note.resume_from).is_dir():
            raise MissingCheckpoint(
                f"cannot resume: {run_dir / note.resume_from} is not on this machine. Set "
                "checkpoints.upload, or put LEHR_RUNS on storage that all nodes share"
            )
        raise BadCheckpoint(
            f"cannot resume from {note.resume_from}, nor from an older checkpoint of this run: "
            + "; ".join(skipped)
        )
    return ResumeChoice(None, tuple(skipped))


def trained_on(run_dir: Path, attempt_dir: Path, note: LaunchNote) -> frozenset[str]:
    """Return the digests of the corpora in the newest readable checkpoint of this run, if it
    resumes: of all stages, and of all parts of a mix.

    It is only read: whether the checkpoint verifies is decided later.
    """
    for path in _candidates(run_dir, attempt_dir, note):
        with contextlib.suppress(BadCheckpoint, LookupError, TypeError):
            if path.resolve().is_relative_to(run_dir.resolve()):
                document = read_document(path, "state")
                data, later = document["data"], document.get("corpora", ())
                known = {data["digest"], *data["position"]["corpora"], *later}
                return frozenset(str(one).partition("/")[0] for one in known)
    return frozenset()


def _candidates(run_dir: Path, attempt_dir: Path, note: LaunchNote) -> list[Path]:
    """List checkpoints, newest first: by attempt, then by step."""
    if note.resume == "never" or (note.resume == "pinned" and note.resume_from is None):
        return []
    this = layout.attempt_number(attempt_dir) or 0
    earlier = [
        path
        for folder in layout.attempts(run_dir)
        if (layout.attempt_number(folder) or 0) < this
        for path in layout.checkpoints(folder)
    ][::-1]
    if note.resume == "auto" or note.resume_from is None:
        return earlier
    pinned = (run_dir / note.resume_from).resolve()
    places = [path.resolve() for path in earlier]
    older = earlier[places.index(pinned) + 1 :] if pinned in places else earlier
    return [pinned, *older]
