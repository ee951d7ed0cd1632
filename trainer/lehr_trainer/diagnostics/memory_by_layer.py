"""What each module keeps for backward, and which attention kernel runs there.

Attention that falls back to the math kernel can take 16 GB unnoticed
(docs/reference-runs.md). One observed forward pass shows both, on CPU and on CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from lehr_trainer.models.attention import AttentionCall, chosen_kernel, fallback_message


@dataclass(frozen=True)
class ModuleMemory:
    """One module, without its submodules."""

    path: str
    kind: str
    """The module's class."""
    kept_bytes: int
    """Storage that autograd keeps for backward; each storage counts where it was first kept."""
    attention_kernel: str | None = None
    """flash, efficient, cudnn, math or flex, if attention runs in this module."""


@dataclass(frozen=True)
class MemoryTable:
    rows: tuple[ModuleMemory, ...]
    warnings: tuple[str, ...]

    @property
    def kept_bytes(self) -> int:
        return sum(row.kept_bytes for row in self.rows)

    def lines(self) -> Iterator[str]:
        """Format the table; a module's own bytes are listed apart from those of its children."""
        width = max((len(row.path) for row in self.rows), default=0)
        yield f"{'module':<{width}}  {'kind':<16}  {'kept MB':>10}  attention"
        for row in self.rows:
            kernel = row.attention_kernel or ""
            megabytes = row.kept_bytes / 1e6
            yield f"{row.path:<{width}}  {row.kind:<16}  {megabytes:>10.2f}  {kernel}".rstrip()
        yield f"{'all':<{width}}  {'':<16}  {self.kept_bytes / 1e6:>10.2f}"
        for warning in self.warnings:
            yield f"warning: {warning}"


def memory_by_layer(model: nn.Module, forward: Callable[[], Any]) -> MemoryTable:
    """Run ``forward`` with gradients on, and measure what each module of ``model`` keeps.

    Args:
        model: the model, not compiled, since a graph has no modules.
        forward: a forward pass through it, loss included if that is to be seen: what runs
            outside of ``model`` counts as ``(outside)``.
    """
    watch = _Watch(model)
    with watch.watching(), torch.enable_grad():
        forward()
    return watch.table()


class _Watch:
    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._where: list[str] = ["(outside)"]
        self._rows: dict[str, ModuleMemory] = {"(outside)": ModuleMemory("(outside)", "", 0)}
        for path, module in model.named_modules():
            name = path or "(model)"
            self._rows[name] = ModuleMemory(name, type(module).__name__, 0)
        # Weights and buffers exist anyway.
        held = [*model.parameters(), *model.buffers()]
        self._seen = {tensor.untyped_storage()._cdata for tensor in held}  # noqa: SLF001 - an id
        self._alive: list[Tensor] = []
        self._warnings: dict[str, None] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            for path, module in self._model.named_modules():
                enter = module.register_forward_pre_hook(self._enter(path or "(model)"))
                leave = module.register_forward_hook(self._leave, always_call=True)
                stack.callback(enter.remove)
                stack.callback(leave.remove)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._keep, _as_it_is))
            stack.enter_context(_AttentionWatch(self._attends))
            yield

    def _enter(self, path: str) -> Callable[..., None]:
        def enter(*_: object) -> None:
            self._where.append(path)

        return enter

    def _leave(self, *_: object) -> None:
        self._where.pop()

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        identity = storage._cdata  # noqa: SLF001 - identifies a storage, as long as it lives
        if identity not in self._seen:
            self._seen.add(identity)
            self._alive.append(tensor.detach())
            row = self._rows[self._where[-1]]
            self._rows[row.path] = replace(row, kept_bytes=row.kept_bytes + storage.nbytes())
        return tensor

    def _attends(self, kernel: str, call: AttentionCall | None) -> None:
        row = self._rows[self._where[-1]]
        self._rows[row.path] = replace(row, attention_kernel=kernel)
        if kernel == "math" and call is not None:
            self._warnings[fallback_message(call, [])] = None

    def table(self) -> MemoryTable:
        rows = (row for row in self._rows.values() if row.kept_bytes or row.attention_kernel)
        return MemoryTable(tuple(rows), tuple(self._warnings))


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor


class _AttentionWatch(TorchFunctionMode):
    """Intercepts each call of attention, with its real operands, and finds the kernel for it."""

    def __init__(self, report: Callable[[str, AttentionCall | None], None]) -> None:
        super().__init__()
        self._report = report

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            query, key = args[0], args[1]
            mask = kwargs.get("attn_mask")
            call = AttentionCall(
                device=query.device,
                dtype=query.dtype,
                batch=query.shape[0],
                heads=query.shape[1],
                kv_heads=key.shape[1],
                length=query.shape[2],
                head_size=query.shape[3],
                dense_mask=mask is not None,
            )
            self._report(chosen_kernel(call), call)
        elif getattr(func, "__name__", "") == "flex_attention":
            self._report("flex", None)
        return func(*args, **kwargs)
