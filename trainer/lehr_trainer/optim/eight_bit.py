"""AdamW with 8-bit moments, from bitsandbytes or torchao."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import nn

from lehr_trainer.configs.optimizer import EightBitAdamWConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.optim.adamw import by_role, decayed_and_kept


def build_eight_bit(model: nn.Module, config: EightBitAdamWConfig) -> torch.optim.Optimizer:
    """Build 8-bit AdamW over the groups ``decayed`` and ``kept``.

    Raises:
        BadConfig: the config's library is not installed.
    """
    lists = by_role(model)
    options: dict[str, Any] = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
    groups = decayed_and_kept(lists, config)
    if config.library == "bitsandbytes":
        return _bitsandbytes(groups, options, lists["embedding"])
    library = _library("torchao.optim", "torchao", config)
    # Each group has its own rate: a tensor, since torchao compiles its step around it.
    for group in groups:
        group["lr"] = torch.tensor(config.lr, dtype=torch.float32)
    optimizer: torch.optim.Optimizer = library.AdamW8bit(groups, **options)
    for parameter in lists["embedding"]:  # in 32 bits, as with bitsandbytes: see there
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def _bitsandbytes(
    groups: list[dict[str, Any]], options: dict[str, Any], embeddings: list[nn.Parameter]
) -> torch.optim.Optimizer:
    library = _library("bitsandbytes", "bitsandbytes", EightBitAdamWConfig())
    optimizer: torch.optim.Optimizer = _waiting_once(library.optim.AdamW8bit)(groups, **options)
    # As the paper found necessary: rows of an embedding differ widely in how often they get a
    # gradient (in 8 bits its first four steps are 28 % off AdamW's, the matrices' under 10 %).
    # A manager of its own: the library's is one for the process and goes by id(), so it would
    # apply a dead model's exceptions to whatever parameter has taken up the id.
    manager = object.__new__(library.optim.GlobalOptimManager)
    manager.initialize()
    manager.override_config(embeddings, "optim_bits", 32)
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
                    if parameter.grad is None:
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
            f"pip install {package}, or use {other}, or optimizer.name: adamw"
        ) from error
