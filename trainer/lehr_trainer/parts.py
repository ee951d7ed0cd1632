"""Import the parts that a project replaces, and check what they give.

The entry points, version ``configs.parts.PARTS_VERSION``:

- model: a subclass of ``Llama`` or ``GPT2``, made as ``Class(config.model)``. Lehr fills in its
  first weights, converts, compiles and wraps it as its own.
- loss: a function ``(hidden [..., H], head weight [V, H], targets [...]) -> scalar`` in nats. It is
  called outside of autocast.
- optimizer: a function ``(model, config.optimizer) -> torch.optim.Optimizer``. A group's learning
  rate is its peak, which the schedule scales.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from lehr_trainer.errors import BadConfig

if TYPE_CHECKING:
    from lehr_trainer.configs.optimizer import OptimizerConfig
    from lehr_trainer.configs.train import ModelConfig, TrainConfig
    from lehr_trainer.losses.variants import Loss
    from lehr_trainer.models.module_map import Decoder


def load_part(field: str, name: str) -> Callable[..., Any]:
    """Import the part ``module:name``.

    Raises:
        BadConfig: there is no such module or name, or it cannot be called.
    """
    path, _, inside = name.partition(":")
    try:
        module = importlib.import_module(path)
    except ImportError as error:
        raise BadConfig(
            f"parts.{field}: {name} cannot be imported ({error}). Its file belongs to the "
            "project's files: code.include"
        ) from error
    try:
        found = getattr(module, inside)
    except AttributeError:
        raise BadConfig(f"parts.{field}: {module.__file__} has no {inside}") from None
    if not callable(found):
        raise BadConfig(
            f"parts.{field}: {name} is a {type(found).__name__}, not a class or function"
        )
    part: Callable[..., Any] = found
    return part


def model_class(name: str, config: ModelConfig) -> Callable[[Any], Decoder]:
    """Return the class of a replaced model.

    Raises:
        BadConfig: it is not a subclass of the model that ``config.kind`` names.
    """
    from lehr_trainer.configs.train import GPT2Config
    from lehr_trainer.models.gpt2 import GPT2
    from lehr_trainer.models.llama import Llama

    own = GPT2 if isinstance(config, GPT2Config) else Llama
    found = load_part("model", name)
    if not isinstance(found, type) or not issubclass(found, own):
        raise BadConfig(
            f"parts.model: {name} is no subclass of lehr_trainer's {own.__name__}, which "
            f"model.kind {config.kind} names: recomputation, FP8 and diagnostics find its layers "
            "by the names that it has there"
        )
    return found


def replaced_loss(name: str) -> Loss:
    """Return a replaced loss, with a check of what it returns."""
    found = load_part("loss", name)

    def loss(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = found(hidden, weight, targets)
        usable = isinstance(value, torch.Tensor) and not value.ndim and value.requires_grad
        if not usable and torch.is_grad_enabled():
            raise BadConfig(
                f"parts.loss: {name} must return a scalar tensor with a gradient, the mean loss "
                "in nats"
            )
        return value

    return loss


def replaced_optimizer(
    name: str, model: nn.Module, config: OptimizerConfig
) -> torch.optim.Optimizer:
    """Build a replaced optimizer; a group without ``peak_lr`` has its rate as its peak.

    Raises:
        BadConfig: it is no optimizer, or leaves out trained parameters.
    """
    made = load_part("optimizer", name)(model, config)
    if not isinstance(made, torch.optim.Optimizer):
        raise BadConfig(
            f"parts.optimizer: {name} must return a torch.optim.Optimizer, not a "
            f"{type(made).__name__}"
        )
    held = {id(p) for group in made.param_groups for p in group["params"]}
    missing = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in held]
    if missing:
        raise BadConfig(
            f"parts.optimizer: {name} leaves out {len(missing)} trained parameters, the first is "
            f"{missing[0]}"
        )
    for index, group in enumerate(made.param_groups):
        group.setdefault("name", f"group_{index}")
        group.setdefault("peak_lr", float(group["lr"]))
    return made


def built_counts(config: TrainConfig) -> tuple[int, int]:
    """Build the model without memory for its weights; return how many parameters it has, and how
    many of them belong to tables that are only looked up.
    """
    from lehr_trainer.models import build_architecture

    total, looked_up = counts_of(build_architecture(config, device="meta"))
    # The norm of a stable embedding is added with the first weights.
    return total + (2 * config.model.hidden_size if config.model.stable_embedding else 0), looked_up


def flops_per_token(total: int, looked_up: int) -> float:
    """Estimate the FLOPs to train on one token of a model that is not Lehr's: 6 for each weight.

    Tables that are only looked up do not count; neither do products without weights, such as
    attention's scores.
    """
    return 6.0 * (total - looked_up)


def counts_of(model: Decoder) -> tuple[int, int]:
    """Return how many parameters a model has, and how many are only looked up."""
    head = model.head_weight
    tables = {
        id(module.weight): module.weight.numel()
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.weight is not head
    }
    return sum(parameter.numel() for parameter in model.parameters()), sum(tables.values())
