"""A run that has been trained, as far as its record goes."""

from __future__ import annotations

from lehr.store import Store
from lehr_testing.api import begin, end, evaluation, finished, metrics, say, started
from lehr_testing.seeding import HELD_OUT


def train(
    store: Store,
    run_id: str,
    loss: float = 1.5,
    *,
    steps: int = 10,
    held_out: str | None = HELD_OUT,
) -> None:
    """So many steps, a val/loss at the last one, two lines of log; then it has completed."""
    attempt = begin(store, run_id)
    say(store, attempt, started() + metrics(1, steps, **{"train/lr": 1e-3}))
    say(store, attempt, evaluation(steps, loss, held_out))
    say(store, attempt, b"hello\nworld\n", "rank-0.log")
    say(store, attempt, finished(steps))
    end(store, run_id)
