"""The history of a chapter, judged by the rules of all fault tests, over both machines."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

from lehr import Client
from lehr.errors import NotFound
from lehr_testing.faults.evidence import gather, held_locks, next_number
from lehr_testing.faults.history import Ack, check
from soak.machines import Machines

LEFTOVERS_S = 90.0
"""Within which the processes and locks of an ended run must be gone."""


def first_of_chapter(machines: Machines) -> int:
    """Return the number that the next run will have."""
    return next_number(machines.alpha.home)


def breaches(machines: Machines, acknowledged: list[Ack], first: int) -> list[str]:
    """Return every rule that the runs from number ``first`` on break."""
    deadline = time.monotonic() + LEFTOVERS_S
    while found := _look(machines, acknowledged, first):
        if time.monotonic() > deadline:
            return found
        time.sleep(3.0)
    return []


def _look(machines: Machines, acknowledged: list[Ack], first: int) -> list[str]:
    witness = machines.shared / "witness"
    with machines.client() as client:
        history = gather(
            machines.alpha.home,
            witness,
            runs_dir=machines.shared / "runs",
            series=lambda run: _steps(client, run),
            acknowledged=acknowledged,
            first=first,
        )
    locks = {**history.held_locks, **held_locks(machines.beta.home)}
    found = check(replace(history, held_locks=locks))
    violations = witness / "violations"
    if violations.exists():
        found.append(f"gpu: {violations.read_text()}")
    return found


def _steps(client: Client, run_id: str) -> list[int]:
    with contextlib.suppress(NotFound):  # It was cancelled before it recorded anything.
        return [int(step) for step in client.run(run_id).history("train/loss")["step"]]
    return []


def record_is_sound(machines: Machines) -> list[str]:
    """Return what `lehr db check` finds wrong with the record of the running server."""
    found = machines.alpha.lehr("db", "check", "--json", check=False)
    return [f"lehr db check: {found.stdout[-2000:]}"] if found.returncode else []


def forget(machines: Machines, before: int) -> int:
    """Delete the runs before number ``before``, as people do; return how many.

    Their records stay. Their journals of the witness are removed with them.
    """
    home = machines.alpha.home
    with contextlib.closing(
        sqlite3.connect(f"file:{home / 'lehr.db'}?mode=ro", uri=True)
    ) as database:
        rows = database.execute("SELECT id FROM runs WHERE number < ?", [before]).fetchall()
    ids = [row[0] for row in rows]
    there = [i for i in ids if (machines.shared / "runs" / i).exists()]
    with machines.client() as client:
        for run_id in there:
            client.run(run_id).delete()
            for journal in Path(machines.shared, "witness/journal").glob(f"{run_id}-*"):
                journal.unlink()
    return len(there)
