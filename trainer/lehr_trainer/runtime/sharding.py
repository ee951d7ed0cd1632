"""Sharding of weights, gradients and optimizer state over ranks, by PyTorch's FSDP2.

``fully_shard`` splits each matrix by its first dimension, so a rank holds some of its rows. Vectors
(norms and biases, a ten-thousandth of the parameters) stay whole on every rank: they are used in
fp32, and a group's weights are gathered in one type. The optimizer sees both as plain tensors,
``own_parameters``: it then needs to know nothing of sharding, unless it works on whole matrices
(Muon). Without sharding they are the parameters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import _disable_current_modes

from lehr_trainer.configs.optimizer import EIGHT_BIT_BLOCK
from lehr_trainer.errors import BadConfig
from lehr_trainer.models.fp8 import CastBeforeGather
from lehr_trainer.models.module_map import blocks
from lehr_trainer.runtime.waits import groups_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

    from lehr_trainer.configs.execution import ParallelConfig
    from lehr_trainer.runtime.distributed import Ranks

_SCALES = (".scale", "/absmax1", "/absmax2")
"""Ends of the names of scales: of torchao, of bitsandbytes."""
_SHARDS = "lehr_shards"
"""The sharded model's attribute with its ``Shards``."""


@dataclass(frozen=True)
class Rows:
    """Which rows of a whole parameter a rank holds."""

    first: int
    last: int
    """Exclusive."""
    whole: int
    """Number of rows of the parameter."""


@dataclass(frozen=True)
class Shards:
    """What a rank holds of a sharded model."""

    parameters: dict[str, nn.Parameter]
    """All of the model; those with ``rows`` are DTensors."""
    own: dict[str, nn.Parameter]
    """The same memory as plain tensors; empty where this rank has no row."""
    rows: dict[str, Rows]
    """Of each matrix; a vector is whole."""
    group: dist.ProcessGroup
    """The ranks that together hold one model."""
    writes: bool
    """Whether this rank saves its part: of several ranks with the same rows, one does."""
    keeps_whole: bool
    """Parameters stay whole from the first forward pass of a step to its last backward pass."""


def divides(config: ParallelConfig, ranks: Ranks) -> bool:
    """Return whether the ranks divide the model among them."""
    return config.shard != "none" and ranks.cpu_group is not None


@contextmanager
def without_memory(seed: int) -> Iterator[None]:
    """Build linears and embeddings without memory for their weights; ``shard`` provides it.

    What else a model has is made as always. If a project's model draws numbers for it, every rank
    draws the same.
    """

    def on_meta(module: nn.Module, _name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        if isinstance(module, nn.Linear | nn.Embedding) and parameter.ndim > 1:
            return nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        return None

    hook = register_module_parameter_registration_hook(on_meta)  # type: ignore[arg-type]
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            yield
    finally:
        hook.remove()


@torch.no_grad()
def fill(parameter: Tensor, draw: Callable[[Tensor], object]) -> None:
    """Fill a parameter by ``draw``; of a sharded one ``draw`` fills a whole tensor for a moment."""
    from torch.distributed.tensor import DTensor

    if not isinstance(parameter, DTensor):
        draw(parameter)
        return
    own, rows = parameter.to_local(), _rows(parameter)
    whole = torch.empty(parameter.shape, dtype=own.dtype, device=own.device)
    draw(whole)
    own.copy_(whole[rows.first : rows.last])


def shard(
    model: nn.Module, *, config: ParallelConfig, ranks: Ranks, operands: torch.dtype = torch.float32
) -> None:
    """Shard the model in place as in the config; an optimizer is built afterwards.

    Weights that have no memory yet get that of this rank's rows, to be filled. Each block is a
    group: its parameters are gathered for its forward and its backward pass. Embedding, head and
    last norm are another, which stays whole in between.

    Matrices of blocks are gathered in ``operands``, to which autocast rounds them anyway; so is
    their gradient, before it is widened and added up.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    with _disable_current_modes():  # A memory trace has no values, but a mesh reads some.
        mesh = _mesh(config, ranks)
    reduce = torch.bfloat16 if config.compression == "bf16" else torch.float32
    of_blocks, outer = (
        MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduce, cast_forward_inputs=False)
        for dtype in (operands, torch.float32)
    )
    keeps_whole = config.shard == "optimizer"
    split = partial(
        fully_shard, mesh=mesh, ignored_params={p for p in model.parameters() if p.ndim < 2}
    )
    for block in blocks(model):
        split(block, reshard_after_forward=not keeps_whole, mp_policy=of_blocks)
    split(model, reshard_after_forward=False, mp_policy=outer)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.device.type == "meta":
                rows = _with_memory(parameter, ranks.device)
                setattr(module, name, nn.Parameter(rows, parameter.requires_grad))
    for module in (*blocks(model), model):
        follow: Any = module._apply  # noqa: SLF001 - by it FSDP2 finds the new parameters
        follow(lambda tensor: tensor, recurse=False)
    axis = mesh.ndim - 1
    group = mesh.get_group(axis)
    for each in _groups(model):
        each.lazy_init()  # Hereafter the memory of rows, padded to be gathered, is for good.
    in_groups = (parameter for each in _groups(model) for parameter in each.fsdp_params)
    fp8 = CastBeforeGather(in_groups, group, partial(_gather_anew, model))
    if fp8.casts:
        model.register_forward_pre_hook(fp8.before_forward, prepend=True)
    parameters = dict(model.named_parameters())
    own = {
        name: nn.Parameter(_local(parameter.detach()), parameter.requires_grad)
        for name, parameter in parameters.items()
    }
    setattr(
        model,
        _SHARDS,
        Shards(
            parameters,
            own,
            {n: _rows(p) for n, p in parameters.items() if p.ndim > 1},  # type: ignore[arg-type]
            group,
            writes=axis == 0 or mesh.get_local_rank(0) == 0,
            keeps_whole=keeps_whole,
        ),
    )


def _mesh(config: ParallelConfig, ranks: Ranks) -> DeviceMesh:
    """Return the ranks as a row, or for ``node`` as [nodes, ranks of a node].

    Raises:
        BadConfig: the nodes have unequal numbers of ranks.
    """
    from torch.distributed.device_mesh import init_device_mesh

    local = ranks.local_size or ranks.world_size
    if config.shard != "node" or local in {1, ranks.world_size}:
        return init_device_mesh(ranks.device.type, (ranks.world_size,))
    if ranks.agree_at_start and set(ranks.gather_text(str(local))) != {str(local)}:
        raise BadConfig(
            "parallel.shard: node needs the same number of ranks on each node; set it to all, or "
            "launch as many processes on each node"
        )
    shape = (ranks.world_size // local, local)
    return init_device_mesh(ranks.device.type, shape, mesh_dim_names=("nodes", "gpus"))


def _local(tensor: Tensor) -> Tensor:
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _with_memory(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a sharded tensor like ``tensor`` with memory for its rows."""
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    # Made of its rows: ``empty_like`` of the whole would show in a memory trace.
    return DTensor.from_local(
        torch.empty_like(tensor.to_local(), device=device),
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def _rows(parameter: DTensor) -> Rows:
    mesh, axis = parameter.device_mesh, parameter.device_mesh.ndim - 1
    return rows_of(len(parameter), mesh.get_local_rank(axis), mesh.size(axis))


def rows_of(whole: int, place: int, ways: int) -> Rows:
    """Return the rows of part ``place`` of ``ways``, as ``torch.chunk`` cuts them."""
    size = -(-whole // ways)
    first = min(place * size, whole)
    return Rows(first, min(first + size, whole), whole)


def shards_of(model: nn.Module) -> Shards | None:
    """Return what this rank holds of a sharded model; None if it holds all."""
    shards: Shards | None = getattr(model, _SHARDS, None)
    return shards


def own_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return each parameter as this rank's optimizer has it, by name: whole, or its rows."""
    shards = shards_of(model)
    return dict(model.named_parameters()) if shards is None else shards.own


def own_gradients(model: nn.Module) -> list[Tensor]:
    """Return the gradients of ``own_parameters``; those of a sharded model are handed to them.

    FSDP2 has averaged those of matrices over all ranks; here it is done for vectors.
    """
    shards = shards_of(model)
    if shards is not None:
        vectors: list[Tensor] = []
        for name, part in shards.own.items():
            gradient = shards.parameters[name].grad
            if gradient is not None:
                part.grad = _local(gradient)
                vectors += [part.grad] * (name not in shards.rows)
        if vectors:
            joined = torch.cat([each.flatten() for each in vectors])
            dist.all_reduce(joined)
            joined.div_(dist.get_world_size())
            parts = torch.split(joined, [each.numel() for each in vectors])
            torch._foreach_copy_(
                vectors, [p.view_as(v) for p, v in zip(parts, vectors, strict=True)]
            )
        drop_gradients(model)
    return [p.grad for p in own_parameters(model).values() if p.grad is not None]


def drop_gradients(model: nn.Module) -> None:
    """Drop what backward passes left in a sharded model; the optimizer clears its own."""
    shards = shards_of(model)
    for parameter in () if shards is None else shards.parameters.values():
        parameter.grad = None


def total_norm(model: nn.Module, tensors: Sequence[Tensor]) -> Tensor:
    """Return the norm of all values of the whole model: of gradients, or of weights."""
    norm_of, shards = torch.nn.utils.get_total_norm, shards_of(model)
    if shards is None:
        return norm_of(tensors)
    square = norm_of([each for each in tensors if each.ndim > 1]).square()
    dist.all_reduce(square, group=shards.group)
    return (square + norm_of([each for each in tensors if each.ndim < 2]).square()).sqrt()


def hold_back(model: nn.Module, *, keep: bool) -> None:
    """Prepare for a micro-batch of a step; ``keep`` if it is not the last one.

    Gradients are sharded after each, or their memory would be that of the whole model. What can
    wait for the last one does: the sum over nodes, and giving up whole parameters.
    """
    shards = shards_of(model)
    if shards is None:
        return
    model.set_requires_all_reduce(not keep)  # type: ignore[operator]
    if shards.keeps_whole:
        model.set_reshard_after_backward(not keep)  # type: ignore[operator]


def give_up_whole(model: nn.Module) -> None:
    """Free whole parameters that a forward pass without a backward pass left."""
    if shards_of(model) is not None:
        for module in (*blocks(model), model):
            module.reshard()


@contextmanager
def gathered_in_fp32(model: nn.Module) -> Iterator[None]:
    """Gather all weights as they are, for passes outside of autocast."""
    if shards_of(model) is None:
        yield
        return
    policies = {group: group.mp_policy for group in _groups(model)}

    def gather_by(policies: Mapping[Any, Any]) -> None:
        _gather_anew(model)
        for group, policy in policies.items():
            group.mp_policy = policy
            for parameter in group.fsdp_params:
                parameter.init_dtype_attrs(policy)

    gather_by({group: replace(policy, param_dtype=None) for group, policy in policies.items()})
    try:
        yield
    finally:
        gather_by(policies)


def _groups(model: nn.Module) -> list[Any]:
    """Return FSDP2's groups of parameters of all blocks."""
    modules: Any = blocks(model)
    # It has no public name.
    return [group for block in modules for group in groups_of(block._get_fsdp_state())]  # noqa: SLF001


def _gather_anew(model: nn.Module) -> None:
    """Forget what the blocks gathered into, so that they can be gathered in another type."""
    give_up_whole(model)
    for group in _groups(model):
        for parameter in group.fsdp_params:
            parameter.all_gather_outputs = []
            # Made anew in this type, and so is the parameter that uses them.
            vars(parameter).pop("_unsharded_param", None)
            parameter._init_extensions()  # noqa: SLF001


def own_part(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return, of a sharded model's tensors by name, what this rank holds."""
    shards = shards_of(model)
    if shards is None:
        return dict(tensors)
    return {name: shards.own.get(name, tensor) for name, tensor in tensors.items()}


def rows_of_state(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Rows]:
    """Return which of a checkpoint's tensors are rows of a whole: parameters, and what is like one.

    Their names are that of the parameter, or have it before or after a slash.
    """
    shards, rows = shards_of(model), dict[str, Rows]()
    if shards is None:
        return rows
    for name, tensor in tensors.items():
        for base in (name, name.rpartition("/")[0], name.partition("/")[2]):
            if base in shards.rows:
                part = rows_like(name, tensor.shape, shards.own[base].shape, shards.rows[base])
                if part is not None:
                    rows[name] = part
    return rows


def rows_like(name: str, shape: Sequence[int], parameter: Sequence[int], rows: Rows) -> Rows | None:
    """Return the rows of a parameter's state that belong to ``rows`` of it; None: it has no rows.

    Scales of 8-bit moments are a flat list, of one or several for each row.
    """
    if len(shape) == len(parameter) and shape[0] == parameter[0]:
        return rows
    blocks_of_row = math.prod(parameter[1:]) // EIGHT_BIT_BLOCK
    # By name: the table of 256 codes is as long as the scales of a matrix of 256 x 256.
    if name.endswith(_SCALES) and list(shape) == [blocks_of_row * parameter[0]]:
        return Rows(*(blocks_of_row * number for number in (rows.first, rows.last, rows.whole)))
    return None
