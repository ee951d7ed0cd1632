"""The part of the chunked loss between its products: eager and compiled forms, padded words."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lehr_testing.specs import train as train_values
from lehr_trainer.configs.loss import LossConfig
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.evaluate import held_out_loss
from lehr_trainer.losses import chunked, variants
from lehr_trainer.losses.chunked import (
    Pointwise,
    cross_entropy,
    pointwise_compiled,
    pointwise_eager,
    pointwise_fusible,
)
from lehr_trainer.losses.variants import build_loss

ROWS, WIDTH = 64, 32
KINDS = {torch.float32: 1e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}
"""Dtype of the gradient -> relative error that its rounding allows."""


def logits_and_targets(vocabulary: int = 777) -> tuple[Tensor, Tensor]:
    """Draw logits, every second row sure of its target: 1 - p is about 1e-3 there."""
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(ROWS, vocabulary, generator=generator) + 30.0
    targets = torch.randint(0, vocabulary, (ROWS, 1), generator=generator)
    logits[::2].scatter_(1, targets[::2], logits[::2].logsumexp(1, keepdim=True) + 7)
    return logits, targets


def exact(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    wide = logits.double().requires_grad_()
    loss = F.cross_entropy(wide, targets[:, 0], reduction="sum")
    return loss.detach(), torch.autograd.grad(loss, wide)[0]


@pytest.mark.parametrize("form", ["eager", "fusible"])
@pytest.mark.parametrize("dtype", KINDS)
def test_both_forms_give_the_float64_loss_and_gradient(form: str, dtype: torch.dtype) -> None:
    logits, targets = logits_and_targets()
    loss, gradient = exact(logits, targets)
    lift = 2.0**15 if dtype == torch.float16 else 1.0
    ours, slope, _ = getattr(chunked, f"pointwise_{form}")(logits, targets, lift, dtype, None, 0.0)
    assert ours.item() == pytest.approx(loss.item(), rel=1e-6)
    assert slope.dtype == dtype
    off = (slope.double() / lift - gradient).norm(dim=1) / gradient.norm(dim=1)
    # A sure row's gradient is a difference of numbers near 1, of which fp32 has 7 digits.
    assert off[1::2].max() < KINDS[dtype]
    assert off[::2].max() < KINDS[dtype] + 2e-3


@pytest.mark.nightly  # Its C++ takes 10 s to compile.
def test_compiled_form_is_exact_and_reads_the_logits_three_times_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU the first two passes are one (online softmax, arXiv:1805.02867)."""
    from torch._functorch import config as functorch
    from torch._inductor import compile_fx, config, metrics

    monkeypatch.setattr(compile_fx.inductor_metrics_log, "level", logging.INFO)
    compile_fx.inductor_metrics_log.manager._clear_cache()  # type: ignore[attr-defined]
    logits, targets = logits_and_targets(4096)
    loss, gradient = exact(logits, targets)
    metrics.reset()
    with config.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
        ours, slope, _ = pointwise_compiled()(logits, targets, 1.0, torch.bfloat16, None, 0.0)
    assert ours.item() == pytest.approx(loss.item(), rel=1e-6)
    assert float((slope.double() - gradient).norm() / gradient.norm()) < 4e-3
    assert 0 < metrics.num_bytes_accessed < 3 * logits.nbytes + slope.nbytes + logits.nbytes / 10


# ------------------------------------------------------------------------------ which form runs


@pytest.mark.parametrize(
    ("device", "compiles", "asked", "form"),
    [
        ("cuda", True, "auto", "compiled"),
        ("cuda", False, "auto", "eager"),
        ("cpu", True, "auto", "eager"),
        ("cpu", False, "compiled", "compiled"),
        ("cuda", True, "eager", "eager"),
    ],
)
def test_by_default_it_is_compiled_where_the_run_compiles_on_cuda(
    device: str, compiles: bool, asked: str, form: str
) -> None:
    assert LossConfig(pointwise=asked).on(device, compiles=compiles).pointwise == form


def test_a_run_on_cuda_compiles_it_unless_compile_is_off() -> None:
    def form(**settings: str) -> str:
        given = train_values(Path("corpus")) | {"compile": settings}
        return TrainConfig.model_validate(given).on("cuda").loss.pointwise

    assert form() == "compiled"
    assert form(scope="none") == "eager"


def test_the_loss_that_is_built_uses_the_form_of_its_config(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = []

    def spy(*given: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        used.append("compiled")
        return pointwise_fusible(*given)

    monkeypatch.setattr(variants, "pointwise_compiled", lambda: spy)
    hidden, weight = torch.randn(4, 8, requires_grad=True), torch.randn(16, 8)
    cpu = torch.device("cpu")
    build_loss(LossConfig(pointwise="eager"), torch.float32, cpu)(hidden, weight, torch.arange(4))
    assert used == []
    build_loss(LossConfig(pointwise="compiled"), torch.float32, cpu)(
        hidden, weight, torch.arange(4)
    )
    assert used == ["compiled"]


# --------------------------------------------------------------------------------- padded words


class Columns(TorchDispatchMode):
    """Record the words of each matrix product."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.words = width, set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in {torch.ops.aten.mm, torch.ops.aten.addmm_}:
            for leaf in args:
                if isinstance(leaf, Tensor) and leaf.ndim == 2 and self.width in leaf.shape:
                    self.words |= set(leaf.shape) - {self.width, ROWS}
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("form", [pointwise_eager, pointwise_fusible])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_padded_products_give_the_float64_value_and_gradients(
    form: Pointwise, kind: torch.dtype
) -> None:
    vocabulary = 257
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, WIDTH, generator=generator).to(kind).float().requires_grad_()
    # Small logits: padded words that were not excluded would weigh as much as others.
    weight = 0.1 * torch.randn(vocabulary, WIDTH, generator=generator)
    weight = weight.to(kind).float().requires_grad_()
    targets = torch.randint(0, vocabulary, (ROWS,), generator=generator)
    with Columns(WIDTH) as seen:
        loss = cross_entropy(hidden, weight, targets, operands=kind, between=form, pad_to=64)
        ours = torch.autograd.grad(loss, (hidden, weight))
    assert seen.words == {320}
    wide = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    want = F.cross_entropy(wide[0] @ wide[1].t(), targets)
    assert math.isclose(loss.item(), want.item(), rel_tol=1e-5)
    for got, wanted in zip(ours, torch.autograd.grad(want, wide), strict=True):
        assert got.shape == wanted.shape
        assert float((got.double() - wanted).norm() / wanted.norm()) < 4e-3
    with torch.no_grad():
        evaluated = cross_entropy(hidden, weight, targets, operands=kind, pad_to=64)
    assert math.isclose(evaluated.item(), want.item(), rel_tol=1e-5)


@pytest.mark.parametrize(("device", "words"), [("cuda", 320), ("cpu", 257)])
@pytest.mark.parametrize("evaluates", [False, True])
def test_products_on_a_gpu_have_a_multiple_of_64_words(
    device: str, words: int, evaluates: bool
) -> None:
    place = torch.device(device)
    if evaluates:
        loss = held_out_loss(torch.bfloat16, place)
    else:
        loss = build_loss(LossConfig(), torch.bfloat16, place)
    hidden, weight = torch.randn(ROWS, WIDTH), torch.randn(257, WIDTH)
    with Columns(WIDTH) as seen, torch.no_grad():
        loss(hidden, weight, torch.zeros(ROWS, dtype=torch.long))
    assert seen.words == {words}


def test_fp32_operands_and_round_vocabularies_are_not_padded() -> None:
    for vocabulary, kind in ((257, torch.float32), (256, torch.bfloat16)):
        hidden, weight = torch.randn(ROWS, WIDTH), torch.randn(vocabulary, WIDTH)
        with Columns(WIDTH) as seen:
            cross_entropy(
                hidden, weight, torch.zeros(ROWS, dtype=torch.long), operands=kind, pad_to=64
            )
        assert seen.words == {vocabulary}
