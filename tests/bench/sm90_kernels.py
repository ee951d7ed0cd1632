"""The kernels of the loss's pointwise part for an H100: generated and built without a GPU.

Inductor writes them for fake CUDA tensors, and Triton builds them for sm_90 with the ptxas that it
brings along. Printed are what a kernel uses of an SM, the bytes that it moves by Inductor's count,
and the time that this takes at 2.7 TB/s: arithmetic, not a measurement.

    pip install --no-deps triton==3.7.1    # works with torch 2.13
    python tests/bench/sm90_kernels.py
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lehr_trainer.losses.pointwise import fusible

H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3",
    major=9,
    minor=0,
    multi_processor_count=132,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
    shared_memory_per_block_optin=232448,
)
MEMORY_BYTES_PER_S = 2.7e12


class _Written(Exception):
    """Inductor has written its program; it cannot be loaded without CUDA."""


@dataclass(frozen=True)
class Kernel:
    name: str
    source: str


@dataclass(frozen=True)
class Built:
    config: str
    registers: int
    spilled: int
    shared: int
    cubin: int


@contextmanager
def _as_if_on_an_h100() -> Iterator[None]:
    import triton
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.runtime import triton_helpers
    from triton.backends.compiler import GPUTarget

    class Driver:
        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self) -> int:
            return 0

    def gives(value: object) -> Any:
        return staticmethod(lambda *_arguments: value)

    cuda = {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": H100,
        "get_device_capability": (9, 0),
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
    }
    interface = {
        "is_available": True,
        "get_compute_capability": 90,
        "current_device": 0,
        "get_device_properties": H100,
    }
    worker = {"get_device_properties": H100, "current_device": 0}
    with ExitStack() as patches:
        for name, value in cuda.items():
            patches.enter_context(mock.patch.object(torch.cuda, name, gives(value).__func__))
        for name, value in interface.items():
            patches.enter_context(mock.patch.object(CudaInterface, name, gives(value)))
        for name, value in worker.items():
            patches.enter_context(mock.patch.object(CudaInterface.Worker, name, gives(value)))
        patches.enter_context(mock.patch.object(triton_helpers, "set_driver_to_gpu"))
        triton.runtime.driver.set_active(Driver())
        yield


def written(function: Any, rows: int, words: int) -> tuple[list[Kernel], int]:
    """Return the kernels that Inductor writes for a chunk, and the bytes that they move."""
    import torch._functorch.config
    import torch._inductor.config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.exc import InductorError
    from torch._inductor.graph import GraphLowering
    from torch.fx.experimental.proxy_tensor import make_fx

    seen: list[tuple[str, int]] = []

    def stop(self: Any, code: Any) -> None:
        seen.append((code.value, self.count_bytes()[0]))
        raise _Written

    with (
        mock.patch.object(GraphLowering, "_compile_to_module_lines", stop),
        torch._inductor.config.patch(fx_graph_cache=False, compile_threads=1),
        FakeTensorMode(),
    ):
        logits = torch.empty(rows, words, device="cuda")
        targets = torch.empty(rows, 1, dtype=torch.int64, device="cuda")
        graph = make_fx(
            lambda a, b: function(a, b, 1.0, torch.bfloat16),
            decomposition_table=select_decomp_table(),
        )(logits, targets)
        try:
            compile_fx_inner(graph, [logits, targets])
        except (_Written, InductorError):
            if not seen:
                raise
    code, moved = seen[-1]
    found = re.findall(r"async_compile\.triton\('(\w+)', '''(.*?)''', device_str", code, re.DOTALL)
    return [Kernel(name, source) for name, source in found], moved


def built(kernel: Kernel) -> list[Built]:
    """Build a kernel for sm_90 in each configuration that Inductor would try."""
    import torch._inductor.config
    from torch._inductor.codecache import PyCodeCache

    key, path = PyCodeCache.write(kernel.source)
    autotuner: Any = getattr(PyCodeCache.load_by_key_path(key, path), kernel.name)
    results = []
    for config in autotuner.configs:
        with torch._inductor.config.patch(use_static_cuda_launcher=False):
            binary = autotuner._precompile_config(config).kernel
        used = _resources(binary.asm["cubin"])
        results.append(
            Built(
                config=f"{config.kwargs}, {config.num_warps} warps",
                registers=used["REG"],
                spilled=used["STACK"],
                shared=int(binary.metadata.shared),
                cubin=len(binary.asm["cubin"]),
            )
        )
    return results


def _resources(cubin: bytes) -> dict[str, int]:
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listed = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        )
    return {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", listed.stdout)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2048, help="rows of a chunk")
    parser.add_argument("--words", type=int, default=131_072, help="size of the vocabulary")
    given = parser.parse_args()
    if find_spec("triton") is None:
        print("skipped: triton is not installed (pip install --no-deps triton==3.7.1)")
        return 0
    logits = 4 * given.rows * given.words
    with _as_if_on_an_h100():
        kernels, moved = written(fusible, given.rows, given.words)
        print(f"[{given.rows}, {given.words}]: {len(kernels)} kernels, {moved / 1e9:.2f} GB moved")
        print(f"{moved / logits:.2f} times the logits, {1e3 * moved / MEMORY_BYTES_PER_S:.2f} ms")
        for kernel in kernels:
            print(kernel.name)
            for each in built(kernel):
                print(
                    f"  {each.config}: {each.registers} registers, {each.spilled} B of stack, "
                    f"{each.shared} B shared, {each.cubin} B of code"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
