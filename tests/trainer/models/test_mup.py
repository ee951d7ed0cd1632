"""muP: activations' changes do not depend on width, and training equals another form of the rules."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from lehr_trainer.configs.optimizer import AdamWConfig, OptimizerConfig
from lehr_trainer.configs.train import LlamaConfig, ModelConfig
from lehr_trainer.losses.chunked import cross_entropy
from lehr_trainer.models import build_model
from lehr_trainer.models.module_map import Decoder, blocks, module_map
from lehr_trainer.optim import build_optimizer

VOCABULARY, LENGTH = 128, 32
ADAMW = {"name": "adamw", "lr": 5e-3}
MUON = {"name": "muon", "lr": 0.02, "embedding_lr": 3e-3}
OF_TODAY = {**MUON, "coefficients": "polar_express", "normuon_beta": 0.95, "qkv_heads": 1}
MOONSHOT = {**MUON, "lr": 0.03, "adjust_lr": "match_rms_adamw", "embedding_lr": 1e-4}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices are so small that threads which wait for each other cost more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def shape(kind: str, width: int, *, mup: bool, **changes: Any) -> ModelConfig:
    values: dict[str, Any] = {
        "kind": kind,
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_sequence_length": LENGTH,
    }
    if kind == "llama":
        values["num_key_value_heads"] = 2
    if mup:
        values |= {"parametrization": "mup", "base_width": 64, "base_head_size": 16}
    return TypeAdapter(ModelConfig).validate_python({**values, **changes})


def tokens() -> torch.Tensor:
    return torch.randint(VOCABULARY, (8, LENGTH + 1), generator=torch.Generator().manual_seed(1))


def activations(model: Decoder, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the output of each part of each block, and the logits."""
    found: dict[str, torch.Tensor] = {}
    parts = module_map(model)

    def keep(_module: Any, _inputs: Any, out: torch.Tensor, name: str) -> None:
        found[name] = out

    hooks = [
        getattr(block, part).register_forward_hook(functools.partial(keep, name=f"{part} {n}"))
        for n, block in enumerate(blocks(model))
        for part in (parts.attention, parts.mlp)
    ]
    with torch.no_grad():
        found["logits"] = model(inputs) @ model.head_weight.T
    for hook in hooks:
        hook.remove()
    return found


def changes(config: ModelConfig, optimizer: dict[str, Any]) -> dict[str, float]:
    """Train four steps; return by how much each activation changes (root mean square)."""
    model = build_model(config, device="cpu", seed=0)
    built = build_optimizer(model, TypeAdapter(OptimizerConfig).validate_python(optimizer))
    batch = tokens()
    before = activations(model, batch[:, :-1])
    for _ in range(4):
        built.zero_grad()
        cross_entropy(model(batch[:, :-1]), model.head_weight, batch[:, 1:]).backward()
        built.step()
    after = activations(model, batch[:, :-1])
    return {name: float((after[name] - before[name]).square().mean().sqrt()) for name in after}


def growth(kind: str, optimizer: dict[str, Any], *, mup: bool) -> dict[str, float]:
    """Return the exponent of width with which each activation's change grows."""
    widths = (64, 128, 256) if optimizer["name"] == "muon" else (64, 128, 256, 512)
    found = [changes(shape(kind, width, mup=mup), optimizer) for width in widths]
    x = torch.tensor([math.log(width) for width in widths])
    x = x - x.mean()
    return {
        name: float((x * torch.tensor([math.log(one[name]) for one in found])).sum() / (x @ x))
        for name in found[0]
    }


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        pytest.param("llama", ADAMW, id="llama-adamw"),
        pytest.param("gpt2", MUON, id="gpt2-muon"),
        pytest.param("llama", OF_TODAY, id="llama-muon-of-today", marks=pytest.mark.nightly),
        pytest.param("llama", MOONSHOT, id="llama-moonshot"),
        pytest.param("gpt2", ADAMW, id="gpt2-adamw", marks=pytest.mark.nightly),
        pytest.param("llama", MUON, id="llama-muon", marks=pytest.mark.nightly),
        pytest.param("gpt2", MOONSHOT, id="gpt2-moonshot", marks=pytest.mark.nightly),
    ],
)
def test_changes_of_activations_do_not_depend_on_width(
    kind: str, optimizer: dict[str, Any]
) -> None:
    """The coordinate check of arXiv:2203.03466, appendix D.1."""
    found = growth(kind, optimizer, mup=True)
    hidden = {name: power for name, power in found.items() if name != "logits"}
    assert all(abs(power) < 0.2 for power in hidden.values()), found
    # Random first weights of the head add a part that falls as 1/sqrt(width).
    assert -0.5 < found["logits"] < 0.15, found


@pytest.mark.nightly  # It shows that the check above can fail.
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_in_the_standard_parametrization_they_grow_with_width(kind: str) -> None:
    found = growth(kind, ADAMW, mup=False)
    assert all(power > 0.25 for power in found.values()), found
    # Muon's matrices need no factor, but the head does.
    assert growth(kind, MUON, mup=False)["logits"] > 0.4
    # Moonshot's factor undoes what makes Muon independent of width.
    grown = growth(kind, MOONSHOT, mup=False)
    assert max(grown["logits"], *(v for k, v in grown.items() if k.endswith("0"))) > 0.3, grown


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_at_its_base_width_mup_is_the_standard_parametrization(kind: str) -> None:
    standard = changes(shape(kind, 64, mup=False, tie_embeddings=False), ADAMW)
    assert changes(shape(kind, 64, mup=True, tie_embeddings=False), ADAMW) == standard


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("width", [64, 256])
def test_tied_head_has_the_first_weights_of_an_untied_one_under_mup(kind: str, width: int) -> None:
    """Those of an embedding are so small that the tied model learned slowly (docs/judgement.md)."""
    heads = {
        (mup, tied): build_model(
            shape(kind, width, mup=mup, tie_embeddings=tied), device="cpu", seed=0
        ).head_weight.std()
        for mup in (True, False)
        for tied in (True, False)
    }
    base = torch.tensor(64**-0.5)
    torch.testing.assert_close(heads[True, True], base, rtol=0.02, atol=0)
    torch.testing.assert_close(heads[True, False], base, rtol=0.02, atol=0)
    # The standard parametrization is as it was.
    torch.testing.assert_close(heads[False, True], torch.tensor(0.02), rtol=0.02, atol=0)


def test_training_follows_the_rules_in_their_other_form() -> None:
    """Table 3 of the paper on transformers' Llama: no multipliers, but a smaller head and rate.

    Both forms are the same training (the paper's lemma J.1) where AdamW's eps is next to nothing.
    """
    from transformers import LlamaConfig as TheirConfig
    from transformers import LlamaForCausalLM

    config = shape("llama", 128, mup=True, tie_embeddings=False, num_attention_heads=2)
    assert isinstance(config, LlamaConfig)
    ratio = 128 / 64
    model = build_model(config, device="cpu", seed=3)
    rate, decay, eps = 4e-3, 0.1, 1e-30
    optimizer = build_optimizer(
        model, AdamWConfig(lr=rate, weight_decay=decay, eps=eps, fused=False)
    )
    theirs = LlamaForCausalLM(
        TheirConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=LENGTH,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=False,
            attn_implementation="eager",
        )
    )
    weights = {
        name if name.startswith("lm_head") else f"model.{name}": value.detach().clone()
        for name, value in model.state_dict().items()
    }
    weights["lm_head.weight"] /= ratio
    theirs.load_state_dict(weights)
    for layer in theirs.model.layers:
        layer.self_attn.scaling = math.sqrt(16) / 64
    groups = []
    for name, parameter in theirs.named_parameters():
        narrow = "_proj" in name or "lm_head" in name
        groups.append(
            {
                "params": [parameter],
                "lr": rate / ratio if narrow else rate,
                "weight_decay": decay * ratio if narrow else 0.0,
            }
        )
    reference = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=eps)
    batch = tokens()
    for _ in range(5):
        loss = cross_entropy(model(batch[:, :-1]), model.head_weight, batch[:, 1:])
        logits = theirs(batch[:, :-1]).logits
        want = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        assert float(loss) == pytest.approx(float(want), rel=1e-4)
        for each, value in ((optimizer, loss), (reference, want)):
            each.zero_grad()
            value.backward()
            each.step()
    moved = dict(theirs.named_parameters())["model.layers.0.mlp.up_proj.weight"]
    ours = dict(model.named_parameters())["layers.0.mlp.up_proj.weight"]
    assert float((moved - ours).abs().max()) < 1e-3 * float(ours.abs().max())
