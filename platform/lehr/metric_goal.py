"""Whether lower or higher values of a metric are better, by its name.

This is the only such rule. Answers of the API carry its result, which pages and clients use.
"""

from __future__ import annotations

import re
from typing import Literal

Goal = Literal["minimize", "maximize"]

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d*")
_LOWER_IS_BETTER = re.compile(
    r"_([a-z]*loss(es)?|nll|ce|cross_entropy|perplexity|ppl|bits_per_byte|bp[bc]|err(or)?s?|[cw]er|"
    r"r?mse|mae|step_time)_"
)
_HIGHER_IS_BETTER = re.compile(
    r"_([a-z]*accuracy|acc\d*|f1|auc|auroc|bleu|rouge\d*|recall|exact_match|reward|[mh]fu|"
    r"throughput|utilization|per_s(ec(ond)?)?)_"
)


def goal_of(metric: str) -> Goal | None:
    """Return the goal of a metric; None where its name does not show it.

    The last part with a known word decides: ``val/accuracy``, ``Accuracy/test``.
    """
    for part in reversed(metric.split("/")):
        words = f"_{'_'.join(_WORD.findall(part)).lower()}_"
        if "_scale_" in words:
            return None  # A loss scale is no loss.
        if _LOWER_IS_BETTER.search(words):
            return "minimize"
        if _HIGHER_IS_BETTER.search(words):
            return "maximize"
    return None
