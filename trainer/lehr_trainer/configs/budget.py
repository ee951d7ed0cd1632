"""The token budget of a run: ``tokens_per_parameter`` becomes ``steps``, here and nowhere else."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationInfo

    from lehr_trainer.configs.train import ModelConfig


def budget_steps(model: ModelConfig, tokens_per_step: int, tokens_per_parameter: float) -> int:
    """Count the steps that train on at least so many tokens for each parameter.

    Parameters are all of the model, each once: embeddings count, and a tied head is the embedding.
    So did Hoffmann et al. 2022 (arXiv:2203.15556), whose optimum is about 20 tokens a parameter.
    Kaplan et al. 2020 leave embeddings out; their ratios do not compare.

    Args:
        model: its config.
        tokens_per_step: of the batch; changes of the sequence length keep it.
        tokens_per_parameter: the budget.
    """
    from lehr_trainer.planning.counts import parameter_counts

    tokens = tokens_per_parameter * parameter_counts(model).total
    return max(1, math.ceil(tokens / tokens_per_step))


def resolve_steps(given: Any, info: ValidationInfo) -> Any:
    """Return the steps of the token budget, if there is one.

    Both may be given if they agree: a resolved config has both.

    Raises:
        ValueError: they do not agree.
    """
    ratio = info.data.get("tokens_per_parameter")
    if ratio is None:
        # Where the budget itself is wrong, that is the problem to report.
        return 1 if given is None and "tokens_per_parameter" not in info.data else given
    if "model" not in info.data or "batch" not in info.data:
        return 1 if given is None else given
    batch = info.data["batch"]
    steps = budget_steps(info.data["model"], batch.tokens_per_step, ratio)
    if given is not None and given != steps:
        raise ValueError(
            f"steps {given} and tokens_per_parameter {ratio:g} do not agree: this budget takes "
            f"{steps} steps of {batch.tokens_per_step} tokens; give only one of them"
        )
    return steps


def steps_or_budget(schema: dict[str, Any]) -> None:
    """State in the JSON schema that one of the two is required."""
    schema["required"] = [name for name in schema["required"] if name != "steps"]
    schema["anyOf"] = [{"required": ["steps"]}, {"required": ["tokens_per_parameter"]}]
