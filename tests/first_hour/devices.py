"""What only a process that opens the GPUs can find out, each time in a process of its own.

A context takes some hundred MB of its GPU until its process ends, and a GPU in exclusive mode takes
one process only. So the session's process, which starts trainings for an hour, opens no GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

import torch

from first_hour.parts import Failed
from lehr_testing.paths import ROOT

_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Device:
    name: str
    memory_bytes: int


@dataclass(frozen=True)
class Product:
    """The speed of a bf16 matrix product."""

    device: str
    name: str
    size: int
    flops: float


def gpus() -> list[Device]:
    """List the GPUs that torch sees.

    Raises:
        Failed: torch cannot open them.
    """
    return [Device(**found) for found in _ask("gpus")]


def products(*, on_cuda: bool) -> list[Product]:
    """Measure a large bf16 product on each GPU, or a small one on the CPU.

    Raises:
        Failed: a GPU cannot compute it.
    """
    return [Product(**found) for found in _ask("products" if on_cuda else "products-on-cpu")]


def _ask(what: str) -> list[dict]:
    command = [sys.executable, "-m", "first_hour.devices", what]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT / "tests",
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(f"`{' '.join(command)}` did not end within {_TIMEOUT_S:.0f} s") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Failed(f"`{' '.join(command)}` ended with {done.returncode}: {last}")
    found: list[dict] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


# --- in that process -----------------------------------------------------------------------------


def _answer(what: str) -> list[dict]:
    if what == "products-on-cpu":
        return [asdict(_product(torch.device("cpu"), "CPU", size=128, repeats=2))]
    names = list(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
    if what == "gpus":
        found = (
            Device(name, torch.cuda.get_device_properties(index).total_memory)
            for index, name in enumerate(names)
        )
        return list(map(asdict, found))
    return [
        asdict(_product(torch.device("cuda", index), name, size=8192, repeats=50))
        for index, name in enumerate(names)
    ]


def _product(device: torch.device, name: str, *, size: int, repeats: int) -> Product:
    left, right = (torch.randn(size, size, device=device).bfloat16() for _ in range(2))

    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(3 if device.type == "cuda" else 1):
        left @ right
    settle()
    began = time.perf_counter()
    for _ in range(repeats):
        left @ right
    settle()
    return Product(str(device), name, size, 2 * size**3 * repeats / (time.perf_counter() - began))


if __name__ == "__main__":
    print(json.dumps(_answer(sys.argv[1])))
