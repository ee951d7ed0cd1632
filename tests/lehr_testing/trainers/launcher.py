"""The trainer of the tests' servers. Each run chooses its kind by ``env`` in its spec.

Nothing        the real trainer: this process becomes ``python -P -m lehr_trainer``
PACE_S=0.02    the real one, which takes at least so many seconds for a step of its first attempt:
               a test that disturbs a training must find it under way, and a tiny model takes
               hundreds of steps between two looks at it
PACE_ATTEMPTS  attempts that are paced, in place of attempt-1: attempt-1,attempt-2
PACE_UNTIL=f   the file f is there: from then on as fast as it can
SEEDED_BUG     the real one, with a bug:
  forgets        a resumed run begins with empty optimizer moments
  spikes         the loss is 8 higher on batches whose digests are in SPIKES, whatever their steps
FAKE=1         no training at all: see fake.py, which names more variables
"""

from __future__ import annotations

import os
import runpy
import sys
import time
from pathlib import Path

PACED = "PACE_S" in os.environ and Path(sys.argv[1]).name in os.environ.get(
    "PACE_ATTEMPTS", "attempt-1"
).split(",")


def main() -> None:
    if os.environ.get("FAKE"):
        runpy.run_path(str(Path(__file__).with_name("fake.py")), run_name="__main__")
    elif PACED or "SEEDED_BUG" in os.environ:
        sys.exit(changed())
    else:
        os.execv(sys.executable, [sys.executable, "-P", "-m", "lehr_trainer", *sys.argv[1:]])


def changed() -> int:
    from lehr_trainer import __main__ as entry
    from lehr_trainer import process_start

    # Before torch is imported, which takes seconds.
    process_start.die_with_parent()
    if PACED:
        pace(float(os.environ["PACE_S"]))
    if "SEEDED_BUG" in os.environ:
        BUGS[os.environ["SEEDED_BUG"]]()
    return entry.main()


def pace(least_s: float) -> None:
    from lehr_trainer.step_control import StepControl

    unpaced = StepControl.agree
    until = os.environ.get("PACE_UNTIL")

    def agree(*args, **options):
        if until is None or not Path(until).exists():
            time.sleep(least_s)
        return unpaced(*args, **options)

    StepControl.agree = agree


def forgets() -> None:
    from lehr_trainer.checkpointing import optimizer_state

    optimizer_state.restore = lambda *_: None


def spikes() -> None:
    from lehr_trainer import metrics_logger

    sound = metrics_logger.MetricsLogger.note
    planted = {float(digest) for digest in os.environ["SPIKES"].split(",")}

    def note(self, step, loss, *args, data, **options):
        values = data()
        spike = 8.0 * (values["data/digest"] in planted)
        sound(self, step, loss + spike, *args, data=lambda: values, **options)

    metrics_logger.MetricsLogger.note = note


BUGS = {"forgets": forgets, "spikes": spikes}

if __name__ == "__main__":
    main()
