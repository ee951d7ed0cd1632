"""Attention kernels: one function that the models call, one place that chooses.

``attend`` is causal attention with grouped queries. Which kernel computes it is
a property of the process, switched once by ``attention_backend`` around a run:
torch.compile then sees plain calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import attention as torch_attention
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask

from lehr_trainer.configs.execution import BACKENDS, AttentionConfig, FlashPackage, sixteen_bit_only
from lehr_trainer.errors import BadConfig

_KERNELS: dict[str, SDPBackend] = {
    name: getattr(SDPBackend, backend.kernel)
    for name, backend in BACKENDS.items()
    if backend.kernel and backend.package is None
}

_GENERATIONS = {9: "Hopper", 10: "Blackwell"}

_switched_to = "auto"
"""Backend of the open ``attention_backend``; a plain global that compilers can read."""

_without_compiling = False
"""Whether a ``without_compiling`` is open."""


def attend(
    query_BHTD: Tensor,
    key_BKTD: Tensor,
    value_BKTD: Tensor,
    mask: Tensor | BlockMask | None = None,
    *,
    scale: float | None = None,
) -> Tensor:
    """Compute causal attention; H query heads share K key and value heads (K divides H).

    ``mask`` is a document mask (see ``models.documents``), which is causal too. ``scale`` is the
    factor of the scores; None is 1/sqrt(D).
    """
    grouped = query_BHTD.shape[1] != key_BKTD.shape[1]
    flex = mask is not None and not isinstance(mask, Tensor)
    if grouped and not _kernel_shares_heads(
        query_BHTD.device, query_BHTD.dtype, dense_mask=mask is not None, flex=flex
    ):
        repeats = query_BHTD.shape[1] // key_BKTD.shape[1]
        key_BKTD = key_BKTD.repeat_interleave(repeats, dim=1)
        value_BKTD = value_BKTD.repeat_interleave(repeats, dim=1)
        grouped = False
    if mask is not None and not isinstance(mask, Tensor):
        masked = _flex_attention(query_BHTD.device.type)
        out: Tensor = masked(
            query_BHTD, key_BKTD, value_BKTD, block_mask=mask, scale=scale, enable_gqa=grouped
        )
        return out
    return F.scaled_dot_product_attention(
        query_BHTD,
        key_BKTD,
        value_BKTD,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=grouped,
    )


def _kernel_shares_heads(
    device: torch.device, dtype: torch.dtype, *, dense_mask: bool, flex: bool = False
) -> bool:
    """Return whether the kernel accepts fewer key and value heads than query heads.

    The CPU's kernel and FlexAttention do. CUDA's flash and cuDNN do with 16-bit operands and no
    dense mask. CUDA's efficient kernel does not; with fewer heads SDPA would fall back to the math
    kernel, which holds all T x T scores: 22.5 GB instead of 6.2 in docs/reference-runs.md.
    """
    if device.type != "cuda" or flex:
        return True
    return BACKENDS[_switched_to].shares_heads and dtype != torch.float32 and not dense_mask


def masks_by_blocks(device: torch.device) -> bool:
    """Return whether documents are masked by blocks, and so by FlexAttention: CUDA's ``auto``.

    Kernels that the config names take a dense mask. A CPU has no backward pass for blocks. What is
    not compiled takes a dense mask too: uncompiled, FlexAttention holds all H x T x T scores.
    """
    return device.type == "cuda" and _switched_to == "auto" and not _without_compiling


def _flex_attention(device_type: str) -> Any:
    """Return FlexAttention: compiled on CUDA, where only that is one fused kernel; eager on a CPU.

    In a compiled block it becomes a part of the block's graph; there it must not be compiled again,
    because Dynamo ignores ``cache``.
    """
    from torch.nn.attention.flex_attention import flex_attention

    if device_type != "cuda" or torch.compiler.is_compiling():
        return flex_attention
    return _compiled(flex_attention)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


# --- choosing ------------------------------------------------------------------------------


@contextmanager
def attention_backend(config: AttentionConfig, device: torch.device) -> Iterator[None]:
    """Make ``attend`` use the config's kernel, and no other, within this context.

    Raises:
        BadConfig: this machine cannot run it.
    """
    global _switched_to  # noqa: PLW0603 - the kernel is a property of the process
    require_backend(config, device)
    before, _switched_to = _switched_to, config.backend
    try:
        with _only(config.backend):
            yield
    finally:
        _switched_to = before


@contextmanager
def diagnostic_kernels() -> Iterator[None]:
    """Allow all kernels but cuDNN's within, unless the config names one that takes any operands.

    Diagnostics compute in fp32, which CUDA's flash and cuDNN kernels refuse: the call would raise
    "No available kernel". Each token of a sample has another length, and cuDNN, which ``auto``
    prefers on Hopper, would make a plan for each.
    """
    global _switched_to  # noqa: PLW0603 - the kernel is a property of the process
    if _switched_to != "auto" and not BACKENDS[_switched_to].sixteen_bit_only:
        yield
        return
    before, _switched_to = _switched_to, "auto"
    try:
        with sdpa_kernel([one for name, one in _KERNELS.items() if name != "cudnn"]):
            yield
    finally:
        _switched_to = before


@contextmanager
def without_compiling() -> Iterator[None]:
    """Run compiled modules eagerly within, for a shape that is too rare for a graph of its own."""
    global _without_compiling  # noqa: PLW0603 - like torch's own stance
    before, _without_compiling = _without_compiling, True
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        _without_compiling = before


@contextmanager
def _only(backend: str) -> Iterator[None]:
    package = BACKENDS[backend].package
    if backend == "auto":
        yield
    elif package is not None:
        _activate(backend, package)
        try:
            # Flash alone; otherwise PyTorch would silently use another kernel if the package
            # refuses.
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                yield
        finally:
            _restore()
    else:
        with sdpa_kernel(_KERNELS[backend]):
            yield


def require_operands(
    config: AttentionConfig, operands: torch.dtype, device: torch.device, *, windows: bool = False
) -> None:
    """Raise at once if the config's backend cannot take the run's operands on this device.

    Raises:
        BadConfig: a CUDA kernel takes no fp32, or no mask for layers that have ``windows``.
    """
    if device.type == "cuda" and operands == torch.float32 and config.chosen.sixteen_bit_only:
        raise BadConfig(sixteen_bit_only(config.backend))
    if device.type == "cuda" and windows:
        _require_masks(config, "model.window")


def require_backend(config: AttentionConfig, device: torch.device) -> None:
    """Raise at once if this machine lacks something for the config's backend."""
    name = config.backend
    field = f"attention.backend: {name}"
    if device.type != "cuda":
        if not config.chosen.on_cpu:
            on_cpu = ", ".join(name for name, backend in BACKENDS.items() if backend.on_cpu)
            raise BadConfig(f"{field} needs a CUDA GPU; on {device.type} there are {on_cpu}")
        return
    if config.document_masking:
        _require_masks(config, "attention.document_masking: true")
    if (package := config.chosen.package) is not None:
        major, minor = torch.cuda.get_device_capability(device)
        if major not in package.capabilities:
            needed = " or ".join(f"{one}.x ({_GENERATIONS[one]})" for one in package.capabilities)
            raise BadConfig(
                f"{field} needs compute capability {needed}; "
                f"{torch.cuda.get_device_name(device)} has {major}.{minor}. Use auto or flash"
            )


def _require_masks(config: AttentionConfig, needed_by: str) -> None:
    if config.backend != "auto" and not config.chosen.dense_mask:
        dense = " or ".join(name for name, backend in BACKENDS.items() if backend.dense_mask)
        raise BadConfig(
            f"attention.backend: {config.backend} takes no mask on a CUDA GPU; with {needed_by} "
            f"use auto (FlexAttention), {dense}"
        )


def _activate(name: str, package: FlashPackage) -> None:
    """Replace PyTorch's flash kernel by FlashAttention 3 or 4."""
    field = f"attention.backend: {name}"
    activate = getattr(torch_attention, "activate_flash_attention_impl", None)
    if activate is None:
        raise BadConfig(f"{field} needs torch 2.11 or later, but this is torch {torch.__version__}")
    try:
        activate(name.upper())
    except ModuleNotFoundError as error:
        raise BadConfig(
            f"{field}: the module {package.module} is not installed ({package.remedy}), or use auto"
        ) from error
    except (ImportError, RuntimeError, ValueError) as error:
        raise BadConfig(f"{field} cannot be switched on: {error}. Use auto or flash") from error


def _restore() -> None:
    """Restore PyTorch's own flash kernel; a torch that cannot do so keeps the other one."""
    restore = getattr(torch_attention, "restore_flash_attention_impl", None)
    if restore is not None:
        restore()


# --- what really runs ----------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionCall:
    """The properties of a call by which PyTorch chooses its kernel."""

    device: torch.device
    dtype: torch.dtype
    batch: int
    heads: int
    kv_heads: int
    length: int
    head_size: int
    dense_mask: bool = False

    @property
    def grouped(self) -> bool:
        return self.heads != self.kv_heads

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Make operands of the call's layout; one sequence is enough for a check."""

        def operand(heads: int) -> Tensor:
            shape = (1, self.length, heads, self.head_size)
            empty = torch.empty(shape, dtype=self.dtype, device=self.device)
            return empty.transpose(1, 2).requires_grad_()

        return operand(self.heads), operand(self.kv_heads), operand(self.kv_heads)

    @property
    def score_bytes(self) -> int:
        """Count the bytes of one layer's scores in the math kernel."""
        return self.batch * self.heads * self.length**2 * self.dtype.itemsize


def chosen_kernel(call: AttentionCall) -> str:
    """Return the kernel that PyTorch would use for such a call: flash, efficient, cudnn or math."""
    query, key, value = call.tensors()
    mask = None
    if call.dense_mask:
        mask = torch.ones(1, 1, call.length, call.length, dtype=torch.bool, device=call.device)
    try:
        choice = torch._fused_sdp_choice(  # noqa: SLF001 - needs no profile
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=call.grouped
        )
    except RuntimeError as error:  # "No available kernel": the selected one refuses.
        kind = str(call.dtype).removeprefix("torch.")
        raise BadConfig(
            f"attention.backend: {_switched_to} cannot compute attention in {kind} with a head "
            f"size of {call.head_size} and {call.heads} heads; use auto ({error})"
        ) from error
    return next((name for name, kernel in _KERNELS.items() if kernel.value == choice), "none")


def math_fallback(call: AttentionCall) -> str | None:
    """Return a warning with its remedy if a CUDA call would fall back to the math kernel."""
    if call.device.type != "cuda":
        return None
    call = as_attended(call)
    if chosen_kernel(call) != "math":
        return None
    return fallback_message(call, _refusals(call))


def as_attended(call: AttentionCall) -> AttentionCall:
    """Return the call as ``attend`` makes it: with repeated heads where the kernel needs them."""
    if not call.grouped or _kernel_shares_heads(
        call.device, call.dtype, dense_mask=call.dense_mask
    ):
        return call
    return replace(call, kv_heads=call.heads)


def fallback_message(call: AttentionCall, refusals: list[str]) -> str:
    """Describe which call falls back, what it costs, why, and what to change."""
    if call.dtype == torch.float32:
        remedy = "set precision.compute: bf16 (flash takes bf16 and fp16 only)"
    elif call.dense_mask:
        remedy = "use attention.backend: auto, which masks documents by FlexAttention"
    elif call.head_size > 256 or call.head_size % 8:
        remedy = (
            f"choose hidden_size and num_attention_heads for a head size that is a multiple of 8 "
            f"and at most 256 (it is {call.head_size})"
        )
    else:
        remedy = "set attention.backend: auto"
    why = f" PyTorch reports: {'; '.join(refusals)}." if refusals else ""
    gib = call.score_bytes / 2**30
    return (
        f"attention runs on the math kernel, which holds {gib:.1f} GiB of scores in each layer "
        f"instead of none.{why} Remedy: {remedy}"
    )


def _refusals(call: AttentionCall) -> list[str]:
    """Return why each fused kernel refuses the call, in PyTorch's words."""
    query, key, value = call.tensors()
    params = torch.backends.cuda.SDPAParams(query, key, value, None, 0.0, True, call.grouped)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.backends.cuda.can_use_flash_attention(params, debug=True)
        torch.backends.cuda.can_use_efficient_attention(params, debug=True)
    return [str(w.message).split(" (Triggered")[0] for w in caught]
