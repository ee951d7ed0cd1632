"""Benchmark of one forward pass by part of the model: kernels, and memory kept for backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor
from torch.autograd.profiler import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.diagnostics.memory_by_layer import memory_by_layer
from lehr_trainer.experiments.batch_makers import step_batches
from lehr_trainer.experiments.case import Case
from lehr_trainer.experiments.launches import computes
from lehr_trainer.losses.variants import build_loss
from lehr_trainer.models import build_model
from lehr_trainer.models.attention import attention_backend
from lehr_trainer.models.documents import make_input_fn
from lehr_trainer.models.module_map import Decoder, ModuleMap, module_map
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision

PARTS = ("embedding", "norms", "attention", "MLP", "rest of the model", "head and loss")
_MARK = "part: "


class PartsSubject:
    """An eager model with its loss; a graph has no parts, so nothing is compiled."""

    def __init__(self, case: Case) -> None:
        config = TrainConfig.model_validate(case.config)
        ranks = Ranks.join(config.device)
        config = config.on(ranks.device.type)
        self.device = ranks.device
        self._precision = Precision.choose(config.precision, self.device)
        self._model = build_model(config.model, device=self.device, seed=config.seed)
        self._loss = build_loss(config.loss, self._precision.operands, self.device)
        self._batch = step_batches(case.batches, config, self.device, ranks).batch(0, 0)
        self._open = ExitStack()
        self._open.enter_context(attention_backend(config.attention, self.device))
        self._input = make_input_fn(None)

    def steps(self, count: int) -> None:
        for _ in range(count):
            torch.autograd.backward(self._forward())
            self._model.zero_grad()

    def _forward(self) -> Tensor:
        inputs, targets = self._batch
        with self._precision.autocast():
            hidden = self._model(*self._input(inputs))
        return self._loss(hidden, self._model.head_weight, targets)

    def facts(self, _asked: dict[str, Any]) -> dict[str, Any]:
        return {"kept": self._kept(), "kernels": self._kernels()}

    def _kept(self) -> dict[str, int]:
        kept: Counter[str] = Counter()
        for row in memory_by_layer(self._model, self._forward).rows:
            kept[part_of(row.path, module_map(self._model))] += row.kept_bytes
        return dict(kept)

    def _kernels(self) -> dict[str, int]:
        activities = [ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with marked_parts(self._model), profile(activities=activities) as profiled:
            self._forward()
        return kernels_by_part(profiled.events() or [], on_cuda=self.device.type == "cuda")


def part_of(path: str, names: ModuleMap) -> str:
    """Return the part that a module of ``memory_by_layer`` belongs to."""
    if path == "(outside)":
        return "head and loss"
    steps = path.split(".")
    if steps[0] == names.embedding:
        return "embedding"
    if steps[0] == names.final_norm:
        return "norms"
    inner = steps[2] if steps[0] == names.blocks and len(steps) > 2 else ""
    if inner in names.norms:
        return "norms"
    return {names.attention: "attention", names.mlp: "MLP"}.get(inner, "rest of the model")


def marked_parts(model: Decoder) -> AbstractContextManager[object]:
    """Name, in a profile, what runs in each module of the model, until it is closed."""
    names = module_map(model)
    stack = ExitStack()
    for path, module in model.named_modules():
        part = part_of(path or "(model)", names)
        enter, leave = _hooks(part)
        stack.callback(module.register_forward_pre_hook(enter).remove)
        stack.callback(module.register_forward_hook(leave, always_call=True).remove)
    return stack


def _hooks(part: str) -> tuple[Callable[..., None], Callable[..., None]]:
    opened: list[record_function] = []

    def enter(*_: object) -> None:
        opened.append(record_function(f"{_MARK}{part}"))
        opened[-1].__enter__()  # type: ignore[no-untyped-call]

    def leave(*_: object) -> None:
        opened.pop().__exit__(None, None, None)

    return enter, leave


def kernels_by_part(events: list[FunctionEvent], *, on_cuda: bool) -> dict[str, int]:
    """Count the kernels within each part's marks; what is in no mark is the head and the loss."""
    counts: Counter[str] = Counter()
    for event in events:
        if on_cuda:
            # A kernel belongs to the host's operator that launched it.
            number = sum(not k.name.startswith(("Memcpy", "Memset")) for k in event.kernels)
        else:
            number = int(computes(event))
        if number:
            counts[_enclosing(event)] += number
    return dict(counts)


def _enclosing(event: FunctionEvent) -> str:
    parent: FunctionEvent | None = event
    while parent is not None:
        if parent.name.startswith(_MARK):
            return str(parent.name.removeprefix(_MARK))
        parent = parent.cpu_parent
    return "head and loss"
