"""The real trainer, held to at most 50 steps a second.

A test that disturbs a training must find it under way; on a fast machine hundreds of steps of a
tiny model can pass between two looks at it.
"""

from __future__ import annotations

import sys
import time

from lehr_trainer import __main__ as entry
from lehr_trainer import launch

PACE_S = 0.02

launch.die_with_parent()

from lehr_trainer.boundary import Boundary  # noqa: E402 - it imports torch, which takes seconds

unpaced = Boundary.agree


def agree(*args, **options):
    time.sleep(PACE_S)
    return unpaced(*args, **options)


Boundary.agree = agree
sys.exit(entry.main())
