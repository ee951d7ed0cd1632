"""What ranks tell each other outside of their collectives: failures, and how far each has come.

It goes through torchrun's own store, which the first node's agent keeps, and through no shared
folder: its cache may hide a file for a minute. A store that does not answer is a ``DistError``.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Collection
from dataclasses import asdict
from datetime import timedelta
from typing import Any, cast

from torch._C._distributed_c10d import TCPStore
from torch.distributed import DistError

from lehr_trainer.runtime.failures import Failure

_WAIT = timedelta(seconds=5)
_WAIT_FOR_CAUSE_S = 3.0
_FAILURES = "lehr/failures"


class Channel:
    """This rank's connection to the others. Any thread may use it."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._store = cast(Any, TCPStore(host, port, wait_for_workers=False, timeout=_WAIT))
        self._store.append(_FAILURES, "")

    def put(self, name: str, content: dict[str, Any]) -> None:
        """Publish something of this rank, in place of what it was before."""
        self._store.set(f"lehr/{name}/{self._rank}", json.dumps(content))

    def of(self, name: str, ranks: Collection[int]) -> dict[int, dict[str, Any]]:
        """Return what ranks have published; waits seconds for one that has not."""
        texts = self._store.multi_get([f"lehr/{name}/{rank}" for rank in ranks])
        return {rank: json.loads(text) for rank, text in zip(ranks, texts, strict=True)}

    def fail(self, failure: Failure) -> None:
        """Report a failure to all ranks."""
        self._store.append(_FAILURES, json.dumps(asdict(failure)) + "\n")

    def failures(self) -> list[Failure]:
        """List what ranks reported: oldest first, but what may follow from others last."""
        lines = self._store.get(_FAILURES).decode().splitlines()
        failures = [Failure(**json.loads(line)) for line in lines]
        return sorted(failures, key=lambda failure: failure.cause == "peer_lost")

    def root_cause(self, own: Failure) -> Failure:
        """Report this rank's failure; return another's, if ours only reports that one as lost.

        The report of the other may still be on its way.
        """
        with contextlib.suppress(DistError):
            self.fail(own)
            deadline = time.monotonic() + _WAIT_FOR_CAUSE_S
            while own.cause == "peer_lost" and time.monotonic() < deadline:
                if (first := self.failures()[0]).cause != "peer_lost":
                    return first.named
                time.sleep(0.1)
        return own
