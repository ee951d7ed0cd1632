"""The optimizer's part of a checkpoint: tensors in its files, everything else in ``state.json``.

``state.json`` lists what each parameter's state holds, so a parameter that is not listed had none:
it is frozen, unused, or no update was made yet. A value is itself (None, a bool, number or string)
or an object with one entry: ``tensor`` or ``cpu`` (which stays in host memory), ``int`` and
``torchao`` name tensors of the files; ``list``, ``tuple`` and ``dict`` hold values.

Values of a group belong to the config, except those that a project's optimizer has changed since
it was built, such as a counter: they are saved, too.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from lehr_trainer.checkpointing.checkpoint import DTYPES, SavedTensors
from lehr_trainer.errors import BadCheckpoint, BadConfig
from lehr_trainer.runtime.sharding import own_parameters, rows_like, shards_of

Tensors = dict[str, Tensor]

_AO_PARTS = ("codes", "scale", "qmap")
_OF_CONFIG = frozenset({"params", "name", "lr", "peak_lr"})


def remember_config(optimizer: torch.optim.Optimizer) -> None:
    """Note the values of a project's optimizer as built: what differs later is its own."""
    optimizer.lehr_as_built = [_marks(group) for group in optimizer.param_groups]  # type: ignore[attr-defined]


def is_replaced(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether it is a project's own."""
    return hasattr(optimizer, "lehr_as_built")


def capture(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], Tensors]:
    """Return what ``state.json`` says of the optimizer, and its tensors by name; not copied.

    Raises:
        BadConfig: it holds something that cannot be saved.
    """
    tensors: Tensors = {}
    states: dict[str, Any] = {}
    named = own_parameters(model)
    ids = {id(parameter) for parameter in named.values()}
    if strange := [key for key in optimizer.state if id(key) not in ids]:
        raise BadConfig(f"its state has an entry of no parameter: {str(strange[0])[:100]!r}")
    for name, parameter in named.items():
        # Sorted, because a loaded state holds them in another order, but files should be equal.
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            if type(key) is not str:
                raise BadConfig(f"the state of {name} has a key that is no string: {key!r}")
            entry = f"{name}/{key}"
            if type(value) is int:  # A tensor since Lehr 0.1: the counter of bitsandbytes.
                tensors[f"{entry}.int"] = torch.tensor(value)
                saved: Any = {"int": f"{entry}.int"}
            else:
                saved = _encode(value, entry, tensors, parameter.device)
            states.setdefault(name, {})[key] = saved
    groups: list[dict[str, Any]] = []
    for index, before in enumerate(getattr(optimizer, "lehr_as_built", ())):
        group = optimizer.param_groups[index]
        now, device = _marks(group), group["params"][0].device
        own = sorted(key for key in now if key not in before or now[key] != before[key])
        prefix = f"groups.{index}"
        groups.append({key: _encode(group[key], f"{prefix}/{key}", tensors, device) for key in own})
    return {"state": states, "groups": groups}, tensors


def restore(
    directory: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    document: Mapping[str, Any],
    tensors: SavedTensors,
) -> None:
    """Load what ``capture`` returned; the learning rate and the like stay as the config sets them.

    It goes through ``load_state_dict``, which knows where each kind of state belongs. That casts
    state to its parameter's type, so a project's optimizer gets its own types again afterwards.

    Raises:
        BadCheckpoint: it belongs to another optimizer, or lacks a tensor.
    """
    states, groups = document["state"], document["groups"]
    names = {id(parameter): name for name, parameter in own_parameters(model).items()}
    whole = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    shards = shards_of(model)
    rows = {} if shards is None else shards.rows
    ordered = [p for group in optimizer.param_groups for p in group["params"]]
    unknown = sorted(states.keys() - {names[id(p)] for p in ordered})
    if unknown or (any(groups) and len(groups) != len(optimizer.param_groups)):
        what = f"state of {unknown[0]}" if unknown else f"{len(groups)} groups"
        raise BadCheckpoint(f"{directory} does not fit this run's optimizer: it holds {what}")
    held = [(i, p, states[names[id(p)]]) for i, p in enumerate(ordered) if names[id(p)] in states]

    def decoded(
        values: Mapping[str, Any], name: str = "", device: torch.device | None = None
    ) -> dict[str, Any]:
        def held(tensor: str) -> Tensor:
            """Return a tensor; of one with the rows of a sharded parameter, this rank's rows."""
            if name not in rows:
                return tensors[tensor]
            shape = tensors.shape(tensor)
            return tensors.rows(tensor, rows_like(tensor, shape, whole[name], rows[name]))

        try:
            return {key: _decode(value, held, device) for key, value in values.items()}
        except KeyError as error:
            raise BadCheckpoint(
                f"{directory} is damaged: its state.json lists the optimizer's tensor {error}, "
                "which its files lack"
            ) from error

    state = {index: decoded(saved, names[id(p)]) for index, p, saved in held}
    own = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": own})
    if is_replaced(optimizer):
        for _, parameter, saved in held:
            optimizer.state[parameter] = decoded(saved, device=parameter.device)
    for group, saved in zip(optimizer.param_groups, groups, strict=False):
        group.update(decoded(saved, device=group["params"][0].device))


def _encode(value: Any, name: str, tensors: Tensors, device: torch.device) -> Any:
    """Return the value as JSON; its tensors are added under names that begin with ``name``."""
    kind = type(value)
    if value is None or kind in {bool, int, float, str}:
        return value
    if kind in {list, tuple}:
        parts = enumerate(value)
        return {kind.__name__: [_encode(v, f"{name}.{i}", tensors, device) for i, v in parts]}
    if kind is dict and all(type(key) in {bool, int, float, str} for key in value):
        parts = value.items()
        return {"dict": [[k, _encode(v, f"{name}.{k}", tensors, device)] for k, v in parts]}
    added: Tensors = {}
    if hasattr(value, "codes"):  # torchao's OptimState8bit, whose class need not be imported
        added = {f"{name}.{part}": getattr(value, part) for part in _AO_PARTS}
        added[f"{name}.signed"] = torch.tensor(value.signed)
        saved = {"torchao": name}
    elif isinstance(value, Tensor) and _is_plain(value):
        added = {name: value}
        saved = {"cpu" if value.device != device and value.device.type == "cpu" else "tensor": name}
    if not added or tensors.keys() & added.keys():
        what = f"a {value.dtype} tensor" if isinstance(value, Tensor) else f"a {kind.__name__}"
        raise BadConfig(
            f"{name} is {what}; state may be None, bools, numbers, strings, plain tensors, and "
            "lists, tuples and dicts of them"
        )
    tensors.update(added)
    return saved


def _is_plain(value: Tensor) -> bool:
    whole = value.layout is torch.strided and not is_traceable_wrapper_subclass(value)
    return whole and value.dtype in DTYPES


def _decode(
    saved: Any, tensors: Callable[[str], Tensor], device: torch.device | None = None
) -> Any:
    """Return the value; without a device its tensors stay as they were read."""
    if not isinstance(saved, dict):
        return saved
    [(kind, content)] = saved.items()
    match kind:
        case "list" | "tuple":
            parts = [_decode(each, tensors, device) for each in content]
            return parts if kind == "list" else tuple(parts)
        case "dict":
            return {key: _decode(each, tensors, device) for key, each in content}
        case "int":
            return int(tensors(content))
        case "torchao":
            eight_bit = importlib.import_module("torchao.optim.subclass_8bit").OptimState8bit
            parts = [tensors(f"{content}.{part}").clone().to(device) for part in _AO_PARTS]
            if not parts[0].numel():  # Of a rank without a row; torchao has no empty one.
                return parts[0].float()
            return eight_bit(*parts, bool(tensors(f"{content}.signed")), torch.float32)
        case _:
            if device is None:
                return tensors(content)
            return tensors(content).to("cpu" if kind == "cpu" else device, copy=True)


def _marks(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the group's values in a form that can be compared."""
    return {key: _mark(value) for key, value in group.items() if key not in _OF_CONFIG}


def _mark(value: Any) -> Any:
    tensors: Tensors = {}
    try:
        saved = json.dumps(_encode(value, "", tensors, torch.device("cpu")))
    except BadConfig:
        return value
    return saved, {name: (tensor.dtype, tensor.tolist()) for name, tensor in tensors.items()}
