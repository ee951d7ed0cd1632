"""Attention kernels agree, documents are masked, and missing hardware is an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from pydantic import ValidationError
from torch.nn.attention import SDPBackend

from lehr_trainer.configs.execution import BACKENDS, AttentionConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.models import attention, documents
from lehr_trainer.models.attention import AttentionCall, attend, attention_backend, chosen_kernel
from lehr_trainer.models.documents import block_mask, dense_mask, document_ids, document_positions

CPU = torch.device("cpu")
CUDA = torch.device("cuda")


def operands(kv_heads: int = 2, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, 64, 16), (2, kv_heads, 64, 16), (2, kv_heads, 64, 16)]
    return [torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes]


def reference(query, key, value, mask=None):
    """Compute attention by its formula, in float64."""
    query, key, value = (t.double() for t in (query, key, value))
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    if mask is None:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    return scores.masked_fill(~mask, float("-inf")).softmax(-1) @ value


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("backend", ["auto", "flash", "math"])
def test_each_kernel_gives_the_formula_and_its_gradients(backend: str, kv_heads: int) -> None:
    inputs = operands(kv_heads)
    weight = torch.randn(2, 4, 64, 16, generator=torch.Generator().manual_seed(1))
    with attention_backend(AttentionConfig(backend=backend), CPU):
        out = attend(*inputs)
    want = reference(*inputs)
    assert (out - want).norm() / want.norm() < 1e-6
    got = torch.autograd.grad((out * weight).sum(), inputs)
    wanted = torch.autograd.grad((want * weight).sum(), inputs)
    for a, b in zip(got, wanted, strict=True):
        assert (a - b).norm() / b.norm() < 1e-5


@pytest.mark.parametrize(
    ("backend", "kernel"), [("auto", "flash"), ("flash", "flash"), ("math", "math")]
)
def test_the_chosen_kernel_is_the_one_that_runs(backend: str, kernel: str) -> None:
    call = AttentionCall(CPU, torch.float32, 2, 4, 2, 64, 16)
    with attention_backend(AttentionConfig(backend=backend), CPU):
        assert chosen_kernel(call) == kernel
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            attend(*operands())
    names = {event.key for event in profile.key_averages()}
    flash = "aten::_scaled_dot_product_flash_attention_for_cpu"
    assert (flash in names) is (kernel == "flash")


@pytest.mark.parametrize("backend", ["efficient", "cudnn", "fa3", "fa4"])
def test_kernel_that_needs_a_gpu_is_refused_on_cpu(backend: str) -> None:
    with (
        pytest.raises(BadConfig, match=f"attention.backend: {backend} needs a CUDA GPU; on cpu"),
        attention_backend(AttentionConfig(backend=backend), CPU),
    ):
        pass


def test_each_backend_has_a_row() -> None:
    names = get_args(AttentionConfig.model_fields["backend"].annotation)
    assert list(BACKENDS) == list(names)
    kernels = {backend.kernel for backend in BACKENDS.values()} - {""}
    assert all(hasattr(SDPBackend, kernel) for kernel in kernels)


def test_fp8_attention_is_refused_since_it_has_no_backward() -> None:
    with pytest.raises(ValidationError, match="FP8 attention has no backward pass"):
        AttentionConfig(backend="fa3-fp8")


def test_document_ids_and_positions_follow_the_end_of_sequence_token() -> None:
    tokens = torch.tensor([[5, 6, 0, 7, 0, 8, 9], [0, 0, 1, 2, 3, 4, 0]])
    ids = document_ids(tokens, eos_id=0)
    assert ids.tolist() == [[0, 0, 0, 1, 1, 2, 2], [0, 1, 2, 2, 2, 2, 2]]
    assert document_positions(ids).tolist() == [[0, 1, 2, 0, 1, 0, 1], [0, 0, 0, 1, 2, 3, 4]]


def some_ids() -> torch.Tensor:
    tokens = torch.randint(1, 9, (2, 64), generator=torch.Generator().manual_seed(3))
    tokens[0, [10, 30]] = 0
    tokens[1, [0, 50, 63]] = 0
    return document_ids(tokens, eos_id=0)


@pytest.mark.parametrize("backend", ["auto", "flash", "math"])
def test_masked_attention_matches_each_document_alone(backend: str) -> None:
    ids = some_ids()
    inputs = operands()
    with attention_backend(AttentionConfig(backend=backend, document_masking=True), CPU):
        out = attend(*inputs, dense_mask(ids))
        for row in range(2):
            for document in ids[row].unique():
                own = ids[row] == document
                alone = attend(*(t[row : row + 1, :, own] for t in inputs))
                assert torch.allclose(out[row : row + 1, :, own], alone, atol=1e-6)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_sees_the_same_mask() -> None:
    ids = some_ids()
    with torch.no_grad():
        inputs = [t.detach() for t in operands()]
        flex = attend(*inputs, block_mask(ids))
        dense = attend(*inputs, dense_mask(ids))
    assert torch.allclose(flex, dense, atol=1e-6)


@pytest.mark.parametrize(
    ("device", "backend", "form"),
    [
        ("cuda", "auto", "blocks"),
        ("cuda", "math", "dense"),
        ("cuda", "efficient", "dense"),
        ("cpu", "auto", "dense"),
        ("cpu", "flash", "dense"),
        ("cpu", "math", "dense"),
    ],
)
def test_documents_are_masked_in_the_form_that_the_asked_kernel_takes(
    monkeypatch, device: str, backend: str, form: str
) -> None:
    """A block mask is FlexAttention's; with it the kernel that was asked for would not run."""

    where = torch.device(device)
    ids: Any = SimpleNamespace(device=where, is_cuda=device == "cuda", shape=(1, 8))
    monkeypatch.setattr(documents, "block_mask", lambda *_: "blocks")
    monkeypatch.setattr(documents, "dense_mask", lambda *_: "dense")
    with attention_backend(
        AttentionConfig(backend=backend, document_masking=True), torch.device(device)
    ):
        assert documents.attention_mask(ids, ids) == form


@pytest.mark.parametrize("backend", ["flash", "cudnn", "fa3", "fa4"])
def test_gpu_kernel_without_masks_is_refused_with_the_kernels_that_have_them(backend: str) -> None:
    config = AttentionConfig(backend=backend, document_masking=True)
    with pytest.raises(BadConfig) as refusal:
        attention.require_backend(config, CUDA)
    assert str(refusal.value) == (
        f"attention.backend: {backend} takes no mask on a CUDA GPU; with "
        "attention.document_masking: true use auto (FlexAttention), efficient or math"
    )


@pytest.mark.parametrize(
    ("dtype", "head_size", "dense", "cure"),
    [
        (torch.float32, 64, False, "precision.compute: bf16"),
        (torch.bfloat16, 320, False, "at most 256"),
        (torch.bfloat16, 64, True, "FlexAttention"),
        (torch.bfloat16, 64, False, "attention.backend: auto"),
    ],
)
def test_math_fallback_names_its_cost_and_the_remedy(dtype, head_size, dense, cure) -> None:
    call = AttentionCall(torch.device("cuda"), dtype, 64, 32, 8, 2048, head_size, dense_mask=dense)
    message = attention.fallback_message(call, ["Expected bf16"])
    assert cure in message
    assert f"{64 * 32 * 2048**2 * dtype.itemsize / 2**30:.1f} GiB" in message
    assert "Expected bf16" in message


@pytest.mark.parametrize(
    ("backend", "dtype", "kv_heads"),
    [
        ("auto", torch.bfloat16, 2),
        ("auto", torch.float32, 8),
        ("efficient", torch.bfloat16, 8),
        ("efficient", torch.float32, 8),
    ],
)
def test_the_kernel_is_chosen_for_the_heads_that_attend_passes(
    monkeypatch, backend: str, dtype: torch.dtype, kv_heads: int
) -> None:
    """CUDA's efficient kernel takes no shared heads, so ``attend`` repeats them."""
    asked = []
    monkeypatch.setattr(attention, "chosen_kernel", lambda call: asked.append(call) or "efficient")
    monkeypatch.setattr(attention, "_switched_to", backend)
    call = AttentionCall(CUDA, dtype, 2, 8, 2, 256, 64)
    assert attention.math_fallback(call) is None
    assert [one.kv_heads for one in asked] == [kv_heads]


@pytest.mark.parametrize("backend", ["flash", "cudnn", "fa3", "fa4"])
def test_fp32_is_refused_where_a_gpu_runs_a_16_bit_kernel(backend: str) -> None:
    config = AttentionConfig(backend=backend)
    with pytest.raises(BadConfig, match=f"attention.backend: {backend} takes bf16 and fp16"):
        attention.require_operands(config, torch.float32, CUDA)
    attention.require_operands(config, torch.bfloat16, CUDA)
    attention.require_operands(config, torch.float32, CPU)


@pytest.mark.parametrize("impl", ["fa3", "fa4"])
def test_a_flash_package_that_is_missing_is_named(impl: str) -> None:
    package = BACKENDS[impl].package
    assert package is not None
    with pytest.raises(BadConfig, match=rf"the module {package.module} is not installed"):
        attention._activate(impl, package)


def test_refusal_of_the_only_kernel_is_a_bad_config(monkeypatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise RuntimeError("No available kernel. Aborting execution.")

    monkeypatch.setattr(torch, "_fused_sdp_choice", refuse)
    monkeypatch.setattr(attention, "_switched_to", "flash")
    call = AttentionCall(CPU, torch.float32, 2, 4, 2, 64, 16)
    with pytest.raises(BadConfig, match=r"attention.backend: flash cannot .* float32 .* 4 heads"):
        chosen_kernel(call)


@pytest.mark.parametrize(("impl", "major"), [("fa3", 10), ("fa3", 8), ("fa4", 8), ("fa4", 12)])
def test_flash_package_for_another_gpu_is_refused(monkeypatch, impl: str, major: int) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (major, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA B200")
    with pytest.raises(BadConfig, match=rf"needs compute capability 9.x .*B200 has {major}.0"):
        attention.require_backend(AttentionConfig(backend=impl), CUDA)
