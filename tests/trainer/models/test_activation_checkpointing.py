"""Checkpointing changes no gradient, keeps less, and runs the chosen part again."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F

from lehr_trainer.configs.execution import ActivationCheckpointingConfig
from lehr_trainer.configs.presets import GPT2_TINY, MODEL_PRESETS
from lehr_trainer.configs.shapes import GPT2Config
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.models.gpt2 import GPT2
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.module_map import initialise, module_map
from lehr_trainer.runtime.compiling import recompute_activations

POLICIES = ["embedding", "norms", "attention", "swiglu", "block"]


def build(kind: str = "llama") -> torch.nn.Module:
    if kind == "gpt2":
        model = GPT2(GPT2Config(**GPT2_TINY))
    else:
        model = Llama(LlamaConfig(**MODEL_PRESETS["tiny"].values))
    initialise(model, seed=0)
    return model


def count_forwards(model) -> Counter[str]:
    """Count how often each module's own forward runs from now on, by path."""
    calls: Counter[str] = Counter()

    def counted(name, forward):
        def run(*inputs):
            calls[name] += 1
            return forward(*inputs)

        return run

    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.ModuleList):
            module.forward = counted(name, module.forward)
    return calls


def step(model):
    """Return the loss, and the bytes that autograd kept."""
    kept: dict[int, int] = {}
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in parameters:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tokens = torch.randint(0, 512, (2, 129), generator=torch.Generator().manual_seed(0))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        hidden = model(tokens[:, :-1])
    size = sum(kept.values())
    logits = hidden @ model.head_weight.T
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return loss.item(), size


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("policy", POLICIES)
def test_loss_and_gradients_match_no_checkpointing_bitwise(policy: str, kind: str) -> None:
    plain, less = build(kind), build(kind)
    recompute_activations(less, ActivationCheckpointingConfig(policy=policy))
    assert step(plain)[0] == step(less)[0]
    for (name, a), b in zip(plain.named_parameters(), less.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad), name
    assert list(plain.state_dict()) == list(less.state_dict())


def test_policies_keep_less_than_none_in_the_published_order() -> None:
    sizes = {}
    for policy in ["none", *POLICIES]:
        model = build()
        recompute_activations(model, ActivationCheckpointingConfig(policy=policy))
        sizes[policy] = step(model)[1]
    assert sizes["block"] < sizes["swiglu"] < sizes["attention"] < sizes["none"]
    assert sizes["norms"] < sizes["none"]
    assert sizes["embedding"] <= sizes["none"]


@pytest.mark.parametrize("policy", POLICIES)
def test_only_the_chosen_part_runs_twice(policy: str) -> None:
    model = build()
    calls = count_forwards(model)
    recompute_activations(model, ActivationCheckpointingConfig(policy=policy))
    step(model)
    where = module_map(model)
    blocks = [f"layers.{i}" for i in range(4)]
    expected = {
        "embedding": [where.embedding],
        "norms": [f"{b}.{n}" for b in blocks for n in where.norms],
        "attention": [f"{b}.{where.attention}" for b in blocks],
        "swiglu": [f"{b}.{where.mlp}" for b in blocks],
        "block": blocks,
    }[policy]
    twice = {name for name, count in calls.items() if count == 2}
    assert twice == {
        name for name in calls if f"{name}.".startswith(tuple(f"{e}." for e in expected))
    }
    assert set(calls.values()) == {1, 2}


def test_every_second_layer_keeps_half() -> None:
    model = build()
    chosen = recompute_activations(model, ActivationCheckpointingConfig(policy="block", every=2))
    assert [m is model.layers[i] for m, i in zip(chosen, (0, 2), strict=True)] == [True, True]


def test_policy_none_changes_nothing_and_no_grad_does_not_checkpoint() -> None:
    model = build()
    assert recompute_activations(model, ActivationCheckpointingConfig()) == []
    recompute_activations(model, ActivationCheckpointingConfig(policy="block"))
    with torch.no_grad():
        assert model(torch.zeros(1, 4, dtype=torch.long)).grad_fn is None
