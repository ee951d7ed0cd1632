"""The fields of muP: what they need, what they refuse, and what planning makes of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from lehr_trainer.configs.optimizer import AdamWConfig, MuonConfig
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import ModelConfig, TrainConfig
from lehr_trainer.losses.chunked import cross_entropy
from lehr_trainer.models import build_model
from lehr_trainer.optim import build_optimizer
from lehr_trainer.planning.counts import parameter_counts, predicted_first_loss

MUP = {"parametrization": "mup", "base_width": 64}


def model(preset: str = "tiny", **changes: Any) -> ModelConfig:
    return TypeAdapter(ModelConfig).validate_python({**MODEL_PRESETS[preset].values, **changes})


@pytest.mark.parametrize("preset", ["tiny", "gpt2-tiny"])
@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"parametrization": "mup"}, "mup needs base_width"),
        ({"base_width": 64}, "base_width has no effect with parametrization standard"),
        ({"base_head_size": 64}, "base_head_size has no effect"),
        ({**MUP, "stable_embedding": True}, "does not go with stable_embedding"),
        ({**MUP, "base_width": 0}, "greater than or equal to 1"),
    ],
)
def test_fields_that_do_not_fit_are_refused(preset: str, changes: dict[str, Any], text: str):
    with pytest.raises(ValidationError, match=text):
        model(preset, **changes)


def config(**changes: Any) -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "model": {"preset": "tiny", **MUP},
            "data": {"corpus": {"kind": "stdlib"}},
            "batch": {"sequences": 1, "sequence_length": 8},
            "steps": 1,
            **changes,
        }
    )


def test_optimizer_without_a_rule_is_refused_by_name() -> None:
    with pytest.raises(ValidationError, match="not defined for optimizer adamw8bit; use adamw or"):
        config(optimizer={"name": "adamw8bit"})
    assert config(optimizer={"name": "muon"}).model.parametrization == "mup"


@pytest.mark.parametrize("preset", ["tiny", "gpt2-tiny"])
@pytest.mark.parametrize("tied", [True, False])
def test_parameter_counts_are_those_of_the_standard_model(preset: str, tied: bool) -> None:
    mup = model(preset, tie_embeddings=tied, **MUP)
    assert parameter_counts(mup) == parameter_counts(model(preset, tie_embeddings=tied))
    built = build_model(mup, device="cpu", seed=0)
    assert sum(p.numel() for p in built.parameters()) == parameter_counts(mup).total


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("base", [16, 512])
def test_first_loss_is_predicted(tied: bool, base: int) -> None:
    shape = model(tie_embeddings=tied, **{**MUP, "base_width": base})
    built = build_model(shape, device="cpu", seed=0)
    tokens = torch.randint(512, (16, 65), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        loss = float(cross_entropy(built(tokens[:, :-1]), built.head_weight, tokens[:, 1:]))
    assert loss == pytest.approx(predicted_first_loss(shape), abs=0.15)


def groups(shape: ModelConfig, optimizer: AdamWConfig | MuonConfig) -> dict[str, tuple[float, ...]]:
    built = build_optimizer(build_model(shape, device="cpu", seed=0), optimizer)
    return {
        group["name"]: (group["peak_lr"], group["lr"], group["weight_decay"])
        for group in built.param_groups
    }


def test_rate_of_the_matrices_goes_as_one_over_width_and_the_decay_of_a_step_stays() -> None:
    # Width 128 is twice the base: half the rate, twice the decay.
    assert groups(model(tie_embeddings=False, **MUP), AdamWConfig(lr=4e-3, weight_decay=0.1)) == {
        "matrix": (2e-3, 2e-3, 0.2),
        "decayed": (4e-3, 4e-3, 0.1),
        "kept": (4e-3, 4e-3, 0.0),
    }


@pytest.mark.parametrize(("adjust", "factor"), [("original", 1.0), ("match_rms_adamw", 0.5)])
def test_rate_of_muon_keeps_the_spectral_norm_of_an_update(adjust: str, factor: float) -> None:
    # Width 128 is four times the base of 32; the root of that is 2.
    found = groups(
        model(**{**MUP, "base_width": 32}),
        MuonConfig(lr=0.02, adjust_lr=adjust, weight_decay=0.1),  # type: ignore[arg-type]
    )
    assert found["matrix"] == pytest.approx((0.02 * factor, 0.02 * factor, 0.1 / factor))
    assert found["embedding"][0] == found["vector"][0] == 3e-4


@pytest.mark.parametrize("preset", ["tiny", "gpt2-tiny"])
def test_first_weights_are_standard_but_for_an_untied_head(preset: str) -> None:
    mup = model(preset, tie_embeddings=False, **{**MUP, "base_width": 32})
    built = build_model(mup, device="cpu", seed=0)
    standard = build_model(model(preset, tie_embeddings=False), device="cpu", seed=0)
    # Width 128 is four times the base; the head's weights are those of width 32.
    assert float(built.head_weight.std()) == pytest.approx(32**-0.5, rel=0.02)
    assert float(standard.head_weight.std()) == pytest.approx(128**-0.5, rel=0.02)
    others = dict(standard.named_parameters())
    for name, parameter in built.named_parameters():
        assert parameter is built.head_weight or torch.equal(parameter, others[name]), name
