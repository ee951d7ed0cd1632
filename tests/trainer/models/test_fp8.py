"""FP8 converts only the blocks' linears, trains, and is off in evaluation."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F

from lehr_trainer.configs.execution import Fp8Config
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.models.fp8 import convert_to_fp8, fp8_state, load_fp8_state
from lehr_trainer.models.llama import Llama
from lehr_trainer.models.module_map import initialise

RECIPES = ["tensorwise", "rowwise"]
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def llama(**changes) -> Llama:
    model = Llama(
        LlamaConfig(**{**MODEL_PRESETS["tiny"].values, "num_hidden_layers": 2, **changes})
    )
    initialise(model, seed=0)
    return model


def step(model, seed: int = 0, dtype=torch.bfloat16) -> torch.Tensor:
    tokens = torch.randint(0, 512, (4, 65), generator=torch.Generator().manual_seed(seed))
    model.zero_grad()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        hidden = model(tokens[:, :-1])
    logits = hidden.float() @ model.head_weight.T
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("tied", [True, False])
def test_exactly_the_blocks_linears_are_converted(recipe: str, tied: bool) -> None:
    from torchao.float8.float8_linear import Float8Linear

    model = llama(tie_embeddings=tied)
    parameters = dict(model.named_parameters())
    names = convert_to_fp8(model, Fp8Config(recipe=recipe, emulate=True))
    found = {name for name, module in model.named_modules() if isinstance(module, Float8Linear)}
    assert found == set(names)
    assert sorted(name.rpartition(".")[2] for name in names) == sorted(LINEARS * 2)
    assert not any("lm_head" in name for name in names)
    after = dict(model.named_parameters())
    assert list(after) == list(parameters)
    assert all(after[name] is parameters[name] for name in after)


@pytest.mark.parametrize("recipe", RECIPES)
def test_loss_and_gradients_are_near_those_of_fp32_but_not_equal(recipe: str) -> None:
    plain, fp8 = llama(), llama()
    convert_to_fp8(fp8, Fp8Config(recipe=recipe, emulate=True))
    want, got = step(plain, dtype=torch.float32), step(fp8)
    assert got != want
    assert float(got) == pytest.approx(float(want), abs=0.02)
    for (name, a), b in zip(fp8.named_parameters(), plain.parameters(), strict=True):
        cosine = F.cosine_similarity(a.grad.flatten(), b.grad.flatten(), dim=0)
        assert cosine > 0.95, (name, cosine)  # e4m3 has three bits of mantissa
    weight = fp8.layers[0].mlp.up_proj.weight.grad - plain.layers[0].mlp.up_proj.weight.grad
    assert weight.norm() > 5e-3 * plain.layers[0].mlp.up_proj.weight.grad.norm()


@pytest.mark.parametrize(("recipe", "rows"), [("tensorwise", False), ("rowwise", True)])
def test_a_converted_linear_is_the_product_of_operands_rounded_to_e4m3(recipe, rows) -> None:
    model = llama()
    convert_to_fp8(model, Fp8Config(recipe=recipe, emulate=True))
    linear = model.layers[0].mlp.up_proj
    x = torch.randn(32, 128, generator=torch.Generator().manual_seed(0))

    def rounded(t: torch.Tensor) -> torch.Tensor:
        scale = 448 / (t.abs().amax(1, keepdim=True) if rows else t.abs().amax())
        if rows:  # torchao's rowwise recipe takes powers of two
            scale = torch.exp2(torch.floor(torch.log2(scale)))
        return (t * scale).to(torch.float8_e4m3fn).float() / scale

    want = rounded(x) @ rounded(linear.weight.detach()).T
    assert (linear(x) - want).norm() < 1e-5 * want.norm()


@pytest.mark.parametrize("recipe", RECIPES)
def test_fp8_model_trains(recipe: str) -> None:
    model = llama()
    convert_to_fp8(model, Fp8Config(recipe=recipe, emulate=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(15):
        losses.append(float(step(model)))
        optimizer.step()
    assert losses[-1] < losses[0] - 1.0


@pytest.mark.parametrize("recipe", RECIPES)
def test_evaluation_is_bitwise_that_of_the_unconverted_model(recipe: str) -> None:
    plain, fp8 = llama(), llama()
    convert_to_fp8(fp8, Fp8Config(recipe=recipe, emulate=True))
    tokens = torch.randint(0, 512, (2, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(fp8.eval()(tokens), plain.eval()(tokens))
        assert not torch.equal(fp8.train()(tokens), plain.train()(tokens))


@pytest.mark.parametrize("recipe", [*RECIPES, "te_delayed"])
def test_machine_without_fp8_is_refused(recipe: str) -> None:
    with pytest.raises(BadConfig, match=f"precision.fp8.recipe: {recipe} needs a GPU with FP8"):
        convert_to_fp8(llama(), Fp8Config(recipe=recipe))


def test_torchao_keeps_no_state_and_none_converts_nothing() -> None:
    model = llama()
    assert convert_to_fp8(model, Fp8Config()) == []
    convert_to_fp8(model, Fp8Config(recipe="tensorwise", emulate=True))
    step(model)
    assert fp8_state(model) == {}
    load_fp8_state(model, {})


def test_a_missing_torchao_is_named(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(BadConfig, match="pip install torchao"):
        convert_to_fp8(llama(), Fp8Config(recipe="rowwise", emulate=True))
