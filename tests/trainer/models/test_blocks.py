"""Blocks built from a config equal formulas in float64, however they are executed."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from lehr_trainer.configs.execution import ActivationCheckpointingConfig, Fp8Config
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig, TrainConfig
from lehr_trainer.losses.chunked import cross_entropy, token_losses
from lehr_trainer.models import build_model
from lehr_trainer.models.documents import block_mask, dense_mask
from lehr_trainer.models.fp8 import convert_to_fp8
from lehr_trainer.models.llama import BLOCK_NORMS, Llama
from lehr_trainer.models.shared_layers import join_products
from lehr_trainer.planning.counts import flops_per_token, parameter_counts, predicted_first_loss
from lehr_trainer.runtime.compiling import recompute_activations

SMALL = {
    **MODEL_PRESETS["tiny"].values,
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "max_sequence_length": 64,
}
QWEN3 = {"qk_norm": "head", "head_dim": 16}
WINDOW = {"window": {"size": 5, "pattern": "SL"}}
BLOCKS: dict[str, dict[str, Any]] = {
    "pre": WINDOW,
    "post": {"norm": "post", "qk_norm": "whole", "num_key_value_heads": 1},
    "post, relu2": {"norm": "post", "mlp": "relu2", "head_dim": 8, **WINDOW},
    "peri": {"norm": "peri", "qk_norm": "head", **WINDOW},
    "peri, gelu": {"norm": "peri", "mlp": "gelu", "mlp_bias": True, "attention_bias": True},
    "relu2, softcap": {"mlp": "relu2", "logit_softcap": 2.0, **QWEN3},
    "mup": {"parametrization": "mup", "base_width": 24, "norm": "post", **QWEN3, **WINDOW},
}


def config(**changes: Any) -> LlamaConfig:
    return LlamaConfig.model_validate({**SMALL, **changes})


def model_of(changes: dict[str, Any]) -> Llama:
    model = build_model(config(**changes), device="cpu", seed=1)
    assert isinstance(model, Llama)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # Away from 1 and 0, or a mistake could not be seen.
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def batch(length: int = 37) -> tuple[Tensor, Tensor]:
    """Tokens [3, length] and their documents, which end at other places in each sequence."""
    tokens = torch.randint(0, 300, (3, length), generator=torch.Generator().manual_seed(0))
    ends = torch.tensor([[9, 20, 30], [1, 2, 36], [40, 40, 40]])
    return tokens, (torch.arange(length)[None, :, None] >= ends[:, None, :]).sum(-1).int()


def reference(model: Llama, tokens: Tensor, ids: Tensor | None) -> Tensor:
    """Compute the logits by the formulas, position by position where a mask is meant, in float64."""
    c, w = model.config, {n: p.double() for n, p in model.named_parameters()}
    n, k, d, length = c.num_attention_heads, c.num_key_value_heads, c.head_size, tokens.shape[1]

    def norm(name: str, x: Tensor) -> Tensor:
        gain = w[f"{name}.weight"]
        return x / (x.square().mean(-1, keepdim=True) + c.norm_eps).sqrt() * gain

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"].T + w.get(f"{name}.bias", torch.zeros(()))

    def rotated(x: Tensor) -> Tensor:
        angles = torch.outer(
            torch.arange(length).double(), c.rope_theta ** (-torch.arange(0, d, 2).double() / d)
        )
        turn = torch.polar(torch.ones_like(angles), angles)[:, None]
        pairs = torch.complex(x[..., : d // 2].contiguous(), x[..., d // 2 :].contiguous()) * turn
        return torch.cat([pairs.real, pairs.imag], dim=-1)

    def attention(name: str, x: Tensor, window: int | None) -> Tensor:
        q, key, value = (linear(f"{name}.{part}_proj", x) for part in "qkv")
        if c.qk_norm == "whole":
            q, key = norm(f"{name}.q_norm", q), norm(f"{name}.k_norm", key)
        q, key, value = (part.unflatten(-1, (-1, d)) for part in (q, key, value))
        if c.qk_norm == "head":
            q, key = norm(f"{name}.q_norm", q), norm(f"{name}.k_norm", key)
        q, key = rotated(q), rotated(key)
        scale = 1 / math.sqrt(d) if c.parametrization == "standard" else 8 / d
        rows = []
        for b, t in itertools.product(range(len(tokens)), range(length)):
            seen = [
                s
                for s in range(t + 1)
                if (ids is None or ids[b, s] == ids[b, t]) and (window is None or t - s < window)
            ]
            heads = []
            for head in range(n):
                own = head // (n // k)
                shares = (scale * key[b, seen, own] @ q[b, t, head]).softmax(0)
                heads.append(shares @ value[b, seen, own])
            rows.append(torch.cat(heads))
        return linear(f"{name}.o_proj", torch.stack(rows).view(len(tokens), length, n * d))

    def mlp(name: str, x: Tensor) -> Tensor:
        up = linear(f"{name}.up_proj", x)
        if c.mlp == "swiglu":
            gate = linear(f"{name}.gate_proj", x)
            inner = gate * gate.sigmoid() * up
        elif c.mlp == "gelu":
            root = math.sqrt(2 / math.pi)
            inner = 0.5 * up * (1 + torch.tanh(root * (up + 0.044715 * up**3)))
        else:
            inner = up.clamp(min=0) ** 2
        return linear(f"{name}.down_proj", inner)

    x = w["embed_tokens.weight"][tokens]
    for index in range(c.num_hidden_layers):
        place = f"layers.{index}"
        names = [name and f"{place}.{name}" for name in BLOCK_NORMS[c.norm]]
        window = c.window.size if c.window and "SL"[index % 2] == "S" else None
        for part, before, after in (("self_attn", *names[:2]), ("mlp", *names[2:])):
            y = norm(before, x) if before else x
            at = f"{place}.{part}"
            y = attention(at, y, window) if part == "self_attn" else mlp(at, y)
            x = x + (norm(after, y) if after else y)
    out = norm("norm", x) / (1 if c.base_width is None else c.hidden_size / c.base_width)
    logits = out @ w["embed_tokens.weight"].T
    return (
        logits if c.logit_softcap is None else c.logit_softcap * (logits / c.logit_softcap).tanh()
    )


def gap(got: Tensor, want: Tensor) -> float:
    return float(((got - want).norm() / want.norm()).detach())


def gradients(model: Llama, hidden: Tensor, targets: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    cap = model.config.logit_softcap
    cross_entropy(hidden, model.head_weight, targets, softcap=cap).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "documents"])
@pytest.mark.parametrize("name", BLOCKS)
def test_losses_and_every_gradient_equal_the_formulas(name: str, masked: bool) -> None:
    model, (tokens, documents) = model_of(BLOCKS[name]), batch()
    ids = documents if masked else None
    want = reference(model, tokens[:, :-1], None if ids is None else ids[:, :-1])
    losses = F.cross_entropy(want.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    hidden = model(tokens[:, :-1], None if ids is None else ids[:, :-1])
    cap = model.config.logit_softcap
    own = token_losses(hidden, model.head_weight, tokens[:, 1:], softcap=cap)
    assert gap(own.flatten(), losses) < 1e-6

    got = gradients(model, hidden, tokens[:, 1:])
    model.zero_grad()
    losses.mean().backward()
    for parameter, tensor in model.named_parameters():
        assert gap(got[parameter], tensor.grad) < 1e-5, parameter


@pytest.mark.parametrize("how", ["compiled", "joint", "recomputed", "norms", "fp8"])
@pytest.mark.parametrize("name", ["pre", "post, relu2", "peri", "peri, gelu"])
def test_execution_changes_no_result(name: str, how: str) -> None:
    changes = {"hidden_size": 64, **BLOCKS[name], "head_dim": 16}
    model, other, (tokens, ids) = model_of(changes), model_of(changes), batch()
    if how == "compiled":
        for layer in model.layers:
            layer.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    elif how == "joint":
        assert join_products(model) == 3 * (2 if model.config.mlp == "swiglu" else 1)
    elif how == "fp8":
        linears = convert_to_fp8(model, Fp8Config(recipe="tensorwise", emulate=True))
        assert len(linears) == 3 * (7 if model.config.mlp == "swiglu" else 6)
    else:
        policy = "block" if how == "recomputed" else "norms"
        parts = recompute_activations(model, ActivationCheckpointingConfig(policy=policy))
        norms = 4 if model.config.norm == "peri" else 2
        assert len(parts) == 3 * (1 if policy == "block" else norms)
    hidden, expected = model(tokens, ids), other(tokens, ids)
    want, got = gradients(other, expected, tokens), gradients(model, hidden, tokens)
    if how == "fp8":  # Its rounding, which a gradient of a norm shows most.
        assert 1e-3 < gap(hidden, expected) < 0.2
        return
    for parameter, tensor in want.items():
        assert gap(got[parameter], tensor) < 5e-6, parameter


@pytest.mark.parametrize("name", ["post, relu2", "peri"])
def test_autocast_rounds_and_changes_nothing_else(name: str) -> None:
    model, (tokens, ids) = model_of(BLOCKS[name]), batch()
    want = model(tokens, ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = model(tokens, ids)
    assert got.dtype == torch.bfloat16
    assert 1e-4 < gap(got.float(), want) < 0.05


@pytest.mark.parametrize("rows", [1, 2])
def test_blocks_of_flex_attention_mask_the_same_pairs(rows: int) -> None:
    ids = batch()[1][:rows]
    mask, dense = block_mask(ids, 5), dense_mask(ids, 5)
    pairs = torch.arange(37)
    for row in range(rows):
        visible = mask.mask_mod(torch.tensor(row), torch.tensor(0), pairs[:, None], pairs[None])
        assert torch.equal(visible, dense[row, 0])
    assert int(dense.sum(-1).max()) == 5


def test_window_costs_the_products_that_it_has() -> None:
    plain, windowed = config(), config(window={"size": 16, "pattern": "SSL"})
    assert flops_per_token(windowed, 16) == flops_per_token(plain, 16)
    attention = 12 * plain.hidden_size * (16 + 16 + 64)
    products = flops_per_token(plain, 64) - 12 * plain.hidden_size * 3 * 64
    assert flops_per_token(windowed, 64) == products + attention


def test_first_loss_with_a_small_cap_is_nearer_to_uniform() -> None:
    model = build_model(config(tie_embeddings=False, logit_softcap=0.7), device="cpu", seed=1)
    tokens = torch.randint(0, 300, (16, 61), generator=torch.Generator().manual_seed(0))
    hidden, targets = model(tokens[:, :-1]), tokens[:, 1:]
    loss = cross_entropy(hidden, model.head_weight, targets, softcap=0.7).item()
    assert predicted_first_loss(model.config) == pytest.approx(loss, abs=0.05)
    assert predicted_first_loss(config(tie_embeddings=False)) > loss + 0.2


FAMILIES = {"llama3", "qwen3-", "olmo2-"}
PUBLISHED = {
    "llama3-1b": 1_235_814_400,
    "llama3-3b": 3_212_749_824,
    "llama3-8b": 8_030_261_248,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
}


@pytest.mark.parametrize("name", [name for name in MODEL_PRESETS if name[:6] in FAMILIES])
def test_preset_has_its_published_number_of_parameters(name: str) -> None:
    total = parameter_counts(LlamaConfig.model_validate(MODEL_PRESETS[name].values)).total
    assert total == PUBLISHED.get(name, pytest.approx(0.1e9, rel=0.2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 7}, "head_dim is 7; rotary positions need an even head size"),
        ({"window": {"size": 64}}, "window.size 64 is not below max_sequence_length 64, so no"),
        ({"window": {"size": 8, "pattern": "LLLS"}}, "pattern LLLS has no S among its first 3"),
        ({"window": {"size": 8, "pattern": "SXL"}}, "should match pattern"),
        ({"window": {"size": 8, "pattern": "LL"}}, "should match pattern"),
        ({"norm": "sandwich"}, "'pre', 'post' or 'peri'"),
        ({"logit_softcap": 0}, "greater than 0"),
        (
            {
                "rope_scaling": {
                    "kind": "linear",
                    "factor": 4,
                    "original_max_sequence_length": 16,
                    "beta_slow": 2,
                }
            },
            "beta_fast and beta_slow have no effect with kind linear",
        ),
    ],
)
def test_fields_that_do_not_go_together_are_one_error(changes: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message) as refusal:
        config(**changes)
    assert refusal.value.error_count() == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "liger"}, "logit_softcap 30 is not offered by loss.name liger; use chunked or s"),
        ({"parts": {"loss": "own:loss"}}, "model.logit_softcap is computed by Lehr's own losses"),
    ],
)
def test_softcap_needs_a_loss_that_has_logits(changes: Any, message: str) -> None:
    values = {
        "model": {**SMALL, "logit_softcap": 30},
        "data": {"corpus": {"kind": "stdlib"}},
        "batch": {"sequences": 2, "sequence_length": 16},
        "steps": 2,
    }
    with pytest.raises(ValidationError, match=message):
        TrainConfig.model_validate({**values, **changes})
