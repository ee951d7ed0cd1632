"""A model under muP gives the same logits in transformers, whose models have no multipliers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter

from lehr_testing.exports import same_logits
from lehr_trainer.configs.shapes import MODEL_PRESETS
from lehr_trainer.configs.train import ModelConfig
from lehr_trainer.export.weights import fold_multipliers, write_model
from lehr_trainer.models import build_model

NARROW = {
    "vocab_size": 300,
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "max_sequence_length": 64,
    "parametrization": "mup",
    "base_width": 32,
}


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("preset", ["tiny", "gpt2-tiny"])
def test_transformers_gives_the_same_logits(tmp_path: Path, preset: str, tied: bool) -> None:
    values = {**MODEL_PRESETS[preset].values, **NARROW, "tie_embeddings": tied}
    if preset == "tiny":
        values |= {"attention_bias": True}
    config = TypeAdapter(ModelConfig).validate_python(values)
    model = build_model(config, device="cpu", seed=1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            # Large queries, so that a wrong scale of the scores would be seen.
            if value.ndim == 1 or ".q_proj." in name or ".c_attn." in name:
                value.normal_(0.5, 0.5)
    write_model(config, model.state_dict(), tmp_path)
    # Large queries multiply the rounding of fp32.
    same_logits(model, tmp_path, share=1e-4)


def test_folding_changes_no_tensor_of_the_model() -> None:
    values = {**MODEL_PRESETS["gpt2-tiny"].values, **NARROW}
    model = build_model(TypeAdapter(ModelConfig).validate_python(values), device="cpu", seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    fold_multipliers(model.config, model.state_dict())
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


def test_standard_model_stays_as_it_is() -> None:
    config = TypeAdapter(ModelConfig).validate_python(MODEL_PRESETS["tiny"].values)
    state = build_model(config, device="cpu", seed=0).state_dict()
    folded = fold_multipliers(config, state)
    assert folded.keys() == state.keys()
    assert all(folded[name] is state[name] for name in state)
