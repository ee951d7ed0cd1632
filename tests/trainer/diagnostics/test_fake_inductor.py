"""Inductor's program on fake tensors: what it allocates, and what it leaves behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from lehr_trainer.diagnostics.phase_memory import compiled_on_fake_tensors

# One small kernel: a header compiled in advance and the vector units would take longer than they save.
QUICK = {"cpp_cache_precompile_headers": False, "cpp.simdlen": 1, "compile_threads": 1}


def double(x: Tensor) -> Tensor:
    return (x.sin() * 2).relu()


@pytest.mark.nightly  # It compiles; compiled steps are traced at night, too.
def test_compiled_code_runs_on_fake_tensors_and_afterwards_on_real_ones() -> None:
    from torch._inductor import config  # Its import takes longer than that of all other tests.

    x = torch.linspace(0, 1, 64)
    with config.patch(QUICK), compiled_on_fake_tensors(), FakeTensorMode():
        traced = torch.compile(double, dynamic=False)(torch.empty(64))
        assert isinstance(traced, FakeTensor)
        assert traced.shape == x.shape
    # A program without kernels would give whatever its buffer held.
    with config.patch(QUICK):
        assert torch.allclose(torch.compile(double, dynamic=False)(x), double(x))
