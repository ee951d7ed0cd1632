"""This GPT-2 matches transformers' GPT-2, in its logits and in every gradient."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from lehr_trainer.configs.presets import GPT2_134M, GPT2_SMALL, GPT2_TINY
from lehr_trainer.configs.shapes import GPT2Config
from lehr_trainer.models.gpt2 import GPT2, to_transformers, transformers_config
from lehr_trainer.models.module_map import initialise
from lehr_trainer.planning.counts import flops_per_token, parameter_counts

SMALL = {**GPT2_TINY, "vocab_size": 300, "hidden_size": 64, "max_sequence_length": 96}


def pair(tied: bool) -> tuple[GPT2, torch.nn.Module]:
    from transformers import GPT2Config as TheirConfig
    from transformers import GPT2LMHeadModel

    torch.manual_seed(0)
    ours = GPT2(GPT2Config(**{**SMALL, "tie_embeddings": tied}))
    with torch.no_grad():
        for parameter in ours.parameters():  # biases and norms too, or they would test nothing
            parameter.normal_(0.0, 0.1)
            if parameter.ndim == 1:
                parameter.add_(0.5)
    theirs = GPT2LMHeadModel(TheirConfig.from_dict(transformers_config(ours.config)))
    missing, unexpected = theirs.load_state_dict(to_transformers(ours.state_dict()), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    theirs.tie_weights()
    return ours, theirs.train()


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float(((got - want).norm() / want.norm()).detach())


@pytest.mark.parametrize("tied", [True, False])
def test_logits_and_gradients_match_transformers(tied: bool) -> None:
    ours, theirs = pair(tied)
    tokens = torch.randint(0, 300, (2, 64), generator=torch.Generator().manual_seed(1))
    logits = ours(tokens) @ ours.head_weight.T
    want = theirs(tokens).logits
    assert relative(logits, want) < 1e-5
    for out in (logits, want):
        F.cross_entropy(out[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
    got = to_transformers({name: p.grad for name, p in ours.named_parameters()})
    wanted = {name: p.grad for name, p in theirs.named_parameters()}
    assert got.keys() == wanted.keys()
    scale = max(float(g.norm()) for g in wanted.values())
    for name, gradient in wanted.items():
        # A key's bias shifts every score of a query alike, so its gradient is zero up to rounding.
        floor = 1e-6 * scale
        assert (got[name] - gradient).norm() < 2e-5 * gradient.norm() + floor, name


@pytest.mark.parametrize(
    ("values", "parameters"), [(GPT2_SMALL, 124_439_808), (GPT2_134M, 134_601_216)]
)
def test_the_presets_have_the_published_number_of_parameters(values, parameters) -> None:
    config = GPT2Config(**values)
    with torch.device("meta"):
        counted = sum(p.numel() for p in GPT2(config).parameters())
    assert counted == parameter_counts(config).total == parameters


def test_flops_per_token_match_counted_matrix_products() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    config = GPT2Config(**SMALL)
    model = GPT2(config)
    tokens = torch.randint(0, 300, (2, 96))
    with (
        FlopCounterMode(display=False) as counter,
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    ):
        (model(tokens) @ model.head_weight.T).sum().backward()
    counted = counter.get_total_flops() / tokens.numel()
    assert counted == pytest.approx(flops_per_token(config, 96), rel=0.02)


@pytest.mark.parametrize("tied", [True, False])
def test_first_loss_follows_from_the_variance_of_initial_logits(tied: bool) -> None:
    config = GPT2Config(**{**GPT2_TINY, "tie_embeddings": tied})
    model = GPT2(config)
    initialise(model, seed=0)
    assert float(model.wte.weight.detach().std()) == pytest.approx(0.02, rel=0.02)
    tokens = torch.randint(0, 512, (4, 256), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = model(tokens) @ model.head_weight.T
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    assert float(loss) == pytest.approx(math.log(512) + float(logits.var()) / 2, abs=0.1)


def test_packed_documents_with_masking_equal_separate_forwards() -> None:
    ours, _ = pair(tied=True)
    first, second = torch.randint(1, 300, (1, 20)), torch.randint(1, 300, (1, 33))
    packed = torch.cat([first, second], dim=1)
    ids = torch.tensor([[0] * 20 + [1] * 33], dtype=torch.int32)
    with torch.no_grad():
        together = ours(packed, ids)
        apart = torch.cat([ours(first), ours(second)], dim=1)
        unmasked = ours(packed)
    assert relative(together, apart) < 1e-5
    assert relative(unmasked, apart) > 1e-2


def test_a_sequence_beyond_the_learned_positions_is_refused() -> None:
    ours, _ = pair(tied=True)
    with pytest.raises(ValueError, match="97 tokens is longer than the 96 positions"):
        ours(torch.zeros(1, 97, dtype=torch.long))
