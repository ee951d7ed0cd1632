"""Checks of the machine before anything is trained: software, GPUs, their speed, the disk."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from importlib.util import find_spec

import torch

from first_hour import devices, smi
from first_hour.parts import Failed, NotHere, Part, Result, Session
from lehr.cli import checks as doctor
from lehr.cli.checks import Check
from lehr_trainer.models.attention import FLASH_PACKAGES
from lehr_trainer.planning.hardware import find_gpu, peak_flops

GROUP = "Machine"
TORCHRUN_PORT = 29500
LEAST_OF_PEAK = 0.5
"""Share of the dense peak that a large bf16 product must reach; a healthy GPU reaches 0.7."""


def software(session: Session) -> Result:
    """Check what Lehr and torch need, as ``lehr doctor`` does, and what only this session needs."""
    found: list[Check] = []
    for check in (
        doctor.check_python,
        doctor.check_packages,
        doctor.check_torch,
        doctor.check_gpu_use,
        doctor.check_compiler,
        doctor.check_cpu,
        doctor.check_shared_memory,
        doctor.check_limits,
    ):
        found += check()
    found += [*_triton(), _port(TORCHRUN_PORT), _optional_packages()]
    free = shutil.disk_usage(session.folder).free
    least = 100e9 if session.machine.on_cuda else 1e9
    fix = "The bench and the runs need little, but a 1B training writes 15 GB a checkpoint."
    enough = free >= least
    found.append(
        Check(
            "disk", "ok" if enough else "note", f"{free / 1e9:.0f} GB free", None if enough else fix
        )
    )
    return judged(found)


def gpus(session: Session) -> Result:
    """Check what the driver says of each GPU: limits, clocks, ECC, MIG, links."""
    if not session.machine.on_cuda:
        raise NotHere("a rehearsal has no GPU and no driver")
    rows = smi.query()
    if not rows:
        raise Failed("nvidia-smi is missing or fails: without it, power and clocks are unknown")
    found = [check for row in rows for check in smi.judge(row)]
    found += [_known(gpu.name, gpu.memory_bytes) for gpu in devices.gpus()]
    topology = smi.topology()
    if len(rows) > 1:
        found.append(smi.judge_links(topology))
    result = judged(found)
    result.figures = smi.figures(rows[0])
    result.text += f"\n\n```\n{topology.rstrip()}\n```" if topology else ""
    return result


def product(session: Session) -> Result:
    """Measure a large bf16 matrix product on each GPU: a slow one has a low limit or a bad clock."""
    found = []
    speeds = []
    for one in devices.products(on_cuda=session.machine.on_cuda):
        speeds.append(one.flops / 1e12)
        peak = peak_flops(one.name, "bf16")
        text = f"{one.flops / 1e12:.1f} TFLOP/s in a bf16 product of {one.size}"
        if peak is None:
            found.append(
                Check(one.device, "note", f"{text}; {one.name} is not in the table of peaks")
            )
            continue
        slow = one.flops < LEAST_OF_PEAK * peak
        found.append(
            Check(
                one.device,
                "bad" if slow else "ok",
                f"{text}: {one.flops / peak:.0%} of the dense peak",
                "See power limit and clocks above; ask the provider for another machine."
                if slow
                else None,
            )
        )
    result = judged(found)
    result.figures = {"TFLOP/s, slowest": min(speeds), "TFLOP/s, fastest": max(speeds)}
    return result


def disk(session: Session) -> Result:
    """Measure how fast the folder's disk takes a large file that is flushed."""
    size = 4 * 2**30 if session.machine.on_cuda else 8 * 2**20
    path = session.work("checks: disk") / "written"
    block = os.urandom(2**20)
    began = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(size // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    speed = size / (time.perf_counter() - began)
    path.unlink()
    return Result({"MB/s": speed / 1e6, "s for 15 GB": 15e9 / speed})


def judged(found: list[Check]) -> Result:
    """Return the checks as a table.

    Raises:
        Failed: at least one is bad; the message has all of those.
    """
    bad = [f"{c.name}: {c.found}. {c.fix or ''}".strip() for c in found if c.status == "bad"]
    if bad:
        raise Failed("; ".join(bad))
    rows = [f"- {c.name} ({c.status}): {c.found}{f'. {c.fix}' if c.fix else ''}" for c in found]
    return Result(text="\n".join(rows))


def _triton() -> list[Check]:
    """Check for the compiler of kernels, which a torch for CUDA brings along."""
    if torch.version.cuda is None or find_spec("triton"):
        return []
    return [Check("Triton", "bad", "not installed", "Install torch for CUDA again.")]


def _port(port: int) -> Check:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            fix = f"Give torchrun another one: --master-port, or end what uses {port}."
            return Check("port", "note", f"{port}, torchrun's default, is in use", fix)
    return Check("port", "ok", f"{port}, torchrun's default, is free")


def _optional_packages() -> Check:
    names = {
        "bitsandbytes": "bitsandbytes",
        "cut-cross-entropy": "cut_cross_entropy",
        "liger-kernel": "liger_kernel",
        "torchao": "torchao",
        "transformer-engine": "transformer_engine",
        **{f"FlashAttention {name[-1]}": module for name, (_, module, _) in FLASH_PACKAGES.items()},
    }
    missing = [name for name, module in names.items() if not _is_installed(module)]
    if not missing:
        return Check("options", "ok", "all optional packages are installed")
    fix = "docs/gpu.md has the commands; parts that need them are not run."
    return Check("options", "note", f"not installed: {', '.join(missing)}", fix)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of its package
        return False


def _known(name: str, memory_bytes: int) -> Check:
    gpu = find_gpu(name)
    if gpu is None:
        fix = "Add it to lehr_trainer/planning/hardware.py, or no MFU is shown."
        return Check("table", "note", f"{name} is not in the table of GPUs", fix)
    off = memory_bytes / gpu.memory_bytes - 1
    text = f"{name}: {memory_bytes / 1e9:.1f} GB, in the table {gpu.memory_bytes / 1e9:.1f}"
    if abs(off) > 0.03:
        return Check("table", "note", text, "Correct the table: plans use its figure.")
    return Check("table", "ok", text)


def _part(name: str, act: Callable[[Session], Result]) -> Part:
    return Part(f"checks: {name}", GROUP, act)


PARTS = [
    _part("software", software),
    _part("GPUs", gpus),
    _part("matrix product", product),
    _part("disk", disk),
]
