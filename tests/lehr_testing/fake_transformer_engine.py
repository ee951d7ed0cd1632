"""A fake of Transformer Engine's delayed scaling on a CPU: its state without its arithmetic.

As in its ``TransformerEngineBaseModule``: histories come to be in the first forward pass within
``autocast``, take the largest value of each pass, and scale the next ones; ``get_extra_state``
is a pickle, which ``state_dict`` carries along.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

_within: list[Any] = []


@contextmanager
def autocast(*, enabled: bool, recipe: Any) -> Iterator[None]:
    _within.append(recipe if enabled else None)
    try:
        yield
    finally:
        _within.pop()


def fp8_autocast(*, enabled: bool, fp8_recipe: Any) -> AbstractContextManager[None]:
    """As releases before 2.9 name it; later ones warn of it."""
    return autocast(enabled=enabled, recipe=fp8_recipe)


class Linear(nn.Module):
    def __init__(
        self, inputs: int, outputs: int, *, bias: bool, params_dtype: torch.dtype, device: Any
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, dtype=params_dtype, device=device))
        self.bias = None
        self.fp8_meta: dict[str, Any] = {}

    def init_fp8_metadata(self) -> None:
        recipe = _within[-1] if _within else None
        if recipe is None or self.fp8_meta:
            return
        for direction in ("scaling_fwd", "scaling_bwd"):
            self.fp8_meta[direction] = SimpleNamespace(
                amax_history=torch.zeros(recipe.amax_history_len, 1), scale=torch.ones(1)
            )

    def forward(self, x: Tensor) -> Tensor:
        self.init_fp8_metadata()
        if _within and _within[-1] is not None:
            x = _Scaled.apply(x, self.fp8_meta["scaling_fwd"], self.fp8_meta["scaling_bwd"])
        return F.linear(x, self.weight)

    def get_extra_state(self) -> Tensor:
        pickled = io.BytesIO()
        torch.save(self.fp8_meta, pickled)
        return torch.frombuffer(bytearray(pickled.getvalue()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        raise AssertionError("a pickle was to be read")


class _Scaled(torch.autograd.Function):
    """Values rounded to e4m3 (gradients to e5m2) by the scale of the passes before."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forth: Any, back: Any) -> Tensor:
        ctx.back = back
        return _rounded(x, forth, torch.float8_e4m3fn, 448.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _rounded(gradient, ctx.back, torch.float8_e5m2, 57344.0), None, None


def _rounded(x: Tensor, meta: Any, dtype: torch.dtype, largest: float) -> Tensor:
    rounded = (x * meta.scale).clamp(-largest, largest).to(dtype).to(x.dtype) / meta.scale
    meta.amax_history.copy_(meta.amax_history.roll(1, 0))
    meta.amax_history[0] = x.abs().amax()
    meta.scale.copy_(largest / meta.amax_history.amax().clamp(min=1e-12) / 2)
    return rounded


def install(patch: pytest.MonkeyPatch, *, before_2_9: bool = False) -> None:
    """Let ``precision.fp8.recipe: te_delayed`` run here, with this for the library."""
    pytorch = ModuleType("transformer_engine.pytorch")
    pytorch.Linear = Linear  # type: ignore[attr-defined]
    if before_2_9:
        pytorch.fp8_autocast = fp8_autocast  # type: ignore[attr-defined]
    else:
        pytorch.autocast = autocast  # type: ignore[attr-defined]
    recipes = ModuleType("transformer_engine.common.recipe")
    recipes.DelayedScaling = SimpleNamespace  # type: ignore[attr-defined]
    recipes.Format = SimpleNamespace(HYBRID="hybrid")  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "transformer_engine.pytorch", pytorch)
    patch.setitem(sys.modules, "transformer_engine.common.recipe", recipes)
    patch.setattr("lehr_trainer.models.fp8.require_fp8", lambda *_: None)
