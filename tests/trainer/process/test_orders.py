"""Orders of the platform, read by a process that trains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lehr_testing.trainer import (
    MANY,
    NO_SPACE,
    UNSAVED,
    finish,
    make_run,
    reached,
    records,
    sabotage_save,
    training,
)
from lehr_testing.waiting import until
from lehr_trainer.contract import layout


def platform_attempt(run: Path, **orders: object) -> Path:
    """Make an attempt's folder as the platform does."""
    attempt = run / "attempt-1"
    attempt.mkdir()
    (attempt / layout.LAUNCH).write_text(json.dumps({"run_id": "r", "attempt": 1}))
    give_orders(attempt, **orders)
    return attempt


def give_orders(attempt: Path, **orders: object) -> None:
    temporary = attempt / "orders.tmp"
    temporary.write_text(json.dumps(orders))
    temporary.replace(attempt / layout.ORDERS)


def test_orders_save_then_pause(tmp_path: Path, corpus: Path, data: Path) -> None:
    run = make_run(tmp_path / "run", corpus, **UNSAVED)
    attempt = platform_attempt(run, desired="run", checkpoint_seq=4)
    with training(attempt, ranks=2, data=data) as process:
        reached(attempt, 2)
        assert records(attempt, "checkpoint") == [], "an order that was there before is no new one"
        give_orders(attempt, desired="run", checkpoint_seq=5)
        saved = until(
            lambda: records(attempt, "checkpoint"), within_s=60, what="the ordered checkpoint"
        )
        assert saved[0]["reason"] == "order"
        give_orders(attempt, desired="pause", checkpoint_seq=5)
        code, output = finish(process)
    assert code == 0, output
    assert [r["reason"] for r in records(attempt, "checkpoint")] == ["order", "stop"]
    assert records(attempt, "stopping")[0]["reason"] == "pause"
    finished = records(attempt, "finished")[0]
    assert (finished["outcome"], finished["cause"]) == ("stopped", "pause")


@pytest.mark.parametrize("next_save_waits", [False, True])
def test_cancel_wins_over_a_failed_save_in_progress(
    tmp_path: Path, corpus: Path, data: Path, next_save_waits: bool
) -> None:
    run = make_run(tmp_path / "run", corpus, steps=MANY, checkpoint={"every": 5})
    attempt = platform_attempt(run)
    stop, orders = tmp_path / "stop.json", attempt / layout.ORDERS
    stop.write_text(json.dumps({"desired": "stop"}))
    fail = f"os.replace({str(stop)!r}, {str(orders)!r}); {NO_SPACE}"
    if next_save_waits:
        # Time for the loop to decide about step 10, and to wait for this save before the next.
        fail = f"import time; time.sleep(3); {fail}"
    harm = sabotage_save(layout.checkpoint_dir(attempt, 5), call=3, act=fail)
    with training(attempt, data=data, code=harm) as process:
        code, output = finish(process)
    assert code == 0, output
    assert output == "", "under the platform all output goes to the rank's log"
    finished = records(attempt, "finished")[0]
    assert (finished["outcome"], finished["cause"]) == ("stopped", "cancel")
    (warning,) = records(attempt, "warning")
    assert warning["code"] == "save_failed"
    assert "no space left for checkpoint step-00000005" in warning["message"]
