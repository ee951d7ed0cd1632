"""``import wandb`` in a program that Lehr runs: the shape of wandb over ``lehr_log``.

This folder's parent is on the import path of such programs only. ``trainer.wandb: records`` in the
spec keeps the real package.
"""

import sys

import lehr_log.wandb

sys.modules[__name__] = lehr_log.wandb
