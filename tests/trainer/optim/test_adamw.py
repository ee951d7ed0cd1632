"""A17, A18: who is decayed, what a step does, and the learning rate in closed form."""

from __future__ import annotations

import math

import pytest
import torch

from lehr_trainer.config import AdamWConfig, LlamaConfig, ScheduleConfig
from lehr_trainer.models import build_model
from lehr_trainer.optim import build_optimizer, lr_factor
from lehr_trainer.presets import MODEL_PRESETS

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


def test_warmup_climbs_evenly_and_the_cosine_falls_to_its_floor() -> None:
    schedule = ScheduleConfig(name="cosine", warmup_steps=10, min_lr_ratio=0.1)
    factors = [lr_factor(schedule, step, 110) for step in range(1, 111)]
    assert factors[:10] == pytest.approx([step / 10 for step in range(1, 11)])
    for step in range(11, 111):
        want = 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - 10) / 100))
        assert factors[step - 1] == pytest.approx(want, abs=1e-12)
    assert max(factors) == factors[9] == 1.0
    assert factors[-1] == pytest.approx(0.1)


def test_constant_stays_at_the_peak_after_warmup() -> None:
    schedule = ScheduleConfig(name="constant", warmup_ratio=0.1)
    factors = [lr_factor(schedule, step, 50) for step in range(1, 51)]
    assert factors == pytest.approx([min(1.0, step / 5) for step in range(1, 51)])


@pytest.mark.parametrize("name", ["cosine", "constant"])
@pytest.mark.parametrize(("warmup", "steps"), [(0, 1), (1, 1), (5, 3), (0, 7)])
def test_odd_lengths_stay_within_zero_and_one(name: str, warmup: int, steps: int) -> None:
    schedule = ScheduleConfig.model_validate({"name": name, "warmup_steps": warmup})
    for step in range(1, steps + 1):
        assert 0.0 < lr_factor(schedule, step, steps) <= 1.0
