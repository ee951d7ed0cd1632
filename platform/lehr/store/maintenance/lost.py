"""What a home's runs did and what is not on record: nothing to repair, and worth knowing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from lehr import home as homes
from lehr.store.read_only import open_read_only
from lehr.store.streams.replica import Replica
from lehr.store.streams.unrecorded import unrecorded_steps
from lehr_trainer.contract import layout


def lost(home: Path) -> Iterator[tuple[str, str]]:
    """Yield a place and a sentence for each loss; ``lehr.db`` and ``streams.db`` must be whole."""
    with closing(open_read_only(home / "streams.db", timeout=10)) as streams:
        for number, run in streams.execute("SELECT id, run FROM runs ORDER BY run").fetchall():
            for steps in unrecorded_steps(streams, number):
                text = f"steps {steps.first:,} to {steps.last:,} are not on record"
                yield f"{run}-{steps.attempt}", text
    replica = Replica(homes.replica_dir(home))
    for attempt, _ in replica.files():
        for gap in replica.gaps(attempt):
            yield attempt, gap.text
    with closing(open_read_only(home / "lehr.db", timeout=10)) as record:
        rows = record.execute(
            "SELECT run_id, path FROM checkpoints WHERE removed_at IS NULL ORDER BY run_id, path"
        ).fetchall()
    for run, path in rows:
        # Another machine may have its folder: it is judged where the attempt's folder is here.
        folder = homes.runs_dir(home) / run / path
        if folder.parents[1].is_dir() and not (folder / layout.MANIFEST).is_file():
            yield f"run {run}", f"the checkpoint {path} is not in {folder.parents[2]}"
