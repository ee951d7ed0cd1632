"""The chunked cross entropy beyond its value: chunks, incoming gradients, memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lehr_trainer.losses.chunked import cross_entropy

ROWS, WIDTH, VOCABULARY = 96, 37, 700
"""A width that is not a number of rows of a chunk."""


def operands() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, WIDTH, generator=generator).requires_grad_()
    weight = (torch.randn(VOCABULARY, WIDTH, generator=generator) * 0.5).requires_grad_()
    targets = torch.randint(0, VOCABULARY, (ROWS,), generator=generator)
    return hidden, weight, targets


def gap(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


@pytest.mark.parametrize("rows_a_chunk", [1, 7, 32, 95, 96, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_chunking_gives_the_float64_value_and_gradients(
    rows_a_chunk: int, dtype: torch.dtype
) -> None:
    hidden, weight, targets = operands()
    with torch.no_grad():
        hidden.copy_(hidden.to(dtype))
        weight.copy_(weight.to(dtype))
    loss = cross_entropy(
        hidden, weight, targets, operands=dtype, chunk_bytes=rows_a_chunk * VOCABULARY * 4
    )
    exact = [x.detach().double().requires_grad_() for x in (hidden, weight)]
    want = F.cross_entropy(exact[0] @ exact[1].t(), targets)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(want.item(), abs=1e-5)
    ours = torch.autograd.grad(loss, (hidden, weight))
    theirs = torch.autograd.grad(want, exact)
    for got, wanted in zip(ours, theirs, strict=True):
        assert gap(got, wanted) < (1e-5 if dtype == torch.float32 else 4e-3)


@pytest.mark.parametrize("hidden_kind", [torch.float32, torch.float16])
def test_fp16_keeps_gradients_of_rare_words_and_confident_rows(hidden_kind: torch.dtype) -> None:
    """Compare with float64, the loss scaled as in fp16 training; most of 4,096 words are
    improbable."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(24, 64, generator=generator).half()
    weight = (torch.randn(4096, 64, generator=generator) * 0.5).half().float().requires_grad_()
    # Half of the rows predict their token with confidence, so that their gradients are small.
    targets = torch.randint(0, 4096, (24,), generator=generator)
    targets[:12] = (hidden.float() @ weight.t()).argmax(-1)[:12]
    hidden = (hidden * torch.where(torch.arange(24) < 12, 1.5, 1.0)[:, None]).half()
    hidden = hidden.to(hidden_kind).requires_grad_()
    scale = 2.0**14
    loss = cross_entropy(hidden, weight, targets, operands=torch.float16)
    ours = torch.autograd.grad(loss * scale, (hidden, weight))
    exact = [one.detach().double().requires_grad_() for one in (hidden, weight)]
    want = F.cross_entropy(exact[0] @ exact[1].t(), targets)
    theirs = torch.autograd.grad(want * scale, exact)
    assert (exact[0] @ exact[1].t()).softmax(-1).median() < 6e-8
    rare = torch.ones(4096, dtype=torch.bool)
    rare[targets] = False
    for got, wanted in ((ours[0], theirs[0]), (ours[1][rare], theirs[1][rare])):
        off = (got.double() - wanted).norm(dim=1) / wanted.norm(dim=1)
        assert off.max() < 5e-3


@pytest.mark.parametrize("scale", [1.0, 0.25, -3.0, 0.0])
def test_gradients_scale_with_the_incoming_gradient(scale: float) -> None:
    hidden, weight, targets = operands()
    ours = torch.autograd.grad(
        cross_entropy(hidden, weight, targets) * scale + 1.0, (hidden, weight)
    )
    theirs = torch.autograd.grad(
        F.cross_entropy(hidden @ weight.t(), targets) * scale, (hidden, weight)
    )
    for got, want in zip(ours, theirs, strict=True):
        assert torch.allclose(got, want, atol=1e-7)


@pytest.mark.parametrize("wanted", ["hidden", "weight", "neither"])
def test_only_requested_gradients_are_computed(wanted: str) -> None:
    hidden, weight, targets = operands()
    hidden.requires_grad_(wanted == "hidden")
    weight.requires_grad_(wanted == "weight")
    loss = cross_entropy(hidden, weight, targets)
    full = F.cross_entropy(hidden @ weight.t(), targets)
    assert loss.item() == pytest.approx(full.item(), rel=1e-6)
    if wanted == "neither":
        assert not loss.requires_grad
        return
    leaf = hidden if wanted == "hidden" else weight
    assert gap(torch.autograd.grad(loss, leaf)[0], torch.autograd.grad(full, leaf)[0]) < 1e-5


def test_inside_autocast_the_loss_is_still_fp32() -> None:
    hidden, weight, targets = operands()
    outside = cross_entropy(hidden, weight, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = cross_entropy(hidden, weight, targets)
    assert inside.dtype == torch.float32
    assert inside.item() == outside.item()


def test_second_backward_is_rejected() -> None:
    hidden, weight, targets = operands()
    loss = cross_entropy(hidden, weight, targets)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated twice"):
        loss.backward()


class MostRows(TorchDispatchMode):
    """Watch every operation, and record the most rows of logits in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            # The head's weight and its gradient have a column per token, too.
            if (
                isinstance(leaf, torch.Tensor)
                and VOCABULARY in leaf.shape
                and WIDTH not in leaf.shape
            ):
                self.rows = max(self.rows, leaf.numel() // VOCABULARY)
        return out


@pytest.mark.parametrize("operands_kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 8, 48])
def test_no_tensor_ever_holds_more_logits_than_a_chunk(
    rows: int, operands_kind: torch.dtype
) -> None:
    hidden, weight, targets = operands()
    with MostRows() as watch:
        loss = cross_entropy(
            hidden, weight, targets, operands=operands_kind, chunk_bytes=rows * VOCABULARY * 4
        )
        loss.backward()
    assert watch.rows == rows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_evaluation_makes_one_product_a_chunk(dtype: torch.dtype) -> None:
    """With gradients there are three: logits, and the gradients of both operands."""

    class Products(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            self.count += func.overloadpacket in {torch.ops.aten.mm, torch.ops.aten.addmm_}
            return func(*args, **(kwargs or {}))

    def products(*, gradients: bool) -> int:
        with torch.set_grad_enabled(gradients), Products() as counted:
            cross_entropy(*operands(), operands=dtype, chunk_bytes=24 * VOCABULARY * 4)
        return counted.count

    assert products(gradients=True) == 3 * 4
    assert products(gradients=False) == 4
