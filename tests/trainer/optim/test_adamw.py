"""AdamW: which parameters are decayed, and what a step does."""

from __future__ import annotations

import pytest
import torch

from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import AdamWConfig, LlamaConfig
from lehr_trainer.models import build_model
from lehr_trainer.optim import build_optimizer

TINY = MODEL_PRESETS["tiny"].values


def groups_by_name(tied: bool, **changes: bool) -> dict[str, list[str]]:
    config = LlamaConfig.model_validate({**TINY, "tie_embeddings": tied, **changes})
    model = build_model(config, device="cpu", seed=0)
    optimizer = build_optimizer(model, AdamWConfig())
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    listed = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(listed) == sorted(names), "each parameter is in exactly one group"
    return {
        "decayed" if group["weight_decay"] else "kept": [names[id(p)] for p in group["params"]]
        for group in optimizer.param_groups
    }


@pytest.mark.parametrize("tied", [True, False])
def test_each_parameter_is_in_one_group_and_only_matrices_are_decayed(tied: bool) -> None:
    groups = groups_by_name(tied, attention_bias=True)
    assert "embed_tokens.weight" in groups["kept"]
    assert all("_proj.weight" in name or name == "lm_head.weight" for name in groups["decayed"])
    assert len(groups["decayed"]) == 7 * TINY["num_hidden_layers"] + (not tied)
    assert all("norm" in n or n.endswith("bias") or "embed" in n for n in groups["kept"])


@pytest.mark.parametrize("fused", [True, False])
def test_two_steps_of_adamw_follow_the_formula(fused: bool) -> None:
    model = torch.nn.Linear(7, 5)
    config = AdamWConfig(lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=fused)
    optimizer = build_optimizer(model, config)
    want = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    first = {name: torch.zeros_like(value) for name, value in want.items()}
    second = {name: torch.zeros_like(value) for name, value in want.items()}
    generator = torch.Generator().manual_seed(0)
    for step in (1, 2):
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            gradient = parameter.grad.double()
            first[name] = 0.9 * first[name] + 0.1 * gradient
            second[name] = 0.95 * second[name] + 0.05 * gradient**2
            decay = 0.1 if name == "weight" else 0.0
            want[name] *= 1 - 0.01 * decay
            mean = first[name] / (1 - 0.9**step)
            spread = (second[name] / (1 - 0.95**step)).sqrt() + 1e-8
            want[name] -= 0.01 * mean / spread
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.double(), want[name], atol=1e-6)
