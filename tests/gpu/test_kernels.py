"""Techniques on a CUDA device: kernels that a CPU lacks, and no hidden waits."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lehr_trainer.configs.execution import (
    AttentionConfig,
    CompileConfig,
    Fp8Config,
    LossScaleConfig,
    SkipStepConfig,
)
from lehr_trainer.configs.loss import LOSSES as LOSS_TRAITS
from lehr_trainer.configs.loss import LossConfig
from lehr_trainer.configs.optimizer import MuonConfig
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.diagnostics.diagnostics_logger import ParameterStats, quality
from lehr_trainer.losses.chunked import IGNORED, cross_entropy
from lehr_trainer.losses.variants import build_loss, of_targets
from lehr_trainer.models.attention import (
    AttentionCall,
    attend,
    attention_backend,
    chosen_kernel,
    math_fallback,
    require_backend,
    without_compiling,
)
from lehr_trainer.models.documents import attention_mask, document_ids, make_input_fn
from lehr_trainer.models.fp8 import convert_to_fp8, fp8_state, require_fp8
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.module_map import initialise
from lehr_trainer.optim.muon import build_muon
from lehr_trainer.runtime.compiling import Accumulation, compile_model
from lehr_trainer.update_step import UpdateStep

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]
CUDA = torch.device("cuda")
LOSSES = ["chunked", "standard", "torch_chunked", "liger", "cce", "cce_fp32", "cce_kahan"]


@pytest.mark.parametrize("weighed", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_on_bf16_operands_is_near_float64(name: str, weighed: bool) -> None:
    if weighed and not LOSS_TRAITS[name].weighs:  # type: ignore[index]
        pytest.skip("it takes no weights")
    loss_of = build_loss(LossConfig(name=name), torch.bfloat16, CUDA)
    generator = torch.Generator("cuda").manual_seed(0)
    hidden = torch.randn(512, 256, generator=generator, device=CUDA).bfloat16().float()
    weight = (torch.randn(8192, 256, generator=generator, device=CUDA) * 0.2).bfloat16().float()
    targets = torch.randint(0, 8192, (512,), generator=generator, device=CUDA)
    wide = [t.double().requires_grad_() for t in (hidden, weight)]
    if weighed:
        targets[::3] = IGNORED
        loss_of = of_targets(loss_of)
    want = F.cross_entropy(wide[0] @ wide[1].T, targets)
    wanted = torch.autograd.grad(want, wide)
    hidden.requires_grad_()
    weight.requires_grad_()
    loss = loss_of(hidden, weight, targets).mean
    assert loss.dtype == torch.float32
    assert abs(loss.item() - want.item()) < 1e-3
    # Cut Cross Entropy as it comes drops small gradients; the others round the slope to bf16.
    bound = 5e-2 if name in {"cce", "cce_fp32"} else 1e-2
    for got, exact in zip(torch.autograd.grad(loss, (hidden, weight)), wanted, strict=True):
        assert (got.double() - exact).norm() < bound * exact.norm()


def attention_operands(dtype=torch.bfloat16, kv_heads: int = 2):
    generator = torch.Generator("cuda").manual_seed(0)

    def operand(heads: int) -> torch.Tensor:
        return torch.randn(2, heads, 256, 64, generator=generator, device=CUDA, dtype=dtype)

    return [operand(heads).requires_grad_() for heads in (8, kv_heads, kv_heads)]


@pytest.mark.parametrize("backend", ["flash", "efficient", "cudnn", "fa3", "fa4"])
def test_each_attention_kernel_matches_the_math_kernel(backend: str) -> None:
    require_backend(AttentionConfig(backend=backend), CUDA)
    inputs = attention_operands()
    with attention_backend(AttentionConfig(backend="math"), CUDA):
        want = attend(*inputs)
        wanted = torch.autograd.grad(want.float().square().sum(), inputs)
    with attention_backend(AttentionConfig(backend=backend), CUDA):
        out = attend(*inputs)
        got = torch.autograd.grad(out.float().square().sum(), inputs)
    assert (out - want).float().norm() < 1e-2 * want.float().norm()
    for a, b in zip(got, wanted, strict=True):
        assert (a - b).float().norm() < 2e-2 * b.float().norm()


@pytest.mark.parametrize("backend", ["auto", "efficient"])
def test_documents_are_kept_apart_as_by_the_math_kernel_in_backward_too(backend: str) -> None:
    tokens = torch.randint(0, 40, (2, 256), device=CUDA)
    ids = document_ids(tokens, eos_id=0)
    inputs = attention_operands()
    results = []
    for name in (backend, "math"):
        with attention_backend(AttentionConfig(backend=name, document_masking=True), CUDA):
            out = attend(*inputs, attention_mask(ids, ids))
        results.append([out, *torch.autograd.grad(out.float().square().sum(), inputs)])
    for a, b in zip(*results, strict=True):
        assert (a - b).float().norm() < 2e-2 * b.float().norm()


def test_diagnostics_of_masked_documents_agree_and_hold_no_scores_of_all_heads() -> None:
    model = llama()
    tokens = torch.randint(0, 512, (1, 2049), device=CUDA)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    make_input = make_input_fn(7)

    def loss(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with without_compiling(), torch.autocast("cuda", dtype=torch.bfloat16):
            hidden = model(*make_input(inputs))
        return cross_entropy(hidden, model.head_weight, targets, operands=torch.bfloat16)

    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    values = quality(
        model, inputs, targets, tokens=2048, unwrapped_loss=loss, make_input=make_input
    )
    rise = torch.cuda.max_memory_allocated() - before
    assert abs(values["raw_ce_fp32"] - values["loss_same_tokens"]) < 0.02
    heads = model.config.num_attention_heads
    assert rise < heads * 2048 * 2048 * 4, "it held the scores of all heads"


def test_math_fallback_alone_causes_a_warning() -> None:
    good = AttentionCall(CUDA, torch.bfloat16, 2, 8, 2, 256, 64)
    assert chosen_kernel(good) in {"flash", "cudnn"}
    assert math_fallback(good) is None
    # fp32 with shared heads: the heads are repeated, and efficient takes them.
    assert math_fallback(AttentionCall(CUDA, torch.float32, 2, 8, 2, 256, 64)) is None
    # No fused kernel takes a head of 320.
    message = math_fallback(AttentionCall(CUDA, torch.bfloat16, 2, 8, 2, 256, 320))
    assert message is not None
    assert "at most 256" in message


def test_attend_never_falls_back_to_math_in_fp32() -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        attend(*attention_operands(torch.float32))
    names = {event.key for event in profile.key_averages()}
    assert "aten::_scaled_dot_product_attention_math" not in names


def llama(layers: int = 2) -> Llama:
    values = {**MODEL_PRESETS["tiny"].values, "num_hidden_layers": layers}
    with torch.device(CUDA):
        model = Llama(LlamaConfig(**values))
    initialise(model, seed=0)
    return model


def step(model, tokens, divide: int = 1) -> torch.Tensor:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        hidden = model(tokens[:, :-1])
    loss = cross_entropy(hidden, model.head_weight, tokens[:, 1:], operands=torch.bfloat16)
    (loss / divide).backward()
    return loss.detach()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune"])
def test_accumulation_matches_one_large_batch_in_each_compile_mode(mode: str) -> None:
    config = CompileConfig(scope="block", mode=mode, fullgraph=True)
    tokens = torch.randint(0, 512, (8, 129), device=CUDA)
    eager = llama()
    step(eager, tokens)
    model = llama()
    compile_model(model, config)
    accumulation = Accumulation(model, config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for _ in range(4):  # CUDA graphs are recorded in the second and replayed from the third on
        accumulation.clear(optimizer)
        for part in tokens.split(2):
            accumulation.begin_micro_step()
            step(model, part, divide=4)
    for (name, a), b in zip(model.named_parameters(), eager.parameters(), strict=True):
        assert (a.grad - b.grad).norm() < 2e-2 * b.grad.norm(), name


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "te_delayed"])
def test_fp8_trains_on_the_device(recipe: str) -> None:
    require_fp8(Fp8Config(recipe=recipe), CUDA)
    model = llama()
    convert_to_fp8(model, Fp8Config(recipe=recipe))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    tokens = torch.randint(0, 512, (8, 129), device=CUDA)
    losses = []
    for _ in range(20):
        losses.append(step(model, tokens).item())
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0] - 1.0
    histories = fp8_state(model)
    assert bool(histories) == (recipe == "te_delayed"), "checkpoints look for them there"


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_updates_and_diagnostics_never_wait_for_the_device(name: str) -> None:
    model = llama()
    if name == "muon":
        optimizer: torch.optim.Optimizer = build_muon(model, MuonConfig())
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    update_step = UpdateStep(
        CUDA, loss_scale=LossScaleConfig(), skip_step=SkipStepConfig(enabled=True)
    )
    watch = ParameterStats(model)
    tokens = torch.randint(0, 512, (4, 129), device=CUDA)
    try:
        for index in range(4):
            if index == 2:  # lazy state and kernels exist by now
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
            loss = step(model, tokens)
            watch.before_update(update_step.loss_scale)
            norm = update_step.clip(model, 1.0)
            update_step.step(optimizer, loss, norm)
            watch.after_update()
            optimizer.zero_grad()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_model_runs_a_fused_attention_kernel() -> None:
    model = llama()
    tokens = torch.zeros(2, 128, dtype=torch.int64, device=CUDA)
    with torch.profiler.profile() as profile, torch.autocast("cuda", dtype=torch.bfloat16):
        model(tokens)
    names = {event.name for event in profile.events()}
    assert names & {f"aten::_scaled_dot_product_{kind}_attention" for kind in ("flash", "cudnn")}
