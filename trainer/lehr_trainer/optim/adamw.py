"""AdamW; roles of parameters, and the one way to set learning rates.

Every optimizer built here keeps ``name`` and ``peak_lr`` in each group; the schedule's factor then
means the same to all of them.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lehr_trainer.configs.optimizer import (
    EIGHT_BIT_BLOCK,
    EIGHT_BIT_LEAST,
    AdamWConfig,
    EightBitAdamWConfig,
)
from lehr_trainer.configs.shapes import Shape, width_ratio
from lehr_trainer.errors import BadConfig
from lehr_trainer.extras import install
from lehr_trainer.runtime.sharding import own_parameters, shards_of

ParameterRole = Literal["embedding", "head", "matrix", "vector"]


def roles(model: nn.Module) -> dict[str, ParameterRole]:
    """Return the role of each parameter by name; a tied head is the embedding.

    embedding: tables that are looked up. head: an untied head. vector: norms and
    biases. matrix: the linears of the blocks.
    """
    tables = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding)
        for name, parameter in module.named_parameters(recurse=False)
        if name == "weight"
    }
    head = id(getattr(model, "head_weight", None))
    found: dict[str, ParameterRole] = {}
    for name, parameter in model.named_parameters():
        if id(parameter) in tables:
            found[name] = "embedding"
        elif id(parameter) == head:
            found[name] = "head"
        else:
            found[name] = "matrix" if parameter.ndim >= 2 else "vector"
    return found


def by_role(model: nn.Module) -> dict[ParameterRole, list[nn.Parameter]]:
    """Sort the trained parameters by role; each is in exactly one list."""
    lists: dict[ParameterRole, list[nn.Parameter]] = {
        "embedding": [],
        "head": [],
        "matrix": [],
        "vector": [],
    }
    named = own_parameters(model)
    for name, role in roles(model).items():
        if named[name].requires_grad:
            lists[role].append(named[name])
    return lists


def mup_width(model: nn.Module) -> float | None:
    """Return width / base width of a model under muP; None in the standard parametrization."""
    config: Shape | None = getattr(model, "config", None)
    if config is None or config.parametrization == "standard":
        return None
    return width_ratio(config)


def set_lr_factor(optimizer: torch.optim.Optimizer, factor: float, decay: float = 1.0) -> None:
    """Set each group's rate to ``factor`` of its peak; a tensor rate is filled, not replaced.

    ``decay`` does the same with the weight decay of groups that have a ``peak_weight_decay``.
    """
    for group in optimizer.param_groups:
        if "peak_weight_decay" in group:
            group["weight_decay"] = group["peak_weight_decay"] * decay
        rate = group["peak_lr"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def build_adamw(model: nn.Module, config: AdamWConfig) -> torch.optim.Optimizer:
    """Build AdamW over two groups, ``decayed`` and ``kept``; each parameter is in exactly one.

    Under muP the blocks' matrices are a group of their own, ``matrix``, with the rate that their
    width needs. Their decay is divided by the same factor: what a step takes from a weight is
    rate x decay, which then stays the same at every width, as in the paper's own code.
    """
    width, lists = mup_width(model), by_role(model)
    if width is None:
        groups = decayed_and_kept(lists, config)
    else:
        rate = config.mup_rate(width)
        groups = [
            {
                "name": name,
                "params": members,
                "weight_decay": decay,
                "peak_lr": config.lr * factor,
                "lr": config.lr * factor,
            }
            for name, members, decay, factor in (
                ("matrix", lists["matrix"], config.weight_decay / rate, rate),
                ("decayed", lists["head"], config.weight_decay, 1.0),
                ("kept", lists["embedding"] + lists["vector"], 0.0, 1.0),
            )
            if members
        ]
    return torch.optim.AdamW(
        groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=config.fused
    )


def decayed_and_kept(
    lists: dict[ParameterRole, list[nn.Parameter]], config: AdamWConfig | EightBitAdamWConfig
) -> list[dict[str, Any]]:
    """Make two groups: matrices of linears are decayed; norms, biases and embeddings are kept."""
    return [
        {"name": name, "params": members, "weight_decay": decay, "peak_lr": config.lr}
        for name, members, decay in (
            ("decayed", lists["matrix"] + lists["head"], config.weight_decay),
            ("kept", lists["embedding"] + lists["vector"], 0.0),
        )
        if members
    ]


def build_eight_bit(model: nn.Module, config: EightBitAdamWConfig) -> torch.optim.Optimizer:
    """Build 8-bit AdamW over the groups ``decayed`` and ``kept``.

    Of a sharded model, a matrix has 8 bits if the whole one has: so all ranks agree, and any
    number of them can resume it.

    Raises:
        BadConfig: the config's library is not installed, or ranks would cut a block.
    """
    lists, matrices = by_role(model), _divided_matrices(model, config)
    # As the paper found necessary: rows of an embedding differ widely in how often they get a
    # gradient (in 8 bits its first four steps are 28 % off AdamW's, the matrices' under 10 %).
    bits = dict.fromkeys(lists["embedding"], 32) | matrices
    options: dict[str, Any] = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
    groups = decayed_and_kept(lists, config)
    if config.library == "bitsandbytes":
        return _bitsandbytes(groups, options, bits)
    library = _library("torchao.optim", "torchao", config)
    # Each group has its own rate: a tensor, since torchao compiles its step around it.
    for group in groups:
        group["lr"] = torch.tensor(config.lr, dtype=torch.float32)
    optimizer: Any = library.AdamW8bit(groups, **options)
    for parameter, number in bits.items():
        state = optimizer.state[parameter] = {"step": torch.tensor(0.0)}
        for name, signed in (("exp_avg", True), ("exp_avg_sq", False)):
            # torchao has no empty 8-bit state, which a rank without a row would need.
            if number == 32 or not parameter.numel():
                state[name] = torch.zeros_like(parameter)
            else:
                state[name] = optimizer._subclass_zeros(parameter, signed, EIGHT_BIT_BLOCK)  # noqa: SLF001
    return optimizer  # type: ignore[no-any-return]


def _divided_matrices(model: nn.Module, config: EightBitAdamWConfig) -> dict[nn.Parameter, int]:
    """Return the bits of the moments of each trained matrix that ranks divide, but embeddings."""
    shards, bits = shards_of(model), dict[nn.Parameter, int]()
    for name, role in roles(model).items():
        if shards is None or name not in shards.rows or role == "embedding":
            continue
        whole, own = shards.parameters[name], shards.own[name]
        if own.requires_grad:
            bits[own] = 8 if whole.numel() >= EIGHT_BIT_LEAST else 32
            if bits[own] == 8:
                try:
                    config.check_rows(name, whole.numel() // len(whole))
                except ValueError as error:
                    raise BadConfig(str(error)) from error
    return bits


def _bitsandbytes(
    groups: list[dict[str, Any]], options: dict[str, Any], bits: dict[nn.Parameter, int]
) -> torch.optim.Optimizer:
    library = _library("bitsandbytes", "bitsandbytes", EightBitAdamWConfig())
    optimizer: torch.optim.Optimizer = _waiting_once(library.optim.AdamW8bit)(groups, **options)
    # A manager of its own: the library's is one for the process and goes by id(), so it would
    # apply a dead model's exceptions to whatever parameter has taken up the id.
    manager = object.__new__(library.optim.GlobalOptimManager)
    manager.initialize()
    for parameter, number in bits.items():
        own = {"optim_bits": number, "min_8bit_size": 0}
        manager.override_config(parameter, key_value_dict=own)
    optimizer.mng = manager  # type: ignore[attr-defined]
    return optimizer


def _waiting_once(kind: type[Any]) -> type[torch.optim.Optimizer]:
    """Return the library's class with a step that waits for the device once, at its end.

    The library's own step waits after every parameter, 146 times for ``llama-1b``: it does not
    pass torch's stream to its kernels. They need not wait for each other, since each changes its
    own parameter only.
    """

    class AdamW8bit(kind):  # type: ignore[misc]
        initialized: bool

        @torch.no_grad()
        def step(self, closure: None = None) -> None:
            assert closure is None
            if not self.initialized:
                self.check_overrides()
                self.to_gpu()
                self.initialized = True
            for number, group in enumerate(self.param_groups):
                for index, parameter in enumerate(group["params"]):
                    if parameter.grad is None or not parameter.numel():
                        continue
                    if not self.state[parameter]:
                        self.init_state(group, parameter, number, index)
                    self.update_step(group, parameter, number, index)
            _wait(self.param_groups[0]["params"][0].device)

    return AdamW8bit


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _library(module: str, package: str, config: EightBitAdamWConfig) -> ModuleType:
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        other = "torchao" if package == "bitsandbytes" else "bitsandbytes"
        raise BadConfig(
            f"optimizer.library: {config.library} cannot be imported ({error}): "
            f"{install(package)}, or use {other}, or optimizer.name: adamw"
        ) from error
