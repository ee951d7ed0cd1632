"""Log from a training program to Lehr: metrics, checkpoints, and whether to stop.

Standard library only. Nothing here can stop a training: no function raises. In a process that Lehr
did not start, ``init`` begins a run; without it, all others do nothing. ::

    import lehr_log

    for step in range(lehr_log.resume_step, steps):
        loss = train_step()
        lehr_log.log({"train/loss": loss}, step=step + 1)
        if lehr_log.should_stop():
            save("out"); lehr_log.checkpoint("out", step=step + 1)
            break
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lehr_log import media
from lehr_log.media import File, Histogram, Image, Table

__all__ = ["checkpoint", "config", "log", "resume_from", "resume_step", "should_stop"]
__all__ += ["File", "Histogram", "Image", "Run", "Table", "init", "use_as_wandb"]
__all__ += ["validation_data"]

_MOST_VALUES = 10_000
"""Values of one call; more are left out."""
_MOST_FILES = 1_000
"""Files of a checkpoint whose state is declared with it."""
_LONGEST_NAMES = 100_000
"""Characters of their names together: Lehr reads lines of a limited length."""
_MOST_WAITING = 10_000
"""Lines that wait for space on the disk."""
_NOT_THERE = {errno.ENOENT, errno.ELOOP, errno.ENOTDIR}
_lock = threading.Lock()
_waiting: deque[bytes] = deque(maxlen=_MOST_WAITING)
_file: int | None = None
_external: tuple[int, str] | None = None
"""The process of a run that Lehr did not start, and its log; children must not write it."""
_told: set[str] = set()
"""What was printed, once each."""
_torn = False
_signals: list[int] = []


def _read_config() -> dict[str, Any]:
    with contextlib.suppress(KeyError, OSError, ValueError, TypeError):
        return dict(json.loads(Path(os.environ["LEHR_CONFIG"]).read_bytes()))
    return {}


config: dict[str, Any] = _read_config()
"""The arguments of the run, as in its spec; empty outside of Lehr."""
resume_from: str | None = os.environ.get("LEHR_RESUME_FROM") or None
"""Folder with what was saved for the checkpoint to resume from; None for a fresh start."""
resume_step = 0
"""Steps of the checkpoint to resume from; 0 for a fresh start."""
with contextlib.suppress(KeyError, ValueError):
    resume_step = int(os.environ["LEHR_RESUME_STEP"])
_last_step = resume_step


def log(values: Mapping[str, Any], step: int | None = None) -> None:
    """Record values after ``step`` steps; without a step, one more than before.

    Numbers are recorded, and whatever ``float()`` takes, such as a tensor with one element; also an
    ``Image``, ``Table``, ``Histogram`` or ``File``, or a list of them. Other values are left out.
    Only rank 0 records.
    """
    global _last_step  # noqa: PLW0603 - one step a process
    path = _log_path()
    if path is None:
        return
    with contextlib.suppress(Exception):
        try:
            _last_step = _last_step + 1 if step is None else int(step)
        except (ValueError, OverflowError, TypeError):
            _tell("step", f"step {str(step)[:50]} is no number; its values are left out")
            return
        numbers, others = {}, 0
        for name, value in list(values.items())[:_MOST_VALUES]:
            with contextlib.suppress(Exception):
                if media.is_media(value):
                    others += 1
                    media.log(str(name), value, _last_step, path, _write)
                else:
                    numbers[str(name)] = _number(value)
        if numbers or not others:
            _write({"kind": "metrics", "step": _last_step, "values": numbers})


def checkpoint(path: str | os.PathLike[str], step: int) -> None:
    """Make a file or folder that is completely written the checkpoint after ``step`` steps.

    Lehr copies it soon afterwards, so give each checkpoint a name of its own: one that changes
    before its copy is complete is not kept, and the run gets a warning. An attempt that resumes
    finds the copy at ``resume_from``. Of a run that Lehr did not start, none is copied.
    """
    if _log_path() is None:
        return
    with contextlib.suppress(Exception):
        full = os.path.abspath(os.fspath(path))
        record = {"kind": "checkpoint", "step": int(step), "path": full}
        _write({**record, "files": _state_of(full)})


def validation_data(*data: Any) -> None:
    """Record which held-out set the metrics under ``val/`` are measured on, by its digest.

    Args:
        data: paths of files, which are read whole, or bytes and arrays with a buffer (NumPy's).
            Names and dates of files do not count, the order does.
    """
    if _log_path() is None:
        return
    try:
        digest = hashlib.sha256()
        for item in data:
            if isinstance(item, str | os.PathLike):
                with open(item, "rb") as file:
                    hashlib.file_digest(file, lambda: digest)
            else:
                digest.update(item)
    except Exception as error:  # noqa: BLE001 - nothing here may stop a training
        print(f"lehr_log: no digest of the held-out set: {error}", file=sys.stderr)
        return
    with contextlib.suppress(Exception):
        _write({"kind": "validation_data", "step": _last_step, "digest": digest.hexdigest()})


def should_stop() -> bool:
    """Return whether the run should save and end now: it is paused, cancelled or moved.

    The first call makes SIGTERM set this, in place of ending the process.
    """
    # Every rank has LEHR_STOP, and only rank 0 LEHR_LOG: all of them live on until they have saved.
    inside = {"LEHR_LOG", "LEHR_STOP"} & os.environ.keys() or _log_path()
    with contextlib.suppress(ValueError):  # Not in the main thread.
        if inside and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, lambda number, _frame: _signals.append(number))
    stop = os.environ.get("LEHR_STOP", "")
    if _external is not None:
        stop = os.path.join(os.path.dirname(_external[1]), run.STOP)
    return bool(_signals) or os.path.exists(stop)


def _state_of(path: str) -> dict[str, list[int]] | None:
    """Return size and time of change of a file, or of the files in a folder by their path in it.

    None if there is none, there are too many, or they change now.
    """
    with contextlib.suppress(OSError):
        os.stat(path)
        files, _ = files_of(path, _MOST_FILES)
        if len(files) <= _MOST_FILES and sum(map(len, files)) <= _LONGEST_NAMES:
            return {name: [state.st_size, state.st_mtime_ns] for name, state in files.items()}
    return None


def files_of(path: str, most: int) -> tuple[dict[str, os.stat_result], list[str]]:
    """Return the files in a folder by their paths in it, or one file as ``.``.

    Links are followed, and each folder is entered once: at its own place if that is inside, else at
    the first link to it. The second value lists links to folders that were entered elsewhere.
    The search ends after ``most`` files.

    Raises:
        OSError: a file or folder cannot be read.
    """
    files: dict[str, os.stat_result] = {}
    if not os.path.isdir(path):
        return ({".": os.stat(path)} if os.path.isfile(path) else files), []
    seen: set[tuple[int, int]] = set()
    links, elsewhere = [""], []
    while links:
        link = links.pop(0)
        folders = [link]
        while folders and len(files) <= most:
            inside = folders.pop()
            status = os.stat(os.path.join(path, inside))
            if (status.st_dev, status.st_ino) in seen:
                elsewhere += [link] if inside == link else []
                continue
            seen.add((status.st_dev, status.st_ino))
            for entry in sorted(os.scandir(os.path.join(path, inside)), key=lambda e: e.name):
                name = os.path.join(inside, entry.name)
                try:
                    is_folder, is_file = entry.is_dir(), entry.is_file()
                except OSError as error:
                    if error.errno in _NOT_THERE:
                        continue
                    raise
                if is_folder:
                    (links if entry.is_symlink() else folders).append(name)
                elif is_file:
                    files[name] = entry.stat()
    return files, elsewhere


def _number(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError
    return float(value)


def _write(record: dict[str, Any]) -> None:
    global _file  # noqa: PLW0603 - one file a process
    path = _log_path()
    if not path:
        return
    with _lock:
        # While the disk is full, lines wait here for the next call.
        _waiting.append(json.dumps({"time": time.time(), **record}).encode() + b"\n")
        if _file is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            _file = os.open(path, flags, 0o644)
            atexit.register(_write_last)
        try:
            _write_waiting()
        except OSError as error:
            if _external is not None:
                most = f"up to {_MOST_WAITING:,} lines wait in memory"
                _tell("disk", f"{path}: {error.strerror}; {most}")


def _write_waiting() -> None:
    global _torn  # noqa: PLW0603 - one file a process
    while _waiting and _file is not None:
        left = memoryview(b"\n" * _torn + _waiting[0])
        _torn = True
        while left:
            left = left[os.write(_file, left) :]
        _torn = False
        _waiting.popleft()


def _write_last() -> None:
    with contextlib.suppress(OSError), _lock:
        _write_waiting()


def _log_path() -> str | None:
    """Return the file that this process logs into; None if it logs nowhere."""
    if _external is None:  # Processes that the program starts as ranks inherit it.
        return os.environ.get("LEHR_LOG") if os.environ.get("RANK", "0") == "0" else None
    return _external[1] if _external[0] == os.getpid() else None


def _record_into(path: str | None, given: dict[str, Any] | None = None, step: int = 0) -> None:
    """Log into another file from now on: that of a run which Lehr did not start, or None."""
    global _external, _file, _last_step, resume_step  # noqa: PLW0603 - one run a process
    _write_last()
    with _lock:
        if _file is not None:
            os.close(_file)
        _waiting.clear()
        _file, _external = None, None if path is None else (os.getpid(), path)
        _last_step = resume_step = step
        config.clear()
        config.update(given or {})


def _tell(what: str, text: str) -> None:
    """Print a line, once for each ``what``."""
    if what not in _told:
        _told.add(what)
        print(f"lehr_log: {text}", file=sys.stderr)


from lehr_log import run  # noqa: E402 - it imports this module
from lehr_log.run import Run, init, use_as_wandb  # noqa: E402
