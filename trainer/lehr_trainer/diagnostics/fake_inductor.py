"""Compiled code on fake tensors: Inductor's own program, whose kernels do nothing.

``torch.compile`` works as in a run: Dynamo records the graph, the partitioner chooses what is kept
for backward, Inductor fuses and plans buffers. What it writes is a Python program that allocates
each buffer, calls a kernel on it and drops it again. Here this program runs with kernels that do
nothing, and with allocations that a dispatch mode sees. So what it holds at each moment is what the
compiled step of a run holds, and no kernel is built, which would take the time.

Only a CPU's code is run so. Fusion and partitioning are the same code for CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor


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
