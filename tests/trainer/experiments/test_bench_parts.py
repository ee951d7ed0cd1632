"""Kernels and kept memory of each part: closed form, both families of models."""

from __future__ import annotations

import pytest

from lehr_trainer.configs.gpt2 import GPT2_TINY
from lehr_trainer.experiments.bench_parts import PARTS, PartsSubject, part_of
from lehr_trainer.experiments.case import Case, config
from lehr_trainer.experiments.parts import run
from lehr_trainer.experiments.plan import BenchPlan
from lehr_trainer.experiments.sizes import SIZES
from lehr_trainer.models.module_map import _GPT2, _LLAMA

TINY = SIZES["tiny"]


def facts(layers: int, **changes) -> dict:
    model = {**TINY.model, "num_hidden_layers": layers}
    case = Case("x", "parts", config(TINY, "cpu", model=model, **changes))
    return PartsSubject(case).facts({})


def test_each_layer_adds_its_own_parts_and_no_others() -> None:
    two, four = facts(2), facts(4)
    for what in ("kernels", "kept"):
        assert set(two[what]) <= set(PARTS)
        for part in ("attention", "MLP"):
            assert four[what][part] == 2 * two[what][part] > 0
        for part in ("embedding", "head and loss"):
            assert four[what].get(part) == two[what].get(part)
    # Three matrix products of an MLP, its SiLU and its product are five; linears call views, too.
    assert two["kernels"]["MLP"] >= 2 * 5
    # Kept: the two inputs' products, by gate, SiLU(gate), up and their product, in fp32.
    wide = TINY.sequences * TINY.sequence_length * TINY.model["intermediate_size"] * 4
    assert two["kept"]["MLP"] >= 2 * 4 * wide


def test_bf16_halves_what_matrix_products_keep() -> None:
    precise, mixed = facts(2), facts(2, precision={"compute": "bf16"})
    assert mixed["kept"]["norms"] == precise["kept"]["norms"]
    assert mixed["kept"]["MLP"] < 0.7 * precise["kept"]["MLP"]
    assert mixed["kernels"]["MLP"] > precise["kernels"]["MLP"], "autocast casts"


@pytest.mark.parametrize(
    ("path", "names", "part"),
    [
        ("layers.3.self_attn.q_proj", _LLAMA, "attention"),
        ("layers.3.mlp", _LLAMA, "MLP"),
        ("layers.3.post_attention_layernorm", _LLAMA, "norms"),
        ("layers.3", _LLAMA, "rest of the model"),
        ("(model)", _LLAMA, "rest of the model"),
        ("(outside)", _LLAMA, "head and loss"),
        ("norm", _LLAMA, "norms"),
        ("embed_tokens", _LLAMA, "embedding"),
        ("h.0.attn.c_attn", _GPT2, "attention"),
        ("h.0.ln_1", _GPT2, "norms"),
        ("wte", _GPT2, "embedding"),
        ("ln_f", _GPT2, "norms"),
    ],
)
def test_modules_of_both_families_belong_to_their_parts(path, names, part) -> None:
    assert part_of(path, names) == part


def test_gpt2_has_all_parts() -> None:
    case = Case("x", "parts", config(TINY, "cpu", model=GPT2_TINY))
    assert set(PartsSubject(case).facts({})["kernels"]) == set(PARTS)


@pytest.mark.nightly
def test_table_adds_up() -> None:
    table = run(BenchPlan(TINY, "cpu", log=lambda _line: None))
    rows = {row.name: row for row in table.rows}
    assert list(rows) == [*PARTS, "all"]
    for key in ("kernels_fp32", "kernels_bf16", "kept_fp32", "kept_bf16"):
        parts = sum(rows[part].values[key] for part in PARTS)
        assert rows["all"].values[key] == pytest.approx(parts)
    assert rows["all"].values["change"] < 0
