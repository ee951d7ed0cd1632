"""Published speeds of pretraining runs, for plans of what was not measured here. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UsualMfu:
    """The share of the dense peak that trainings reach on a GPU, without recomputation."""

    share: float
    """What a plan assumes, from 0 to 1."""
    source: str
    """Where it comes from, with the range of the published figures."""


_MFU = {
    "A100": UsualMfu(0.50, "published runs on A100 reach 29 to 62 %"),
    "H100": UsualMfu(0.42, "published runs on H100 reach 35 to 44 %"),
    "H200": UsualMfu(0.50, "Lehr's runs of a 1.2B model on one H200 reached 55 to 58 %"),
}
"""From the tables of llm-foundry (scripts/train/benchmarking) for 0.1 to 3 G parameters at 2,048
tokens. The lowest figure of the A100 is that of nanoGPT's four days on 8 GPUs. That of the H200 is
from docs/benchmarks.md; less is assumed, since smaller models and several GPUs reach less.
``tests/bench/published_plans.py`` sets plans beside these runs and others.
"""
_LIKE_H100 = ("GH200",)
"""GPUs with the H100's arithmetic units."""
_ASSUMED = UsualMfu(0.35, "assumed: no published run on this GPU is known")


def usual_mfu(kind: str) -> UsualMfu:
    """Return the usual MFU on a kind of GPU, as the GPU table names it."""
    if kind in _LIKE_H100:
        return _MFU["H100"]
    return _MFU.get(kind, _ASSUMED)
