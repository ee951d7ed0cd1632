"""Reasons why a technique has no figures on this machine; an empty string if it has."""

from __future__ import annotations

import torch


def no_tf32(device: str) -> str:
    if device != "cuda":
        return "TF32 is a mode of NVIDIA's matrix units; a CPU has none"
    if torch.cuda.get_device_capability() < (8, 0):
        return "TF32 needs compute capability 8.0 (Ampere)"
    return ""


def no_fast_bf16(device: str) -> str:
    """Explain that bf16 is emulated here, so that no speed-up can be expected."""
    if device == "cuda":
        return "" if torch.cuda.is_bf16_supported(including_emulation=False) else "no bf16 units"
    if torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported():  # noqa: SLF001
        return ""
    return "this CPU has no bf16 arithmetic (AVX512-BF16 or AMX), so bf16 would be emulated"


def no_cuda_graphs(device: str) -> str:
    return "" if device == "cuda" else "CUDA graphs exist on a GPU only"


def no_fp8(device: str, *, rowwise: bool = False) -> str:
    if device != "cuda":
        return "FP8 arithmetic needs a GPU (Ada, Hopper or later)"
    least = (9, 0) if rowwise else (8, 9)
    have = torch.cuda.get_device_capability()
    if have >= least:
        return ""
    return f"FP8 needs compute capability {least[0]}.{least[1]}; this GPU has {have[0]}.{have[1]}"
