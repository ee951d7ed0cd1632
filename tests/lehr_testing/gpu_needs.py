"""What a test on a GPU needs: a package, and a generation of GPUs."""

from __future__ import annotations

import importlib
import importlib.util
import inspect

import pytest
import torch

from lehr_trainer.models.attention import FLASH_PACKAGES

PACKAGES = {
    "liger": "liger_kernel",
    "cce": "cut_cross_entropy",
    "cce_fp32": "cut_cross_entropy",
    "cce_kahan": "cut_cross_entropy",
    "tensorwise": "torchao",
    "rowwise": "torchao",
    "te_delayed": "transformer_engine",
}
CAPABILITIES = {"tensorwise": (8, 9), "rowwise": (9, 0), "te_delayed": (8, 9)}


def need(name: str) -> None:
    """Skip the test if this machine lacks the package of ``name``; otherwise ``name`` must run."""
    if name in FLASH_PACKAGES:
        _need_flash(name)
        return
    if name == "torch_chunked" and not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        pytest.skip(f"{name} needs torch 2.13 or later")
    package, least = PACKAGES.get(name), CAPABILITIES.get(name, (0, 0))
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if torch.cuda.get_device_capability() < least:
        pytest.skip(f"{name} needs compute capability {least[0]}.{least[1]}")
    if name in {"cce_fp32", "cce_kahan"}:
        cut = importlib.import_module("cut_cross_entropy").linear_cross_entropy
        if "accum_e_fp32" not in inspect.signature(cut).parameters:
            pytest.skip(f"{name} needs a newer cut-cross-entropy")


def _need_flash(name: str) -> None:
    majors, module, _ = FLASH_PACKAGES[name]
    major, _ = torch.cuda.get_device_capability()
    if major not in majors:
        pytest.skip(f"{name} has no kernel for compute capability {major}.x")
    try:
        # FlashAttention 2 and 4 share the folder flash_attn, so its presence is not enough.
        importlib.import_module(module)
    except ImportError as error:
        pytest.skip(f"{module} cannot be imported: {error}")
