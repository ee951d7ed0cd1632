"""Memory of a step by phase and kind, and compiled code on tensors that take none.

torch's MemTracker sees each tensor that an operation returns, so it counts what torch's allocator
would hold, fragments and libraries' workspaces aside. It works on fake tensors too.

``torch.compile`` works as in a run: Dynamo records the graph, the partitioner chooses what is kept
for backward, Inductor fuses and plans buffers. What it writes is a Python program that allocates
each buffer, calls a kernel on it and drops it again. Here this program runs with kernels that do
nothing, and with allocations that a dispatch mode sees. So what it holds at each moment is what the
compiled step of a run holds, and no kernel is built, which would take the time. Only a CPU's code
is run so. Fusion and partitioning are the same code for CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker, _MemRefType

from lehr_trainer.planning.memory import MemoryMoment

_TOTAL = "Total"
_KINDS = _MemRefType

WITH_ACTIVATIONS = frozenset({"forward", "loss", "backward"})
"""Phases in which what the forward pass keeps is there."""


class _NoModules:
    """In place of the tracker of modules: nothing is read by module.

    Its hooks would break a compiled block's graph.
    """

    parents: frozenset[str] = frozenset()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        pass

    def register_user_hooks(self, *_hooks: object) -> None:
        pass

    def clear_user_hooks(self) -> None:
        pass

    @property
    def is_bw(self) -> bool:
        """Whether autograd's engine is running."""
        return bool(torch._C._current_graph_task_id() != -1)  # noqa: SLF001 - no public name


class PhaseMemory(MemTracker):  # type: ignore[no-untyped-call]
    """Keeps the moment of most memory of each phase, instead of each module's."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._phase = ""
        self._most: dict[str, dict[Any, int]] = {}
        self._kept = 0
        self._state_bytes: Callable[[], int] = lambda: 0
        self._mod_tracker: Any = _NoModules()

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let Dynamo compile while this mode is on; what the compiled program does is seen."""
        return True

    def _update_peak_stats(self, _peak_state: Any) -> None:
        """Compare this moment with the phase's greatest; called after each operation."""
        now = self._now()
        if now.get(_TOTAL, 0) > self._most.get(self._phase, {}).get(_TOTAL, -1):
            self._most[self._phase] = dict(now)

    def _now(self) -> dict[Any, int]:
        for device, snapshot in self._curr_mem_snap.items():
            if device.type == self._device.type:
                return snapshot
        return {}

    def follow(self, model: nn.Module, state_bytes: Callable[[], int]) -> None:
        """Count the model's tensors as parameters. ``state_bytes`` counts the optimizer's state."""
        self._track_module_params_and_buffers(model)
        self._state_bytes = state_bytes

    def count_as_gradient(self, tensor: Tensor) -> None:
        """Count a bucket of DDP, of which gradients are views."""
        self._update_and_maybe_create_winfos(tensor, _KINDS.GRAD)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Find the most memory that exists within; a phase within another is apart from it."""
        outer, self._phase = self._phase, name
        self._update_peak_stats(None)
        try:
            yield
        finally:
            self._phase = outer

    def end_of_forward(self) -> None:
        """Note what the forward pass keeps for the backward pass: all that exists now."""
        self._kept = max(self._kept, self._now().get(_KINDS.ACT, 0))

    def forget(self) -> None:
        """Drop what was read so far, so that only a later step counts."""
        self._most, self._kept = {}, 0

    def readings(self) -> dict[str, MemoryMoment]:
        """Return each phase's moment of most memory."""
        return {name: self._reading(name, most) for name, most in self._most.items() if name}

    def _reading(self, phase: str, snapshot: dict[Any, int]) -> MemoryMoment:
        def of(*kinds: Any) -> int:
            return sum(snapshot.get(kind, 0) for kind in kinds)

        # While the optimizer steps, the tracker counts all that is made as its state.
        optimizer = min(of(_KINDS.OPT), self._state_bytes())
        parameters, gradients = of(_KINDS.PARAM, _KINDS.BUFFER), of(_KINDS.GRAD)
        activations = min(of(_KINDS.ACT), self._kept) if phase in WITH_ACTIVATIONS else 0
        known = parameters + gradients + optimizer + activations
        return MemoryMoment(
            parameters=parameters,
            gradients=gradients,
            optimizer=optimizer,
            activations=activations,
            temporaries=of(_TOTAL) - known,
        )


def storage_bytes(tensors: Iterator[Tensor]) -> int:
    """Count the bytes of the tensors' storages, each once."""
    return sum({id(t.untyped_storage()): t.untyped_storage().nbytes() for t in tensors}.values())


def _no_kernel(*_arguments: object) -> None:
    """Stand for a kernel: its results are buffers that exist already."""


def _build_none(_self: object, *_source: object) -> Callable[..., None]:
    return _no_kernel


def _empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cpu")


def _view(tensor: Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> Tensor:
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)


_VISIBLE = {
    "empty_strided_cpu": _empty,
    "reinterpret_tensor": _view,
    "assert_size_stride": _no_kernel,
    "assert_alignment": _no_kernel,
}
"""Names of the generated program that are functions in C++, which no dispatch mode sees."""


@contextmanager
def compiled_on_fake_tensors() -> Iterator[None]:
    """Let ``torch.compile`` make programs that run on fake tensors.

    The dispatch modes around them must have ``ignore_compile_internals``: otherwise Dynamo leaves
    functions as they are, without a word. What the process has compiled before is compiled again
    afterwards.
    """
    from torch import _dynamo
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.graph import GraphLowering

    load = GraphLowering._compile_to_module_lines  # noqa: SLF001 - torch has no public place

    def loaded(self: Any, code: Any) -> Any:
        module: Any = load(self, code)
        for name, visible in _VISIBLE.items():
            setattr(module, name, visible)
        return module

    _dynamo.reset()
    with (
        mock.patch.object(AsyncCompile, "cpp_pybinding", _build_none),
        mock.patch.object(GraphLowering, "_compile_to_module_lines", loaded),
        # A cached program would have its kernels, and this one must not get into a cache.
        inductor_config.patch(fx_graph_cache=False, compile_threads=1),
        functorch_config.patch(enable_autograd_cache=False),
        # A run compiles before DDP wraps the model: its blocks are not split at DDP's buckets.
        _dynamo.config.patch(optimize_ddp=False),
    ):
        try:
            yield
        finally:
            _dynamo.reset()
