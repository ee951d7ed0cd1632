"""Every cross entropy against float64: its value and both gradients."""

from __future__ import annotations

import re
import sys

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from lehr_trainer import extras
from lehr_trainer.configs.loss import LossConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.losses import variants
from lehr_trainer.losses.chunked import IGNORED, pointwise_fusible
from lehr_trainer.losses.variants import build_loss, of_mean, of_targets, torch_chunked

CPU = torch.device("cpu")
ROWS, WIDTH, WORDS = 96, 64, 1500
newer_torch = pytest.mark.skipif(
    not hasattr(torch.nn, "LinearCrossEntropyOptions"), reason="torch 2.13's own chunked loss"
)
EXACT = ["chunked", "standard", pytest.param("torch_chunked", marks=newer_torch)]


def operands(dtype: torch.dtype = torch.float32):
    """Make states and a head of an initialised model's size, representable in ``dtype``."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(4, ROWS // 4, WIDTH, generator=generator).to(dtype).float()
    weight = (torch.randn(WORDS, WIDTH, generator=generator) * 0.4).to(dtype).float()
    targets = torch.randint(0, WORDS, (4, ROWS // 4), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def in_float64(hidden, weight, targets, weights=None, z=0.0):
    """Return the mean loss, or with weights the sum, its part of z-loss, and the gradients."""
    wide = hidden.detach().double().requires_grad_(), weight.detach().double().requires_grad_()
    logits = (wide[0] @ wide[1].T).flatten(0, 1)
    each = F.cross_entropy(logits, targets.flatten(), reduction="none")
    shares = torch.tensor(1.0 / len(each)) if weights is None else weights.double().flatten()
    of_z = (z * logits.logsumexp(-1).square() * shares).sum()
    total = (each * shares).sum() + of_z
    return total.detach(), of_z.detach(), torch.autograd.grad(total, wide)


def require_close(loss: torch.Tensor, of, gradients, most: float) -> None:
    """Compare the gradients of a loss with exact ones."""
    for got, want in zip(torch.autograd.grad(loss, of), gradients, strict=True):
        assert got.dtype == torch.float32
        assert float((got.double() - want).norm() / want.norm()) < most


@pytest.mark.parametrize("name", EXACT)
def test_in_fp32_value_and_gradients_equal_float64(name: str) -> None:
    hidden, weight, targets = operands()
    want, _, gradients = in_float64(hidden, weight, targets)
    loss = build_loss(LossConfig(name=name), torch.float32, CPU)(hidden, weight, targets).mean
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(want.item(), rel=1e-6)
    require_close(loss, (hidden, weight), gradients, 1e-6)


@pytest.mark.parametrize("name", EXACT)
def test_on_bf16_operands_the_scalar_is_fp32_and_within_1e3_of_float64(name: str) -> None:
    hidden, weight, targets = operands(torch.bfloat16)
    want, _, gradients = in_float64(hidden, weight, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = build_loss(LossConfig(name=name), torch.bfloat16, CPU)(hidden, weight, targets).mean
    assert loss.dtype == torch.float32
    assert abs(loss.item() - want.item()) < 1e-5
    require_close(loss, (hidden, weight), gradients, 3e-3)  # The slope's own rounding to bf16.


@pytest.mark.parametrize("name", EXACT)
def test_a_scaled_loss_scales_its_gradients(name: str) -> None:
    hidden, weight, targets = operands()
    loss = build_loss(LossConfig(name=name), torch.float32, CPU)
    once = torch.autograd.grad(loss(hidden, weight, targets).mean, (hidden, weight))
    part = torch.autograd.grad(loss(hidden, weight, targets).mean * 0.25, (hidden, weight))
    for whole, quarter in zip(once, part, strict=True):
        assert torch.allclose(whole * 0.25, quarter, rtol=1e-5, atol=1e-9)


# --- weights and z-loss ----------------------------------------------------------------------

Z = 1e-3
WEIGHING = {
    "chunked": LossConfig(),
    "chunked, small chunks": LossConfig(chunk_mb=1),
    "chunked, fusible": LossConfig(pointwise="compiled"),
    "standard": LossConfig(name="standard"),
    "in_autocast": LossConfig(name="in_autocast"),
}


def built(name: str, monkeypatch, operand=torch.float32, **changes):
    """Build a loss, its fused part not compiled."""
    monkeypatch.setattr(variants, "pointwise_compiled", lambda: pointwise_fusible)
    return build_loss(WEIGHING[name].model_copy(update=changes), operand, CPU)


def weights_of(targets: torch.Tensor) -> torch.Tensor:
    """Weigh a part of the targets 0, others between 0.25 and 2."""
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(targets.shape, generator=generator) * 1.75 + 0.25
    return torch.where(torch.rand(targets.shape, generator=generator) < 0.4, 0.0, weights)


WEIGHED = [
    (name, dtype, z)
    for name in WEIGHING
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
    for z in (0.0, Z)
    # It has no z-loss, and rounds its logits.
    if name != "in_autocast" or (dtype, z) == (torch.float32, 0.0)
]


@pytest.mark.parametrize(("name", "dtype", "z"), WEIGHED)
def test_weighed_sum_z_loss_and_gradients_equal_float64(
    name: str, dtype: torch.dtype, z: float, monkeypatch
) -> None:
    hidden, weight, targets = operands(dtype)
    weights = weights_of(targets)
    want, want_z, gradients = in_float64(hidden, weight, targets, weights, z)
    loss = built(name, monkeypatch, dtype, z_loss=z)(
        hidden, weight, targets.masked_fill(weights == 0, IGNORED), weights
    )
    assert loss.total.dtype == torch.float32
    assert loss.total.item() == pytest.approx(want.item(), rel=2e-6)
    assert float(loss.count) == pytest.approx(float(weights.sum()))
    if z:
        assert loss.z_loss.item() == pytest.approx(want_z.item(), rel=2e-6)
        assert loss.mean.item() == pytest.approx((want - want_z).item() / float(weights.sum()))
    close = {torch.float32: 2e-6, torch.bfloat16: 4e-3, torch.float16: 5e-4}[dtype]
    require_close(loss.total, (hidden, weight), gradients, close)
    # A row of weight 0 has no gradient at all.
    assert not torch.autograd.grad(
        of_targets(built(name, monkeypatch))(
            hidden, weight, torch.full_like(targets, IGNORED)
        ).total,
        hidden,
    )[0].any()


@pytest.mark.parametrize("name", WEIGHING)
def test_weights_of_one_change_nothing(name: str, monkeypatch) -> None:
    hidden, weight, targets = operands()
    loss = built(name, monkeypatch)
    plain, ones = loss(hidden, weight, targets), of_targets(loss)(hidden, weight, targets)
    assert plain.count == ones.count == targets.numel()
    assert ones.total.item() == pytest.approx(plain.total.item(), rel=1e-6)
    with torch.no_grad():
        mean = loss(hidden, weight, targets).mean
    assert mean.item() == pytest.approx(plain.mean.item(), rel=1e-6)


@pytest.mark.nightly  # Its C++ takes 10 s to compile.
def test_compiled_loss_weighs_and_adds_the_z_loss() -> None:
    hidden, weight, targets = operands()
    weights = weights_of(targets)
    want, want_z, gradients = in_float64(hidden, weight, targets, weights, Z)
    config = LossConfig(pointwise="compiled", z_loss=Z)
    loss = build_loss(config, torch.float32, CPU)(hidden, weight, targets, weights)
    assert loss.total.item() == pytest.approx(want.item(), rel=2e-6)
    assert loss.z_loss.item() == pytest.approx(want_z.item(), rel=2e-6)
    require_close(loss.total, (hidden, weight), gradients, 2e-6)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"z_loss": -1e-4}, "greater than or equal to 0"),
        ({"z_loss": float("nan")}, "finite number"),
        ({"z_loss": 1.0}, "less than or equal to 0.01"),
        ({"z_loss": 1e-4, "name": "cce"}, "not offered by cce; use chunked or standard"),
    ],
)
def test_wrong_z_loss_is_one_clear_error(given, words) -> None:
    with pytest.raises(ValidationError, match=words):
        LossConfig(**given)


# --- numerics of the others ------------------------------------------------------------------


def test_known_bad_variants_show_their_rounding() -> None:
    """Autocast rounds only the logits; a bf16 softmax rounds the value itself."""
    hidden, weight, targets = operands(torch.bfloat16)
    want, *_ = in_float64(hidden, weight, targets)
    printed = build_loss(LossConfig(name="in_autocast"), torch.bfloat16, CPU)
    feared = build_loss(LossConfig(name="bf16_softmax"), torch.bfloat16, CPU)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [loss(hidden, weight, targets).mean for loss in (printed, feared)]
    as_printed, as_feared = losses
    assert as_printed.dtype == torch.float32
    assert as_feared.dtype == torch.bfloat16
    assert 0 < abs(as_printed.item() - want.item()) < 1e-2
    assert abs(as_feared.item() - want.item()) > abs(as_printed.item() - want.item())


@newer_torch
def test_torch_chunked_never_sees_bf16_and_never_falls_back() -> None:
    hidden, weight, targets = operands()
    loss = torch_chunked(hidden.bfloat16(), weight.bfloat16(), targets)
    assert loss.dtype == torch.float32
    with pytest.raises(UserWarning, match=r"options.* ignored"):
        torch_chunked(hidden, weight, targets.int())


@newer_torch
def test_torch_chunked_holds_less_than_all_logits() -> None:
    hidden, weight, targets = operands()

    def largest(loss) -> int:
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            loss(hidden, weight, targets).mean.backward()
        sizes = [e.cpu_memory_usage for e in profile.events() if e.name == "aten::empty_strided"]
        sizes += [e.cpu_memory_usage for e in profile.events() if e.name == "[memory]"]
        sizes += [e.cpu_memory_usage for e in profile.events() if e.name == "aten::mm"]
        return max(sizes)

    all_logits = ROWS * WORDS * 4
    assert largest(build_loss(LossConfig(name="standard"), torch.float32, CPU)) >= all_logits
    assert largest(of_mean(torch_chunked)) < all_logits


@pytest.mark.parametrize("name", ["liger", "cce", "cce_fp32", "cce_kahan"])
def test_kernels_of_other_packages_are_refused_without_a_gpu(name: str) -> None:
    with pytest.raises(BadConfig, match=f"loss.name: {name} needs a CUDA GPU"):
        build_loss(LossConfig(name=name), torch.bfloat16, CPU)


@pytest.mark.parametrize("name", ["liger", "cce"])
def test_missing_package_is_named_with_the_remedy(name: str, monkeypatch) -> None:
    for module in ("liger_kernel", "cut_cross_entropy"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BadConfig, match=re.escape(extras.install("lehr[gpu]"))):
        build_loss(LossConfig(name=name), torch.bfloat16, torch.device("cuda"))


def test_cut_cross_entropy_refuses_fp32_which_it_cannot_differentiate() -> None:
    with pytest.raises(BadConfig, match=r"precision\.compute to bf16"):
        build_loss(LossConfig(name="cce_kahan"), torch.float32, torch.device("cuda"))


def test_unknown_loss_is_refused() -> None:
    with pytest.raises(ValidationError, match="chunked"):
        LossConfig(name="fused")


def test_loss_that_needs_a_newer_torch_names_the_version(monkeypatch) -> None:
    """torch 2.11 and 2.12 have no ``LinearCrossEntropyOptions``."""
    monkeypatch.delattr(torch.nn, "LinearCrossEntropyOptions", raising=False)
    with pytest.raises(BadConfig, match=r"torch_chunked needs torch 2\.13") as refused:
        build_loss(LossConfig(name="torch_chunked"), torch.float32, torch.device("cpu"))
    assert "Use chunked" in str(refused.value)
    build_loss(LossConfig(name="chunked"), torch.float32, torch.device("cpu"))
