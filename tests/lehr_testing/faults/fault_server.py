"""A server for fault tests: calls are repeated until it answers, and it is restarted when killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from lehr.base import killpoints
from lehr.errors import Conflict, NotFound, ServerUnavailable, StoreUnavailable
from lehr.faces.client import Client
from lehr.faces.client.runs import Run
from lehr_testing.fakes import FakeServer, fake_server
from lehr_testing.faults.evidence import gather, next_number
from lehr_testing.faults.history import Ack, check
from lehr_testing.server import alive
from lehr_testing.waiting import until

T = TypeVar("T")
_ENDS = {"completed", "failed", "cancelled", "pruned"}


class FaultServer(FakeServer):
    """Record what was acknowledged; ``verdict`` compares the store with it."""

    def __init__(self, home: Path, *, gpus: int, corpus: Path) -> None:
        super().__init__(home, gpus=gpus, corpus=corpus)
        self.kill_file = home.parent / "kill"
        self.environment[killpoints.VARIABLE] = str(self.kill_file)
        self.acknowledged: list[Ack] = []
        self.restarts = 0
        self.judged_from = 0
        """The number of the first run that ``verdict`` looks at."""

    def begin(self) -> None:
        """Judge only runs submitted after this call."""
        self.acknowledged.clear()
        self.judged_from = next_number(self.home)

    # ------------------------------------------------------------------------- killing

    def arm(self, point: str, *, count: int = 1) -> None:
        self.fired_file.unlink(missing_ok=True)
        draft = self.kill_file.with_suffix(".draft")
        draft.write_text(f"{point} x {count}")
        draft.replace(self.kill_file)

    def disarm(self) -> None:
        self.kill_file.unlink(missing_ok=True)

    @property
    def fired_file(self) -> Path:
        return self.kill_file.with_name(self.kill_file.name + ".fired")

    @property
    def fired(self) -> bool:
        return self.fired_file.exists()

    # ---------------------------------------------------------------------- recovering

    def revive(self) -> None:
        """Start the server if it is dead; a point may kill it while it starts."""
        for _ in range(3):
            with contextlib.suppress(FileNotFoundError):
                if alive(self.pid):
                    return
            self.restarts += 1
            with contextlib.suppress(AssertionError):
                self.up()
                return
        self.up()

    def with_retries(self, act: Callable[[Client], T]) -> T:
        """Return the result of ``act``, repeated as long as the server dies during it."""
        deadline = time.monotonic() + 120
        while True:
            self.revive()
            try:
                return act(self.client())
            except (ServerUnavailable, StoreUnavailable) as error:
                if time.monotonic() > deadline:
                    raise AssertionError("the server never answered") from error
                time.sleep(0.1)

    def submit(self, spec: dict[str, Any]) -> Run:
        run = self.with_retries(lambda client: client.submit(spec, idempotency_key=spec["name"]))
        self.acknowledged.append(Ack("submit", run.id))
        return run

    def sweep(self, spec: dict[str, Any]) -> Any:
        sweep = self.with_retries(lambda client: client.sweep(spec, idempotency_key=spec["name"]))
        self.acknowledged += [Ack("submit", trial.run.id) for trial in sweep.trials]
        return sweep

    def verb(self, run: Run, verb: str) -> None:
        """``cancel``, ``pause`` or ``resume``; a run that has ended meanwhile is left."""
        try:
            self.with_retries(lambda client: getattr(client.run(run.id), verb)())
        except Conflict:
            return
        self.acknowledged.append(Ack("run" if verb == "resume" else verb, run.id))

    def state(self, run: Run) -> str:
        return self.with_retries(lambda client: str(client.run(run.id).state))

    def reaches(self, run: Run, *states: str, within_s: float = 120) -> str:
        return until(
            lambda: state if (state := self.state(run)) in states else None,
            within_s=within_s,
            what=f"{run.name} to be {' or '.join(states)}",
            every_s=0.2,
        )

    def ends(self, *runs: Run, within_s: float = 180) -> list[str]:
        return [self.reaches(run, *_ENDS, within_s=within_s) for run in runs]

    # -------------------------------------------------------------------------- judging

    def breaches(self) -> list[str]:
        history = gather(
            self.home,
            self.witness,
            runs_dir=self.runs,
            series=self._steps,
            acknowledged=self.acknowledged,
            first=self.judged_from,
        )
        return [*check(history), *filter(None, [self.violations()])]

    def verdict(self, *, within_s: float = 60) -> None:
        """Raise with all breaches; leftovers of a kill may take a moment to be removed."""
        deadline = time.monotonic() + within_s
        while found := self.breaches():
            if time.monotonic() > deadline:
                raise AssertionError("\n".join(found))
            time.sleep(0.5)

    def _steps(self, run_id: str) -> list[int]:
        def read(client: Client) -> list[int]:
            with contextlib.suppress(NotFound):  # It was killed before it recorded anything.
                return [int(step) for step in client.run(run_id).history("train/loss")["step"]]
            return []

        return self.with_retries(read)

    def signal(self, pid: int, number: int = signal.SIGKILL) -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False


def fault_server(folder: Path, *, gpus: int) -> Iterator[FaultServer]:
    for server in fake_server(folder, gpus=gpus, kind=FaultServer):
        try:
            yield server
        finally:
            server.disarm()
