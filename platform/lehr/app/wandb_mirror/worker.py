"""``python -m lehr.app.wandb_mirror.worker HOME``: the process that mirrors runs to W&B.

It reads ``RunFeed`` lines from standard input and ends when that closes. Each run has a thread, so
that one that waits for W&B does not block the others.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from lehr.app.wandb_mirror.state_files import Notes, RunFeed
from lehr.base import procfs

_AT_ONCE = 32  # W&B runs that are open at the same time; more have to wait.
_AGAIN_S = 60.0  # Pause after a failure.
_GRACE_S = 8.0  # Limit for finishing open W&B runs at the end.


class MirrorWorker:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._feeds: dict[str, RunFeed] = {}
        """The newest of each run that is mirrored now, or waits for a thread."""
        self._pool = ThreadPoolExecutor(_AT_ONCE)

    def serve(self) -> None:
        tasks = []
        for line in sys.stdin:
            feed = RunFeed.model_validate_json(line)
            if not any(attempt.size for attempt in feed.attempts):
                continue
            with self._guard:
                is_new = feed.run_id not in self._feeds
                self._feeds[feed.run_id] = feed
            if is_new:
                tasks.append(self._pool.submit(self._mirror, feed.run_id))
        self._stop.set()
        wait(tasks, _GRACE_S)

    def _newest(self, run_id: str) -> RunFeed:
        with self._guard:
            return self._feeds[run_id]

    def _mirror(self, run_id: str) -> None:
        """Mirror a run until its newest feed is mirrored to its end."""
        from lehr.app.wandb_mirror.session import mirror

        seen: RunFeed | None = None
        while not self._stop.is_set():
            with self._guard:
                if self._feeds[run_id] is seen:
                    del self._feeds[run_id]
                    return
                seen = self._feeds[run_id]
            try:
                mirror(self._home, run_id, lambda: self._newest(run_id), self._stop)
            except Exception as error:  # noqa: BLE001 - whatever W&B raises, other runs continue
                procfs.log(traceback.format_exc())
                Notes(self._home, run_id).fail(f"{type(error).__name__}: {error}")
                self._stop.wait(_AGAIN_S)
                seen = None


def main() -> None:
    os.nice(10)
    MirrorWorker(Path(sys.argv[1])).serve()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # A hanging upload must not keep the process alive.


if __name__ == "__main__":
    main()
