"""Recommended batch sizes against the figures that the publications print."""

from __future__ import annotations

import pytest

from lehr.analysis.batch_size import by_compute, by_size, by_tokens, usual_batches
from lehr_trainer.configs.train import TrainConfig


def train(**changes) -> TrainConfig:
    base = {
        "model": "llama-1b",
        "data": {"corpus": {"kind": "stdlib"}},
        "batch": {"sequences": 512, "sequence_length": 2048},
        "steps": 20_000,
    }
    return TrainConfig.model_validate({**base, **changes})


@pytest.mark.parametrize(
    ("parameters", "millions"),
    [
        # Brown et al. 2020, table 2.1, as printed.
        (125e6, 0.5), (350e6, 0.5), (760e6, 0.5), (1.3e9, 1.0),
        (2.7e9, 1.0), (6.7e9, 2.0), (13e9, 2.0), (175e9, 3.2),
        # The published GPT-2 small, and llama-1b.
        (124_439_808, 0.5), (1_241_581_568, 1.0),
        # Between two rows the nearer one by ratio counts: 1.3 B to 2.7 B meet at 1.87 B,
        # 2.7 B to 6.7 B at 4.25 B.
        (4.2e9, 1.0), (4.3e9, 2.0),
    ],
)  # fmt: skip
def test_batch_by_size_is_the_row_of_the_gpt3_table(parameters: float, millions: float) -> None:
    found = by_size(parameters)
    assert found is not None
    assert found.tokens == pytest.approx(millions * 1e6)


@pytest.mark.parametrize("parameters", [853_120, 100e6, 200e9])
def test_table_says_nothing_beyond_its_ends(parameters: float) -> None:
    assert by_size(parameters) is None


@pytest.mark.parametrize(
    ("layers", "width", "sequences"), [(30, 4096, 2304), (95, 8192, 4608)], ids=["7B", "67B"]
)
def test_batch_by_compute_is_what_deepseek_trained_with(
    layers: int, width: int, sequences: int
) -> None:
    # Table 2 of arXiv:2401.02954: 2 T tokens in sequences of 4,096, batches of so many sequences.
    # Its FLOPs per token: 72 L d^2 + 12 L d T, which is some percent too much for the grouped
    # queries of the 67B.
    flops = (72 * layers * width**2 + 12 * layers * width * 4096) * 2e12
    found = by_compute(flops)
    assert found is not None
    assert found.tokens == pytest.approx(sequences * 4096, rel=0.1)


def test_compute_of_a_run_leaves_embedding_and_head_out() -> None:
    # A Llama with full attention and an MLP of 8/3 d has 12 d^2 weights a layer, as in the source.
    model = {
        "kind": "llama", "vocab_size": 100_000, "hidden_size": 768, "intermediate_size": 2048,
        "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 12,
    }  # fmt: skip
    run = train(model=model, batch={"sequences": 64, "sequence_length": 1024}, steps=10_000)
    tokens = 64 * 1024 * 10_000
    flops = (72 * 12 * 768**2 + 12 * 12 * 768 * 1024) * tokens
    found = {one.source: one.tokens for one in usual_batches(run)}
    assert found["DeepSeek LLM"] == pytest.approx(0.292 * flops**0.3271, rel=1e-3)


def test_batch_by_tokens_follows_step_law() -> None:
    found = by_tokens(1e9, 100e9)
    assert found is not None
    # 10^(log10 0.58 + 11 x 0.571) = 10^6.0444
    assert found.tokens == pytest.approx(1.1077e6, rel=1e-3)
    # A doubled budget: 2^0.571 = 1.4856.
    half = by_tokens(1e9, 50e9)
    assert half is not None
    assert found.tokens / half.tokens == pytest.approx(1.4856, rel=1e-3)


@pytest.mark.parametrize(("parameters", "tokens"), [(2e9, 50e9), (1e9, 1.9e9), (1e9, 101e9)])
def test_step_law_says_nothing_beyond_its_experiments(parameters: float, tokens: float) -> None:
    assert by_tokens(parameters, tokens) is None


def test_each_recommendation_names_source_and_domain() -> None:
    found = usual_batches(train())
    assert [one.source for one in found] == ["GPT-3's table", "Step Law", "DeepSeek LLM"]
    assert all("arXiv:" in one.reference and one.domain for one in found)


def test_tiny_model_has_no_usual_batch() -> None:
    small = {"sequences": 8, "sequence_length": 128}
    assert usual_batches(train(model="tiny", batch=small, steps=100)) == []
