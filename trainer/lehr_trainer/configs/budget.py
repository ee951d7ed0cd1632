"""The token budget of a run: ``tokens`` or ``tokens_per_parameter`` becomes ``steps``, here and
nowhere else.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator

from lehr_trainer.configs.base import Config, PositiveInt

if TYPE_CHECKING:
    from pydantic import ValidationInfo

    from lehr_trainer.configs.train import ModelConfig


class ForkedAt(Config):
    """Where a fork began whose steps have other tokens than those before."""

    after_steps: PositiveInt
    """Step of the checkpoint."""
    after_tokens: PositiveInt
    """Tokens trained on until the checkpoint."""


BUDGETS = ("tokens", "tokens_per_parameter", "stages")
"""Fields from which the steps follow."""
_NUMBER = re.compile(r"(\d[\d_]*(?:\.\d+)?(?:[eE]\+?\d{1,2})?) ?([kKMBGT]?)")
_POWERS = {"": 0, "k": 3, "K": 3, "M": 6, "B": 9, "G": 9, "T": 12}
_MOST = 2**63


def parse_tokens(given: Any) -> Any:
    """Return the number that a text such as ``2B``, ``300M`` or ``1.5e9`` means.

    Any other value is returned as it is, for the validation of whole numbers.
    """
    found = _NUMBER.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is None:
        return given
    tokens = Decimal(found[1].replace("_", "")).scaleb(_POWERS[found[2]])
    return int(tokens) if tokens == int(tokens) and tokens < _MOST else given


Tokens = Annotated[
    PositiveInt, BeforeValidator(parse_tokens, json_schema_input_type=int | float | str)
]


def needed(forked_at: ForkedAt | None, info: ValidationInfo) -> ForkedAt | None:
    """Return it unless every step before the fork had as many tokens as those after it."""
    batch = info.data.get("batch")
    if forked_at is None or batch is None:
        return forked_at
    alike = forked_at.after_tokens == forked_at.after_steps * batch.tokens_per_step
    return None if alike else forked_at


def budget_tokens(model: ModelConfig, tokens_per_parameter: float) -> int:
    """Count the tokens of a budget for each parameter.

    Parameters are all of the model, each once: embeddings count, and a tied head is the embedding.
    So did Hoffmann et al. 2022 (arXiv:2203.15556), whose optimum is about 20 tokens a parameter.
    Kaplan et al. 2020 leave embeddings out; their ratios do not compare.
    """
    from lehr_trainer.planning.counts import parameter_counts

    return max(1, math.ceil(tokens_per_parameter * parameter_counts(model).total))


def resolve_steps(given: Any, info: ValidationInfo) -> Any:
    """Return the steps of the token budget, if there is one.

    A budget and steps may be given if they agree: a resolved config has both.

    Raises:
        ValueError: they do not agree, or there are two budgets.
    """
    from lehr_trainer.configs.stages import StageConfig, spans

    known: dict[str, Any] = info.data
    given, ratio = parse_tokens(given), known.get("tokens_per_parameter")
    shown = {"tokens": "tokens {}", "tokens_per_parameter": "tokens_per_parameter {:g}"}
    budgets = [shown.get(name, name).format(known[name]) for name in BUDGETS if known.get(name)]
    if len(budgets) > 1:
        raise ValueError(f"{' and '.join(budgets)} are both given; give only one")
    needs = {*BUDGETS, *(["batch"] if budgets else []), *(["model"] if ratio else [])}
    if not needs <= known.keys():
        # What is wrong there is the problem to report.
        return 1 if given is None else given
    if not budgets:
        return given
    batch, stages = known["batch"], known["stages"]
    if stages and batch.stages:
        raise ValueError(
            "stages and batch.stages are both given; write each stage of batch.stages as a stage "
            "with its tokens and batch.sequence_length"
        )
    tokens = budget_tokens(known["model"], ratio) if ratio else known["tokens"]
    steps = spans(stages or [StageConfig(tokens=tokens)], batch, known.get("forked_at"))[-1].last
    if given is not None and given != steps:
        raise ValueError(
            f"steps {given} and {budgets[0]} do not agree: this budget takes {steps} steps; give "
            "only one of them"
        )
    return steps


def steps_or_budget(schema: dict[str, Any]) -> None:
    """State in the JSON schema that the steps or a budget are required."""
    schema["required"] = [name for name in schema["required"] if name != "steps"]
    schema["anyOf"] = [{"required": [name]} for name in ("steps", *BUDGETS)]
