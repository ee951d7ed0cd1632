"""Exported weights load in transformers and give the same logits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter

from lehr_testing.exports import same_logits, transformers_warnings
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.shapes import GPT2Config
from lehr_trainer.configs.train import LlamaConfig, ModelConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.export.weights import SpecialIds, fold_multipliers, write_model
from lehr_trainer.models import build_model
from lehr_trainer.models.gpt2 import GPT2
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.module_map import initialise, use_stable_embedding

SMALL = {"vocab_size": 512, "num_hidden_layers": 2, "max_sequence_length": 64}


def small(preset: str, **changes) -> LlamaConfig | GPT2Config:
    """The preset's architecture with its numbers of heads, but narrow."""
    values = {**MODEL_PRESETS[preset].values, **SMALL}
    values["hidden_size"] = 8 * values["num_attention_heads"]
    if values["kind"] == "llama":
        values["intermediate_size"] = 3 * values["hidden_size"]
    return TypeAdapter(ModelConfig).validate_python({**values, **changes})


def fresh(config: LlamaConfig | GPT2Config) -> Llama | GPT2:
    model = Llama(config) if isinstance(config, LlamaConfig) else GPT2(config)
    initialise(model, seed=1)
    return model


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("preset", sorted(MODEL_PRESETS))
def test_transformers_loads_every_preset_and_gives_the_same_logits(
    tmp_path: Path, preset: str, tied: bool
) -> None:
    model = fresh(small(preset, tie_embeddings=tied))
    write_model(model.config, model.state_dict(), tmp_path)
    same_logits(model, tmp_path)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"head_dim": 16}, "LlamaForCausalLM"),
        ({"window": {"size": 7, "pattern": "SL"}}, "MinistralForCausalLM"),
        ({"qk_norm": "head", "window": {"size": 7, "pattern": "SL"}}, "Qwen3ForCausalLM"),
        ({"qk_norm": "head", "attention_bias": True}, "Qwen3ForCausalLM"),
        ({"norm": "post", "qk_norm": "whole", "attention_bias": True}, "Olmo2ForCausalLM"),
        (
            {"norm": "post", "qk_norm": "whole", "window": {"size": 7, "pattern": "LS"}},
            "Olmo3ForCausalLM",
        ),
        (
            {"qk_norm": "head", "parametrization": "mup", "base_width": 8, "tie_embeddings": False},
            "Qwen3ForCausalLM",
        ),
        (
            {
                "norm": "post",
                "qk_norm": "whole",
                "window": {"size": 7, "pattern": "LS"},
                "rope_theta": 10,
                "rope_scaling": {"kind": "linear", "factor": 4, "original_max_sequence_length": 24},
            },
            "Olmo3ForCausalLM",
        ),
    ],
)
def test_blocks_are_exported_as_the_class_that_has_them(
    tmp_path: Path, fields, name: str, caplog
) -> None:
    model = fresh(small("tiny", **fields))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    write_model(model.config, model.state_dict(), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [name]
    with transformers_warnings(caplog) as warnings:
        same_logits(model, tmp_path, share=2e-5)
    assert warnings == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"norm": "peri"}, "norm peri, qk_norm none, no window;"),
        ({"qk_norm": "whole"}, "norm pre, qk_norm whole, no window;"),
        ({"mlp": "relu2"}, "qk_norm none, no window, mlp relu2;"),
        ({"qk_norm": "head", "mlp_bias": True}, "mlp_bias;"),
        ({"logit_softcap": 30, "window": {"size": 7}}, "a window, logit_softcap;"),
        ({"norm": "post", "qk_norm": "whole", "head_dim": 16}, "head_dim;"),
        ({"attention_bias": True, "window": {"size": 7, "pattern": "S"}}, "attention_bias;"),
    ],
)
def test_blocks_that_no_class_has_are_refused_with_their_fields(tmp_path, fields, words) -> None:
    model = fresh(small("tiny", **fields))
    with pytest.raises(BadConfig, match=f"no class for a model with .*{words} the weights") as why:
        write_model(model.config, model.state_dict(), tmp_path / "out")
    assert "\n" not in str(why.value)
    assert not (tmp_path / "out").exists()


def test_biases_are_exported(tmp_path: Path) -> None:
    model = fresh(small("tiny", attention_bias=True, mlp_bias=True))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith("bias"):
                value.normal_()
    write_model(model.config, model.state_dict(), tmp_path)
    same_logits(model, tmp_path)


@pytest.mark.parametrize("unread", [None, "rope_parameters", "rope_scaling"])
def test_yarn_is_exported_for_each_release_of_transformers(
    tmp_path: Path, unread: str | None, caplog
) -> None:
    # The logits are of 40 tokens. The longest sequence is below factor x original.
    scaling = {"factor": 4, "original_max_sequence_length": 24, "beta_fast": 1, "beta_slow": 0.2}
    model = fresh(small("tiny", rope_theta=10, rope_scaling=scaling))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if ".q_proj." in name:  # Large queries, or positions hardly matter.
                value.mul_(5.0)
    write_model(model.config, model.state_dict(), tmp_path)
    described = json.loads((tmp_path / "config.json").read_text())
    described.pop(unread, None)
    (tmp_path / "config.json").write_text(json.dumps(described))
    with transformers_warnings(caplog) as warnings:
        same_logits(model, tmp_path, share=1e-4)
    assert warnings == []
    # What releases before 5 take for the factor.
    assert described["max_position_embeddings"] == 4 * 24


@pytest.mark.parametrize("preset", ["tiny", "gpt2-tiny"])
def test_both_configs_have_the_ids_of_the_special_tokens(tmp_path: Path, preset: str, caplog):
    from transformers import AutoConfig, GenerationConfig

    model = fresh(small(preset))
    write_model(model.config, model.state_dict(), tmp_path, SpecialIds(256, 256, 7))
    with transformers_warnings(caplog) as warnings:
        for read in (AutoConfig, GenerationConfig):
            found = read.from_pretrained(tmp_path)
            assert (found.bos_token_id, found.eos_token_id, found.pad_token_id) == (256, 256, 7)
    assert warnings == []


@pytest.mark.parametrize("preset", ["tiny", "gpt2-tiny"])
def test_ids_of_published_models_are_never_taken(tmp_path: Path, preset: str) -> None:
    # GPT-2's class has 50256 by default, beyond this vocabulary; Llama's has 1 and 2.
    from transformers import AutoConfig

    model = fresh(small(preset))
    write_model(model.config, model.state_dict(), tmp_path)
    found = AutoConfig.from_pretrained(tmp_path)
    assert (found.bos_token_id, found.eos_token_id, found.pad_token_id) == (None, None, None)
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] is None


def test_model_with_a_stable_embedding_is_refused(tmp_path: Path) -> None:
    model = Llama(small("tiny"))
    use_stable_embedding(model)
    with pytest.raises(BadConfig, match="stable_embedding"):
        write_model(model.config, model.state_dict(), tmp_path / "c")


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
