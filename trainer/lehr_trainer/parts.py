"""Import the parts that a project replaces, and check what they give.

The entry points, version ``configs.parts.PARTS_VERSION``:

- model: a subclass of ``Llama`` or ``GPT2``, made as ``Class(config.model)``. Lehr fills in its
  first weights, converts, compiles and wraps it as its own.
- loss: a function ``(hidden [..., H], head weight [V, H], targets [...], weights [...] or None) ->
  (sum, count)`` in nats, as ``losses.variants.TokenLoss``; or, if no token is masked, of the first
  three that returns their mean. It is called outside of autocast.
- optimizer: a function ``(model, config.optimizer) -> torch.optim.Optimizer``. A group's learning
  rate is its peak, which the schedule scales.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lehr_trainer.checkpointing import optimizer_state, state
from lehr_trainer.checkpointing.checkpoint import SavedTensors, bytes_of
from lehr_trainer.configs.optimizer import OptimizerConfig
from lehr_trainer.configs.train import GPT2Config, ModelConfig, TrainConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.losses.chunked import LossSum
from lehr_trainer.losses.variants import TokenLoss, of_mean
from lehr_trainer.models import build_architecture
from lehr_trainer.models.gpt2 import GPT2
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.module_map import Decoder
from lehr_trainer.optim import set_lr_factor

_SMALL = 64
"""8-bit optimizers quantise the state of 64 x 64 weights; that of smaller ones stays in 32 bits."""

_STEPS_BEFORE, _STEPS_AFTER = 3, 9
"""Mock steps before and after the resume: many optimizers do something at every tenth step."""


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
            "project's files: code.include; by hand, put its folder (`lehr code checkout`) on "
            "PYTHONPATH"
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
    own = GPT2 if isinstance(config, GPT2Config) else Llama
    found = load_part("model", name)
    if not isinstance(found, type) or not issubclass(found, own):
        raise BadConfig(
            f"parts.model: {name} is no subclass of lehr_trainer's {own.__name__}, which "
            f"model.kind {config.kind} names: recomputation, FP8 and diagnostics find its layers "
            "by the names that it has there"
        )
    return found


def replaced_loss(name: str, *, masks_tokens: bool) -> TokenLoss:
    """Return a replaced loss, with a check of what it returns.

    Raises:
        BadConfig: it takes no weights, and the run ``masks_tokens``.
    """
    part, weighs = load_part("loss", name), True
    try:
        inspect.signature(part).bind(*range(4))
    except (TypeError, ValueError):
        weighs = False
    if masks_tokens and not weighs:
        raise BadConfig(
            f"parts.loss: {name} takes (hidden, head weight, targets) and returns their mean, but "
            "data.loss_mask leaves out tokens, so batches count unequally; let it take the weights "
            "as a fourth and return (sum, count), or set data.loss_mask: none"
        )

    def checked(total: Any, kind: str) -> torch.Tensor:
        usable = isinstance(total, torch.Tensor) and not total.ndim and total.requires_grad
        if not usable and torch.is_grad_enabled():
            raise BadConfig(
                f"parts.loss: {name} must return a scalar tensor with a gradient, {kind} in nats"
            )
        scalar: torch.Tensor = total
        return scalar

    def loss(*batch: torch.Tensor | None) -> LossSum:
        value = part(*batch, *[None] * (4 - len(batch)))
        if not isinstance(value, tuple) or len(value) not in {2, 3}:
            raise BadConfig(f"parts.loss: {name} takes weights, so it must return (sum, count)")
        return LossSum(checked(value[0], "and a count: the sum of losses"), *value[1:])

    mean = "the mean loss"
    return loss if weighs else of_mean(lambda *batch: checked(part(*batch), mean))


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
        if "lr" not in group:
            raise BadConfig(
                f"parts.optimizer: {name} has a group without lr, the rate that the schedule sets"
            )
        group.setdefault("peak_lr", float(group["lr"]))
    optimizer_state.remember_config(made)
    return made


def require_resumable(name: str, model: nn.Module, config: OptimizerConfig) -> None:
    """Save and load a replaced optimizer, and compare its next steps with an undisturbed one's.

    They update copies of ``model`` whose weights are cut to 64 x 64; whole ones, if it cannot
    update those. Weights and random generators stay as they are.

    Raises:
        BadConfig: it would not go on from a checkpoint as if nothing had happened.
    """
    generators = json.loads(state.save_generators())
    problem = None
    for most in (_SMALL, None):
        try:
            problem = _difference_after_resume(name, _copy(model, most), config)
            break
        except BadConfig as error:
            problem = str(error)
            break
        except Exception as error:  # noqa: BLE001 - a project's code may raise anything
            problem = problem or f"its step ends with {error!r:.300}"
    state.restore_generators(generators)
    if problem is not None:
        raise BadConfig(
            f"parts.optimizer: {name} cannot be resumed from a checkpoint, so the first "
            f"interruption would change the training: {problem}"
        )


def _difference_after_resume(name: str, model: nn.Module, config: OptimizerConfig) -> str | None:
    """Return what a resume changes, None if nothing. ``model`` is updated."""
    whole = replaced_optimizer(name, model, config)
    for seed in range(_STEPS_BEFORE):
        _mock_step(model, whole, seed)
    document, tensors = optimizer_state.capture(model, whole)
    model_again = copy.deepcopy(model)
    again = replaced_optimizer(name, model_again, config)
    files = {entry: tensor.detach().clone() for entry, tensor in tensors.items()}
    read = json.loads(json.dumps(document))
    optimizer_state.restore(Path("mock"), model_again, again, read, SavedTensors.of(files))
    for seed in range(_STEPS_BEFORE, _STEPS_BEFORE + _STEPS_AFTER):
        when = "after it is loaded" if seed == _STEPS_BEFORE else "some steps after it is loaded"
        loaded, loaded_tensors = optimizer_state.capture(model_again, again)
        if json.dumps(document) != json.dumps(loaded):
            return f"numbers of its state or of its groups differ {when}"
        tensors |= dict(model.named_parameters())
        loaded_tensors |= dict(model_again.named_parameters())
        for entry, tensor in tensors.items():
            if not _same(tensor, loaded_tensors[entry]):
                return f"{entry} differs {when}: state or groups must hold all that it needs"
        _mock_step(model, whole, seed)
        _mock_step(model_again, again, seed)
        document, tensors = optimizer_state.capture(model, whole)
    return None


def _mock_step(model: nn.Module, optimizer: torch.optim.Optimizer, seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the generator that a checkpoint holds
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)
    set_lr_factor(optimizer, 1 / (seed + 1))
    optimizer.step()


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    alike = (one.dtype, one.shape, one.device) == (other.dtype, other.shape, other.device)
    return alike and bytes_of(one) == bytes_of(other)


def _copy(model: nn.Module, most: int | None) -> nn.Module:
    """Copy the model with at most ``most`` entries of a weight along each dimension."""
    copies: dict[int, Any] = {}
    for parameter in model.parameters():
        part = parameter.detach()[tuple(slice(0, most) for _ in parameter.shape)].clone()
        copies[id(parameter)] = nn.Parameter(part, requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, copies)


def built_counts(config: TrainConfig) -> tuple[int, int]:
    """Build the model without memory for its weights; return how many parameters it has, and how
    many of them belong to tables that are only looked up.
    """
    return counts_of(build_architecture(config, device="meta"))


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
