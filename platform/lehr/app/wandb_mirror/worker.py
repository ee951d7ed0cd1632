"""``python -m lehr.app.wandb_mirror.worker HOME``: the process that mirrors runs to W&B.

It reads ``RunFeed`` lines from standard input and ends when that closes. Each run has a thread, so
that one that waits for W&B does not block the others.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from pathlib import Path

from lehr.app.wandb_mirror.state_files import Notes, RunFeed
from lehr.base import procfs

_AT_ONCE = 32  # W&B runs that are open at the same time; more have to wait.
_AGAIN_S = 60.0  # Pause after a failure.
_GRACE_S = 8.0  # Limit for finishing open W&B runs at the end.
_LOOK_S = 0.3


class MirrorWorker:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._feeds: dict[str, RunFeed] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._not_before: dict[str, float] = {}
        self._done: dict[str, RunFeed] = {}

    def serve(self) -> None:
        threading.Thread(target=self._read_feeds, name="feeds", daemon=True).start()
        while not self._stop.wait(_LOOK_S):
            self._start_due()
        deadline = time.monotonic() + _GRACE_S
        for thread in list(self._threads.values()):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _read_feeds(self) -> None:
        for line in sys.stdin:
            feed = RunFeed.model_validate_json(line)
            with self._guard:
                self._feeds[feed.run_id] = feed
        self._stop.set()

    def _newest(self, run_id: str) -> RunFeed:
        with self._guard:
            return self._feeds[run_id]

    def _start_due(self) -> None:
        self._threads = {run: thread for run, thread in self._threads.items() if thread.is_alive()}
        with self._guard:
            feeds = list(self._feeds.values())
        now = time.monotonic()
        for feed in feeds:
            run_id = feed.run_id
            if run_id in self._threads:
                continue
            if self._done.get(run_id) is feed:
                self._drop(feed)
                continue
            if now < self._not_before.get(run_id, 0.0) or not any(
                attempt.size for attempt in feed.attempts
            ):
                continue
            if len(self._threads) >= _AT_ONCE:
                return
            self._done[run_id] = feed
            thread = threading.Thread(target=self._mirror, args=(run_id,), daemon=True)
            self._threads[run_id] = thread
            thread.start()

    def _drop(self, feed: RunFeed) -> None:
        """Forget a feed that was mirrored to its end; the server sends another if it changes."""
        with self._guard:
            if self._feeds[feed.run_id] is feed:
                del self._feeds[feed.run_id], self._done[feed.run_id]

    def _mirror(self, run_id: str) -> None:
        try:
            from lehr.app.wandb_mirror.session import mirror

            mirror(self._home, run_id, lambda: self._newest(run_id), self._stop)
            self._not_before.pop(run_id, None)
        except Exception as error:  # noqa: BLE001 - whatever W&B raises, other runs continue
            procfs.log(traceback.format_exc())
            self._not_before[run_id] = time.monotonic() + _AGAIN_S
            self._done.pop(run_id, None)
            Notes(self._home, run_id).fail(f"{type(error).__name__}: {error}")


def main() -> None:
    os.nice(10)
    MirrorWorker(Path(sys.argv[1])).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # A hanging upload must not keep the process alive.


if __name__ == "__main__":
    main()
