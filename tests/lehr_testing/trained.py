"""A run that is trained according to its record."""

from __future__ import annotations

from lehr.store import Store
from lehr_testing.api import begin, end, evaluation, finished, ingest, line, metrics, started
from lehr_testing.seeding import HELD_OUT


def train(
    store: Store,
    run_id: str,
    loss: float = 1.5,
    *,
    steps: int = 10,
    held_out: str | None = HELD_OUT,
    tasks: tuple[float, str] | None = None,
) -> None:
    """Record so many steps, a val/loss at the last one, two log lines, and its completion.

    ``tasks`` is the mean of its tasks there, and the digest of what they ask.
    """
    attempt = begin(store, run_id)
    ingest(store, attempt, started() + metrics(1, steps, **{"train/lr": 1e-3}))
    ingest(store, attempt, evaluation(steps, loss, held_out))
    if tasks is not None:
        values = {"task/mean": tasks[0], "task/mean_stderr": 0.02}
        asked = {"mean": tasks[1]}
        record = line("evaluation", step=steps, tokens=steps * 256, values=values, tasks=asked)
        ingest(store, attempt, record)
    ingest(store, attempt, b"hello\nworld\n", "rank-0.log")
    ingest(store, attempt, finished(steps))
    end(store, run_id)
