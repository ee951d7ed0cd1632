"""The real trainer, with the bug that a spec's ``env`` seeds (SEEDED_BUG); without one it is sound.

forgets     a resumed run begins with empty optimizer moments
sums        the loss is summed over ranks where it should be their mean
"""

from __future__ import annotations

import os
import sys

from lehr_trainer import __main__ as entry
from lehr_trainer import launch

launch.die_with_parent()

from lehr_trainer import state, steplog  # noqa: E402 - they import torch, which takes seconds

BUG = os.environ.get("SEEDED_BUG")

if BUG == "forgets":
    state._load_optimizer = lambda *_: None

if BUG == "sums":
    sound = steplog.StepLog.note

    def note(self, step, loss, *args, **options):
        sound(self, step, loss * int(os.environ["WORLD_SIZE"]), *args, **options)

    steplog.StepLog.note = note

sys.exit(entry.main())
