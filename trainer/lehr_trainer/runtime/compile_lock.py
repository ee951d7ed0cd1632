"""A lock under which runs that start together compile once.

Eight trials of a sweep would all miss inductor's cache and all compile. Torch is imported only
where it is needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from lehr_trainer.callbacks import Notify

_POLL_S = 0.5
_LOG_EVERY_S = 15.0


def cache_folder() -> Path:
    """Return inductor's folder of compiled graphs, shared by all runs of a user on a machine."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


def compile_key(*facts: Any) -> str:
    """Make a key that is equal for runs that compile the same graphs, from JSON values."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    text = json.dumps([torch.__version__, device, *facts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def compile_lock(key: str, notify: Notify, *, folder: Path | None = None) -> Iterator[bool]:
    """Run the first forward and backward within: one process compiles, the rest use its cache.

    Trials that start together would all miss the cache and all compile. Here the first takes a
    lock; the others log that they wait, and then compile from its cache. Nothing within may wait
    for another rank (run the mock batch on the unwrapped model), or two ranks would wait for each
    other.

    Yields:
        Whether this process is the first, the one that fills the cache.
    """
    folder = folder or cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / f"lehr-{key}.done"
    if done.exists():
        yield False
        return
    with (folder / f"lehr-{key}.lock").open("a+", encoding="utf-8") as lock:
        _wait_for(lock, notify)
        first = not done.exists()
        if not first:
            # The cache is filled: release the others before this process reads it.
            fcntl.flock(lock, fcntl.LOCK_UN)
            yield False
            return
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()}")
        lock.flush()
        notify("compile", "compiling the model; runs like this one wait and share the result", None)
        began = time.monotonic()
        yield True
        done.touch()
        notify("compile", f"compiled in {time.monotonic() - began:.1f} s", 1.0)


def _wait_for(lock: TextIO, notify: Notify) -> None:
    """Take the lock. The kernel releases it if its holder dies, so a dead holder blocks nobody."""
    began = logged_at = time.monotonic()
    waited = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            now = time.monotonic()
            if not waited or now - logged_at >= _LOG_EVERY_S:
                waited, logged_at = True, now
                lock.seek(0)
                holder = lock.read().strip() or "unknown"
                notify(
                    "compile",
                    f"process {holder} compiles the same model; waiting for its result "
                    f"({now - began:.0f} s so far)",
                    None,
                )
            time.sleep(_POLL_S)
        else:
            return
