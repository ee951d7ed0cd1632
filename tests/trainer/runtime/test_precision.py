"""Which arithmetic a run computes in: autocast, and TF32 for products of fp32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lehr_trainer.configs.train import PrecisionConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.runtime.precision import Precision

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def switch_kept() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("tf32", "products"), [(True, "high"), (False, "highest")])
def test_tf32_sets_the_precision_of_fp32_products(tf32: bool, products: str) -> None:
    torch.set_float32_matmul_precision("medium")
    Precision.choose(PrecisionConfig(compute="fp32", tf32=tf32), CPU)
    assert torch.get_float32_matmul_precision() == products
    assert torch.backends.cuda.matmul.allow_tf32 is tf32


@pytest.mark.parametrize(
    ("compute", "product", "scales"),
    [
        ("fp32", torch.float32, False),
        ("bf16", torch.bfloat16, False),
        ("fp16", torch.float16, True),
    ],
)
def test_products_in_autocast_have_the_configured_type(compute, product, scales) -> None:
    precision = Precision.choose(PrecisionConfig(compute=compute), CPU)
    with precision.autocast():
        assert (torch.randn(4, 4) @ torch.randn(4, 4)).dtype == product
    assert precision.scales_loss is scales
    assert precision.operands == product


@pytest.mark.parametrize(
    ("compute", "tf32", "device", "arithmetic"),
    [
        ("auto", True, CPU, "fp32"),
        ("auto", True, CUDA, "bf16"),
        ("fp32", True, CUDA, "tf32"),
        ("fp32", False, CUDA, "fp32"),
        ("fp16", True, CUDA, "fp16"),
    ],
)
def test_mfu_is_measured_against_the_arithmetic_of_the_run(
    compute, tf32, device, arithmetic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    precision = Precision.choose(PrecisionConfig(compute=compute, tf32=tf32), device)
    assert precision.arithmetic == arithmetic


def test_bf16_on_a_gpu_without_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "Tesla V100")
    with pytest.raises(BadConfig, match="Tesla V100 has no bf16 arithmetic"):
        Precision.choose(PrecisionConfig(compute="bf16"), CUDA)
