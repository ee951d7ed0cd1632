"""Each metric against a direct computation; none of them changes the training."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lehr_trainer.configs.execution import AttentionConfig, Fp8Config
from lehr_trainer.configs.presets import GPT2_TINY, MODEL_PRESETS
from lehr_trainer.configs.shapes import GPT2Config
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.diagnostics.diagnostics_logger import ParameterStats, quality, sample
from lehr_trainer.losses.chunked import cross_entropy
from lehr_trainer.models.attention import attention_backend, masks_by_blocks
from lehr_trainer.models.fp8 import convert_to_fp8
from lehr_trainer.models.gpt2 import GPT2
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.module_map import initialise


def build(kind: str = "llama", **changes):
    if kind == "gpt2":
        model = GPT2(GPT2Config(**{**GPT2_TINY, **changes}))
    else:
        model = Llama(LlamaConfig(**{**MODEL_PRESETS["tiny"].values, **changes}))
    initialise(model, seed=0)
    return model.train()


def batch(seed: int = 0):
    tokens = torch.randint(0, 512, (4, 65), generator=torch.Generator().manual_seed(seed))
    return tokens[:, :-1], tokens[:, 1:]


def flat(tensors) -> torch.Tensor:
    return torch.cat([t.detach().flatten() for t in tensors]).double()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("tied", [True, False])
def test_norms_and_ratios_of_parts_are_those_computed_directly(kind: str, tied: bool) -> None:
    model = build(kind, tie_embeddings=tied)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch = ParameterStats(model)
    inputs, targets = batch()
    cross_entropy(model(inputs), model.head_weight, targets).backward()
    layers = model.layers if kind == "llama" else model.h
    embedding = model.embed_tokens if kind == "llama" else model.wte
    parts = {
        "embedding": [embedding.weight],
        "first_layer": list(layers[0].parameters()),
        "last_layer": list(layers[3].parameters()),
    }
    if not tied:
        parts["head"] = [model.head_weight]
    gradients = {name: flat(p.grad for p in members) for name, members in parts.items()}
    before = {name: flat(members) for name, members in parts.items()}
    watch.before_update()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    optimizer.step()
    values = watch.after_update()
    after = {name: flat(members) for name, members in parts.items()}
    assert len(values) == 3 * len(parts)
    for name in parts:
        assert values[f"params/{name}/grad_norm"].item() == pytest.approx(
            gradients[name].norm().item(), rel=1e-5
        )
        assert values[f"params/{name}/norm"].item() == pytest.approx(
            after[name].norm().item(), rel=1e-5
        )
        ratio = (after[name] - before[name]).norm() / before[name].norm()
        assert values[f"params/{name}/update_ratio"].item() == pytest.approx(ratio.item(), rel=1e-4)


def test_gradient_norms_exclude_the_loss_scale() -> None:
    plain, scaled = build(), build()
    inputs, targets = batch()
    found = []
    for model, scale in ((plain, 1.0), (scaled, 4096.0)):
        (cross_entropy(model(inputs), model.head_weight, targets) * scale).backward()
        watch = ParameterStats(model)
        watch.before_update(torch.tensor(scale))
        found.append(watch.after_update()["params/first_layer/grad_norm"].item())
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_quality_is_the_fp32_loss_and_accuracy_on_the_first_tokens() -> None:
    model = build()
    inputs, targets = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values = quality(model, inputs, targets, tokens=130)
    with torch.no_grad():
        logits = (model(inputs[:2]) @ model.head_weight.T).flatten(0, 1).double()
    wanted = targets[:2].flatten()
    assert values["raw_ce_fp32"].item() == pytest.approx(
        F.cross_entropy(logits, wanted).item(), abs=1e-6
    )
    assert values["top1_acc"].item() == pytest.approx(
        (logits.argmax(-1) == wanted).double().mean().item()
    )


def test_wrong_loss_differs_from_the_raw_one() -> None:
    model = build()
    inputs, targets = batch()

    def lying(x, y):
        return cross_entropy(model(x), model.head_weight, y) * 0.5

    values = quality(model, inputs, targets, tokens=64, unwrapped_loss=lying)
    assert values["loss_same_tokens"].item() == pytest.approx(
        values["raw_ce_fp32"].item() / 2, rel=1e-5
    )


def test_quality_uses_no_fp8() -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    plain, fp8 = build(), build()
    convert_to_fp8(fp8, Fp8Config(recipe="tensorwise", emulate=True))
    inputs, targets = batch()
    assert quality(plain, inputs, targets, tokens=64) == quality(fp8, inputs, targets, tokens=64)


def test_large_vocabulary_is_processed_in_chunks_with_the_same_result() -> None:
    model = build()
    inputs = torch.randint(0, 512, (3, 200), generator=torch.Generator().manual_seed(1))
    values = quality(model, inputs, inputs, tokens=600)  # 600 rows: three pieces
    with torch.no_grad():
        logits = (model(inputs) @ model.head_weight.T).flatten(0, 1)
    assert values["raw_ce_fp32"].item() == pytest.approx(
        F.cross_entropy(logits, inputs.flatten()).item(), abs=1e-5
    )


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_greedy_sample_is_the_argmax_of_each_forward(kind: str) -> None:
    model = build(kind)
    written = sample(model, [1, 2, 3], tokens=6, temperature=0, seed=0, longest=64).tolist()
    so_far = [1, 2, 3]
    for token in written:
        with torch.no_grad():
            logits = model(torch.tensor([so_far]))[0, -1] @ model.head_weight.T
        assert token == int(logits.argmax())
        so_far.append(token)


def test_diagnostics_change_no_modes_gradients_or_random_numbers() -> None:
    model = build()
    inputs, targets = batch()
    cross_entropy(model(inputs), model.head_weight, targets).backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    random, precision = torch.get_rng_state(), torch.get_float32_matmul_precision()
    quality(model, inputs, targets, tokens=64)
    sample(model, [1], tokens=3, temperature=1.0, seed=0, longest=64)
    watch = ParameterStats(model)
    watch.before_update()
    watch.after_update()
    assert model.training
    assert all(m.training for m in model.modules())
    assert torch.equal(random, torch.get_rng_state())
    assert torch.get_float32_matmul_precision() == precision
    assert all(torch.equal(a, p.grad) for a, p in zip(gradients, model.parameters(), strict=True))


@pytest.mark.parametrize("sampled", [False, True])
def test_fp32_attention_is_never_left_to_a_16_bit_kernel_alone(monkeypatch, sampled: bool) -> None:
    """A GPU's flash kernel refuses fp32; a CPU's does not, so the allowed kernels are read."""
    found = []
    attention = F.scaled_dot_product_attention

    def look(query, *args, **kwargs):
        found.append((query.dtype, torch.backends.cuda.math_sdp_enabled()))
        return attention(query, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", look)
    model = build()
    with attention_backend(AttentionConfig(backend="flash"), torch.device("cpu")):
        if sampled:
            sample(model, [1, 2], tokens=2, temperature=0.0, seed=0, longest=8)
        else:
            quality(model, *batch(), tokens=64)
    assert found
    assert set(found) == {(torch.float32, True)}


@pytest.mark.parametrize("sampled", [False, True])
def test_diagnostics_mask_documents_by_a_dense_mask_also_on_a_gpu(sampled: bool) -> None:
    """They are not compiled; FlexAttention would hold all scores of all heads then."""
    gpu = torch.device("cuda")
    found = []
    model = build()
    model.register_forward_hook(lambda *_: found.append(masks_by_blocks(gpu)))
    assert masks_by_blocks(gpu)
    if sampled:
        sample(model, [1, 2], tokens=2, temperature=0.0, seed=0, longest=8)
    else:
        quality(model, *batch(), tokens=64)
    assert found
    assert not any(found)
    assert masks_by_blocks(gpu), "the training masks by blocks again"
