"""FP8 linears: torchao's recipes, or Transformer Engine's delayed scaling.

Only the blocks' linears are converted: the head's logits decide the loss, and
a tied head is the embedding. Parameters stay the objects they were, under the
same names, in fp32. Outside training mode a converted layer is a plain linear.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from lehr_trainer.configs.execution import Fp8Config
from lehr_trainer.errors import BadConfig
from lehr_trainer.models.module_map import block_linears

_BEGIN = "lehr_begin_histories"
"""Attribute of a converted module that makes its histories; otherwise its first pass does."""

_CAST = "lehr_cast_rows"
"""Attribute of a converted module that makes torchao's form of a sharded weight's rows."""

_MULTIPLE = 16
"""FP8 matrix products need both sides of a weight to be a multiple of this."""


def convert_to_fp8(model: nn.Module, config: Fp8Config) -> list[str]:
    """Convert the blocks' linears; returns their names. Call it before compiling.

    Raises:
        BadConfig: the hardware, the library or the model's shape does not allow it.
    """
    if config.recipe == "none":
        return []
    linears = dict(block_linears(model))
    # Matrices of a model that is to be sharded have no memory yet.
    weight = next(p for p in model.parameters() if p.device.type != "meta")
    if not isinstance(weight, FakeTensor):  # It has no values, so nothing is computed.
        require_fp8(config, weight.device)
    for name, linear in linears.items():
        if linear.in_features % _MULTIPLE or linear.out_features % _MULTIPLE:
            raise BadConfig(
                f"precision.fp8.recipe: {config.recipe} needs sizes that are multiples of "
                f"{_MULTIPLE}; {name} is {linear.out_features} x {linear.in_features}"
            )
    convert = _transformer_engine() if config.recipe == "te_delayed" else _torchao(config)
    for name, linear in linears.items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, convert(linear))
    return list(linears)


def require_fp8(config: Fp8Config, device: torch.device) -> None:
    """Raise at once if the hardware has no FP8."""
    field = f"precision.fp8.recipe: {config.recipe}"
    if config.emulate:
        if config.recipe == "te_delayed":
            raise BadConfig(f"{field} cannot be emulated; tensorwise and rowwise can")
        return
    if device.type != "cuda":
        raise BadConfig(
            f"{field} needs a GPU with FP8 (Ada, Hopper or later), not {device.type}; "
            "for a slow test without one set precision.fp8.emulate: true (tensorwise, rowwise)"
        )
    # Ada and later have FP8 products; scales by row are Hopper's (CUTLASS) and later.
    least = (9, 0) if config.recipe == "rowwise" else (8, 9)
    have = torch.cuda.get_device_capability(device)
    if have < least:
        raise BadConfig(
            f"{field} needs compute capability {least[0]}.{least[1]}; "
            f"{torch.cuda.get_device_name(device)} has {have[0]}.{have[1]}. "
            "Use precision.fp8.recipe: none"
        )


def _import(module: str, package: str, field: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as error:
        name = module.partition(".")[0]
        raise BadConfig(
            f"{field} needs {name}, which cannot be imported ({error}): pip install {package}"
        ) from error


# --- torchao -------------------------------------------------------------------------------


def _torchao(config: Fp8Config) -> Callable[[nn.Linear], nn.Module]:
    field = f"precision.fp8.recipe: {config.recipe}"
    settings = _import("torchao.float8", "torchao", field).Float8LinearConfig
    recipe = settings.from_recipe_name(config.recipe)
    recipe = dataclasses.replace(recipe, emulate=config.emulate)
    kind = _import("torchao.float8.float8_linear", "torchao", field).Float8Linear
    rows = _import("torchao.float8.fsdp_utils", "torchao", field).WeightWithDynamicFloat8CastTensor

    def convert(linear: nn.Linear) -> nn.Module:
        converted: Any = kind.from_float(linear, recipe)
        _only_in_training(converted)
        if config.recipe == "tensorwise":  # torchao has none for scales by row.
            kinds = converted.linear_mm_config, recipe.cast_config_weight.target_dtype
            setattr(converted, _CAST, lambda tensor: rows(tensor, *kinds))
        module: nn.Module = converted
        return module

    return convert


def _before_gather(cast: Any, mesh: object) -> tuple[tuple[Tensor], object]:
    (data,), scale = cast.fsdp_pre_all_gather(mesh)
    return (data.view(torch.uint8),), scale  # gloo sends no FP8


def _after_gather(
    cast: Any, gathered: tuple[Tensor], scale: object, dtype: torch.dtype, *, out: object = None
) -> object:
    (data,) = gathered
    return cast.fsdp_post_all_gather((data.view(cast._dtype),), scale, dtype, out=out)  # noqa: SLF001


_METHODS: dict[str, Callable[..., object]] = {
    "fsdp_pre_all_gather": _before_gather,
    "fsdp_post_all_gather": _after_gather,
}


class CastBeforeGather:
    """Has tensorwise weights of a sharded model cast before they are gathered to train, by torchao.

    FSDP2 asks a parameter's local tensor for two methods. torchao's tensor has them, but what the
    optimizer and checkpoints read must be plain: so the plain tensor gets them as attributes.
    Outside training mode it has none, and fp32 is gathered.
    """

    def __init__(
        self, parameters: Iterable[Any], group: dist.ProcessGroup, gather_anew: Callable[[], None]
    ) -> None:
        """Take FSDP2's parameters, whose rows ``group`` has; ``gather_anew`` changes their type."""
        self._group, self._gather_anew, self._in_fp8 = group, gather_anew, False
        self.casts: list[tuple[Tensor, Any]] = []
        """Rows of each weight, and torchao's tensor of their memory."""
        for each in parameters:
            cast = getattr(each._module_info.module, _CAST, None)  # noqa: SLF001
            if cast is not None:
                padded = each._sharded_param_data.view(each.padded_sharded_param_size)  # noqa: SLF001
                self.casts.append((each._sharded_local_tensor, cast(padded)))  # noqa: SLF001

    def before_forward(self, model: nn.Module, _inputs: object) -> None:
        """Prepare a pass through the whole model, before FSDP2 does: its streams wait for this."""
        if model.training != self._in_fp8:
            self._in_fp8 = model.training
            for rows, cast in self.casts:
                for name, method in _METHODS.items():
                    if model.training:
                        setattr(rows, name, partial(method, cast))
                    else:
                        delattr(rows, name)
            self._gather_anew()
        if model.training:
            self._scale()

    @torch.no_grad()
    def _scale(self) -> None:
        """Compute the scales of all weights at once; torchao's function wants its own tensors."""
        from torchao.float8.float8_utils import amax_to_scale

        weights = [cast._tensor for _, cast in self.casts]  # noqa: SLF001
        largest = torch.stack(torch._foreach_norm(weights, ord=math.inf))  # noqa: SLF001
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._group)
        scales = amax_to_scale(largest, self.casts[0][1]._dtype)  # noqa: SLF001
        for (_, cast), scale in zip(self.casts, scales, strict=True):
            cast._precomputed_scale = scale  # noqa: SLF001


def _only_in_training(module: nn.Module) -> None:
    """Make its forward FP8 in training mode, and a plain linear's otherwise."""
    in_fp8 = module.forward

    def forward(x: Tensor) -> Tensor:
        if not module.training:
            # Looked up now: a sharded weight is another tensor in each pass.
            return F.linear(x, module.weight, module.bias)  # type: ignore[arg-type]
        kind = x.device.type
        if torch.is_autocast_enabled(kind):  # torchao looks at CUDA's autocast alone
            x = x.to(torch.get_autocast_dtype(kind))
        out: Tensor = in_fp8(x)
        return out

    module.forward = forward


# --- Transformer Engine --------------------------------------------------------------------


def _transformer_engine() -> Callable[[nn.Linear], nn.Module]:
    field = "precision.fp8.recipe: te_delayed"
    # Its core library is an extra of its own, one for each major version of CUDA.
    major = (torch.version.cuda or "13").partition(".")[0]
    package = f"--no-build-isolation 'transformer-engine[pytorch,core-cu{major}]'"
    engine = _import("transformer_engine.pytorch", package, field)
    recipes = _import("transformer_engine.common.recipe", package, field)
    # As published (docs/reference-runs.md): e4m3 forward, e5m2 backward, scales from 16 maxima.
    recipe = recipes.DelayedScaling(margin=1, fp8_format=recipes.Format.HYBRID, amax_history_len=16)

    def in_autocast(*, enabled: bool) -> AbstractContextManager[object]:
        entered: AbstractContextManager[object]
        if hasattr(engine, "autocast"):  # since 2.9; the older name warns at each call
            entered = engine.autocast(enabled=enabled, recipe=recipe)
        else:
            entered = engine.fp8_autocast(enabled=enabled, fp8_recipe=recipe)
        return entered

    def convert(linear: nn.Linear) -> nn.Module:
        converted: Any = engine.Linear(
            linear.in_features,
            linear.out_features,
            bias=linear.bias is not None,
            params_dtype=linear.weight.dtype,
            device=linear.weight.device,
        )
        converted.weight = linear.weight
        if linear.bias is not None:
            converted.bias = linear.bias
        in_fp8 = converted.forward

        def forward(x: Tensor) -> Tensor:
            with in_autocast(enabled=converted.training):
                out: Tensor = in_fp8(x)
            return out

        def begin_histories() -> None:
            # Outside of its autocast it would make no histories.
            with in_autocast(enabled=True):
                converted.init_fp8_metadata()

        converted.forward = forward
        setattr(converted, _BEGIN, begin_histories)
        module: nn.Module = converted
        return module

    return convert


def fp8_state(model: nn.Module) -> dict[str, Tensor]:
    """Return delayed scaling's histories and scales, by name; empty for torchao, which has none."""
    return {
        f"{name}/{direction}/{what}": getattr(meta, what)
        for name, module in model.named_modules()
        for direction, meta in _delayed(module).items()
        for what in ("amax_history", "scale")
    }


@torch.no_grad()
def load_fp8_state(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Restore what ``fp8_state`` returned; Transformer Engine's own form is a pickle.

    A module without saved state starts afresh; saved state of a module that is not in FP8 now is
    ignored.
    """
    for name, module in model.named_modules():
        begin: Any = getattr(module, _BEGIN, None)
        fresh = begin is not None and not _delayed(module)
        if fresh and any(one.startswith(f"{name}/") for one in saved):
            begin()
        for direction, meta in _delayed(module).items():
            history = saved.get(f"{name}/{direction}/amax_history")
            if history is None:
                meta.amax_history.zero_()
                meta.scale.fill_(1.0)
            else:
                meta.amax_history.copy_(history)
                meta.scale.copy_(saved[f"{name}/{direction}/scale"])
            if hasattr(meta, "scale_inv"):  # versions before 2.0 keep it besides
                meta.scale_inv.copy_(1 / meta.scale)


@contextmanager
def unmoved_fp8_state(model: nn.Module) -> Iterator[None]:
    """Keep FP8's histories unchanged in passes that do not train: a dry run, diagnostics."""
    before = {name: tensor.clone() for name, tensor in fp8_state(model).items()}
    try:
        yield
    finally:
        load_fp8_state(model, before)


def _delayed(module: nn.Module) -> dict[str, Any]:
    meta = getattr(module, "fp8_meta", {})
    return {d: meta[d] for d in ("scaling_fwd", "scaling_bwd") if hasattr(meta.get(d), "scale")}
