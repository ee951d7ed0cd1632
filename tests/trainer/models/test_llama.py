"""This Llama matches transformers' Llama, and the published run's size and first loss."""

from __future__ import annotations

import collections
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from pydantic import ValidationError
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lehr_trainer.configs.execution import ParallelConfig
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.losses.chunked import cross_entropy
from lehr_trainer.models import build_model
from lehr_trainer.models.llama import Llama, rotary_tables
from lehr_trainer.planning.counts import flops_per_token, parameter_counts
from lehr_trainer.runtime.distributed import Ranks

SMALL = {
    **MODEL_PRESETS["tiny"].values,
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "max_sequence_length": 128,
}
SHAPES = {
    "grouped query, tied": SMALL,
    "untied": {**SMALL, "tie_embeddings": False},
    "no grouping": {**SMALL, "num_key_value_heads": 4},
    "with biases": {**SMALL, "attention_bias": True, "mlp_bias": True},
    "the 1.2B run's rotary base": {**SMALL, "rope_theta": 500_000.0},
    "YaRN": {**SMALL, "rope_scaling": {"factor": 4, "original_max_sequence_length": 32}},
    "linear": {
        **SMALL,
        "rope_scaling": {"kind": "linear", "factor": 4, "original_max_sequence_length": 32},
    },
}
ODD = {"hidden_size": 54, "intermediate_size": 97, "num_attention_heads": 3, "head_dim": 22}
WINDOW = {"window": {"size": 7, "pattern": "SLS"}}
FAMILIES = {
    name: {
        **MODEL_PRESETS[name].values,
        **{key: SMALL[key] for key in ("vocab_size", "num_hidden_layers", "max_sequence_length")},
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    for name in ("llama3-8b", "qwen3-0.6b", "qwen3-8b", "olmo2-1b")
}
SHAPES |= FAMILIES
for name, kv_heads in (("llama3-8b", 1), ("qwen3-8b", 3), ("qwen3-0.6b", 1)):
    SHAPES[f"{name}, odd"] = {**FAMILIES[name], **ODD, "num_key_value_heads": kv_heads}
SHAPES["olmo2-1b, odd"] = {
    **FAMILIES["olmo2-1b"],
    "hidden_size": 90,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
SHAPES |= {f"{name}, windows": {**values, **WINDOW} for name, values in FAMILIES.items()}
# What no class of transformers has.
OTHERS = {
    "peri": {**SMALL, "norm": "peri", "mlp_bias": True},
    "two matrices": {**SMALL, "mlp": "gelu", "qk_norm": "whole", "mlp_bias": True},
    "relu2": {**SMALL, "mlp": "relu2", "norm": "post", "head_dim": 8, "attention_bias": True},
}


def their_config(config: LlamaConfig) -> Any:
    import transformers

    family = {("pre", "none"): "Llama", ("pre", "head"): "Qwen3", ("post", "whole"): "Olmo2"}
    name, more = family[config.norm, config.qk_norm], dict[str, Any]()
    if config.window is not None:
        name = {"Llama": "Ministral", "Qwen3": "Qwen3", "Olmo2": "Olmo3"}[name]
        layers = ["sliding_attention" if i % 3 != 1 else "full_attention" for i in range(3)]
        more = {"sliding_window": 7, "use_sliding_window": True, "layer_types": layers}
    if config.head_dim is not None or name != "Olmo2":
        more["head_dim"] = config.head_size
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rope_scaling is not None:
        scaling = config.rope_scaling.model_dump(exclude={"kind", "original_max_sequence_length"})
        original = config.rope_scaling.original_max_sequence_length
        rope |= {"rope_type": "yarn", "original_max_position_embeddings": original, **scaling}
        if config.rope_scaling.kind == "linear":
            rope |= {"rope_type": "linear"}
    return getattr(transformers, f"{name}Config")(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        max_position_embeddings=config.max_sequence_length,
        rms_norm_eps=config.norm_eps,
        rope_parameters=rope,
        tie_word_embeddings=config.tie_embeddings,
        attention_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        attn_implementation="eager",
        pad_token_id=None,
        **more,
    )


def theirs(config: LlamaConfig) -> torch.nn.Module:
    import transformers

    described = their_config(config)
    name = type(described).__name__.replace("Config", "ForCausalLM")
    return getattr(transformers, name)(described).float()


def test_rotary_tables_are_those_of_exact_angles_at_long_positions() -> None:
    long = {**SMALL, "rope_theta": 500_000.0, "max_sequence_length": 32_768}
    cos, sin = rotary_tables(LlamaConfig.model_validate(long))
    assert cos.dtype == sin.dtype == torch.float32
    for position in (1, 100, 8191, 32_767):
        for pair in range(8):
            angle = position / 500_000 ** (2 * pair / 16)
            for table, value in ((cos, math.cos(angle)), (sin, math.sin(angle))):
                # Both halves; the one rounding of the table's fp32 is allowed.
                assert table[position, pair].item() == pytest.approx(value, abs=6e-8)
                assert table[position, pair + 8].item() == table[position, pair].item()


@pytest.mark.parametrize(
    ("longest", "theta", "scaling"),
    [
        (512, 1e4, {"factor": 4, "original_max_sequence_length": 128}),
        (512, 5e5, {"factor": 3.5, "original_max_sequence_length": 256}),
        (512, 1e4, {"factor": 2, "original_max_sequence_length": 400, "beta_fast": 8, "beta_slow": 2}),
        # One frequency, none and all between the two limits.
        (512, 1e4, {"factor": 4, "original_max_sequence_length": 128, "beta_slow": 31.5}),
        (64, 1e4, {"factor": 16, "original_max_sequence_length": 4}),
        (512, 2.0, {"factor": 2, "original_max_sequence_length": 300}),
    ],
)  # fmt: skip
def test_yarn_tables_are_those_of_transformers(longest: int, theta: float, scaling: Any) -> None:
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    values = {**SMALL, "hidden_size": 256, "max_sequence_length": longest, "rope_theta": theta}
    config = LlamaConfig.model_validate({**values, "rope_scaling": scaling})
    want = LlamaRotaryEmbedding(their_config(config))(torch.ones(1), torch.arange(longest)[None])
    plain = rotary_tables(LlamaConfig.model_validate(values))
    for own, theirs_, unscaled in zip(rotary_tables(config), want, plain, strict=True):
        torch.testing.assert_close(own, theirs_[0], rtol=0, atol=1e-4)  # Their angles are fp32.
        assert gap(own, unscaled) > 0.05


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 1}, "greater than 1"),
        ({"factor": 3.9}, "factor 3.9 x .* 32 is below max_sequence_length 128; .* at least 4$"),
        ({"original_max_sequence_length": 128}, "128 is not below max_sequence_length 128"),
        ({"beta_slow": 32}, "beta_fast 32 is not above beta_slow 32"),
    ],
)
def test_scaling_that_cannot_extend_the_context_is_refused(changes: Any, message: str) -> None:
    scaling = {"factor": 4, "original_max_sequence_length": 32, **changes}
    with pytest.raises(ValidationError) as refusal:
        LlamaConfig.model_validate({**SMALL, "rope_scaling": scaling})
    (problem,) = refusal.value.errors()
    assert re.search(message, problem["msg"])


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Ranks]:
    """A process group of one."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield Ranks(0, 1, torch.device("cpu"), dist.group.WORLD)
    dist.destroy_process_group()


LONGER = {"factor": 4, "original_max_sequence_length": 128}


@pytest.mark.parametrize(
    "changes",
    [{"rope_theta": 1e6}, {"max_sequence_length": 512, "rope_scaling": LONGER}],
    ids=["same length", "longer"],
)
@pytest.mark.parametrize("how", ["eager", "compiled", "DDP"])
def test_model_with_new_rotary_tables_equals_one_built_with_them(
    how: str, changes: Any, ranks: Ranks
) -> None:
    model = build_model(LlamaConfig.model_validate(SMALL), device="cpu", seed=0)
    assert isinstance(model, Llama)
    later = LlamaConfig.model_validate({**SMALL, **changes})
    other = build_model(later, device="cpu", seed=0)
    if how == "compiled":
        model.compile(backend="aot_eager", fullgraph=True, dynamic=False)
    called = ranks.wrap(model, ParallelConfig()) if how == "DDP" else model
    tokens = torch.randint(0, 300, (2, 128), generator=torch.Generator().manual_seed(0))
    before = called(tokens)
    before.sum().backward()
    model.zero_grad(set_to_none=False)
    memory = model.rotary_cos.data_ptr()

    model.set_rotary(later)

    assert gap(called(tokens), before) > 0.01
    assert (model.rotary_cos.data_ptr() == memory) == ("max_sequence_length" not in changes)
    assert model.config == later
    for (name, table), (_, built) in zip(model.named_buffers(), other.named_buffers(), strict=True):
        assert torch.equal(table, built), name
    assert model.state_dict().keys() == other.state_dict().keys()
    for length in {128, later.max_sequence_length}:
        tokens = torch.randint(0, 300, (1, length))
        hidden, want = called(tokens), other(tokens)
        torch.testing.assert_close(hidden, want)
        hidden.square().sum().backward()
        want.square().sum().backward()
    for own, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(own.grad, expected.grad)


def their_name(name: str) -> str:
    return name if name.startswith("lm_head") else f"model.{name}"


def gap(got: torch.Tensor, want: torch.Tensor) -> float:
    return float(((got - want).norm() / want.norm()).detach())


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_every_gradient_match_transformers(shape: str) -> None:
    config = LlamaConfig.model_validate(SHAPES[shape])
    model, other = build_model(config, device="cpu", seed=1), theirs(config)
    with torch.no_grad():
        # Norms and biases away from 1 and 0, or a mistake in them could not be seen.
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    state = {their_name(name): tensor for name, tensor in model.state_dict().items()}
    if config.tie_embeddings:
        state["lm_head.weight"] = model.embed_tokens.weight
    other.load_state_dict(state)

    tokens = torch.randint(
        0, config.vocab_size, (3, 96), generator=torch.Generator().manual_seed(0)
    )
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    hidden = model(inputs)
    their_logits = other(inputs).logits
    assert gap(hidden @ model.head_weight.t(), their_logits) < 1e-5

    cross_entropy(hidden, model.head_weight, targets).backward()
    F.cross_entropy(their_logits.flatten(0, 1), targets.flatten()).backward()
    gradients = {name: parameter.grad for name, parameter in other.named_parameters()}
    names = [name for name, _ in model.named_parameters()]
    assert len(names) == len(gradients)
    for name, parameter in model.named_parameters():
        assert gap(parameter.grad, gradients[their_name(name)]) < 1e-5, name


def test_a_later_token_changes_no_earlier_state() -> None:
    model = build_model(LlamaConfig.model_validate(SMALL), device="cpu", seed=0)
    tokens = torch.randint(0, 300, (1, 32))
    changed = tokens.clone()
    changed[0, 20] = (changed[0, 20] + 1) % 300
    before, after = model(tokens), model(changed)
    assert torch.equal(before[0, :20], after[0, :20])
    assert not torch.allclose(before[0, 20:], after[0, 20:])


def test_documents_packed_with_a_mask_equal_documents_alone() -> None:
    model = build_model(LlamaConfig.model_validate(SMALL), device="cpu", seed=0)
    first, second = torch.randint(0, 300, (1, 20)), torch.randint(0, 300, (1, 12))
    ids = torch.tensor([[0] * 20 + [1] * 12])
    packed = model(torch.cat([first, second], dim=1), ids)
    assert gap(packed[:, :20], model(first)) < 1e-5
    assert gap(packed[:, 20:], model(second)) < 1e-5


def test_published_llama_has_its_published_number_of_parameters() -> None:
    config = LlamaConfig.model_validate(MODEL_PRESETS["llama-1b"].values)
    with torch.device("meta"):
        model = Llama(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == 1_241_581_568
    assert parameter_counts(config).total == 1_241_581_568


@pytest.mark.parametrize("shape", [*SHAPES, *OTHERS])
def test_counted_parameters_are_those_of_the_model(shape: str) -> None:
    config = LlamaConfig.model_validate((SHAPES | OTHERS)[shape])
    with torch.device("meta"):
        model = Llama(config)
    counts = parameter_counts(config)
    assert counts.total == sum(parameter.numel() for parameter in model.parameters())
    in_layers = sum(p.numel() for name, p in model.named_parameters() if ".layers." in f".{name}")
    of_norms = sum(p.numel() for name, p in model.named_parameters() if "norm" in name)
    assert counts.norms == of_norms
    assert counts.layers == in_layers - of_norms + config.hidden_size
    matrices = [
        p for name, p in model.named_parameters() if ".layers." in f".{name}" and p.ndim == 2
    ]
    counted = {(rows, columns): number for rows, columns, number in counts.matrices}
    assert counted == collections.Counter(tuple(matrix.shape) for matrix in matrices)


def test_flops_of_the_published_llama_are_8_25_billion_a_token() -> None:
    config = LlamaConfig.model_validate(MODEL_PRESETS["llama-1b"].values)
    assert flops_per_token(config, 2048) == pytest.approx(8.25e9, rel=1e-3)


def test_flops_equal_what_torch_counts() -> None:
    config = LlamaConfig.model_validate(SMALL)
    model = build_model(config, device="cpu", seed=0)
    tokens = torch.randint(0, 300, (2, 128))
    # The math kernel's products are plain ones, each counted once.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        (model(tokens) @ model.head_weight.t()).sum().backward()
    per_token = counter.get_total_flops() / tokens.numel()
    norms = 6 * parameter_counts(config).norms
    assert per_token == pytest.approx(flops_per_token(config, 128) - norms, rel=1e-6)


# --- first weights ---------------------------------------------------------------------------


@pytest.mark.parametrize("tied", [True, False])
def test_the_first_loss_is_ln_vocab_plus_half_the_logits_variance(tied: bool) -> None:
    config = LlamaConfig.model_validate(
        {**SMALL, "vocab_size": 2048, "hidden_size": 256, "tie_embeddings": tied}
    )
    model = build_model(config, device="cpu", seed=3)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 2048, (8, 65), generator=generator)
    hidden = model(tokens[:, :-1])
    variance = (hidden @ model.head_weight.t()).var().item()
    loss = cross_entropy(hidden, model.head_weight, tokens[:, 1:]).item()
    assert loss == pytest.approx(math.log(2048) + variance / 2, abs=0.1)


def test_initial_standard_deviations_match_the_published_run() -> None:
    config = LlamaConfig.model_validate({**SMALL, "hidden_size": 256, "intermediate_size": 1024})
    model = build_model(config, device="cpu", seed=0)
    residual = 256**-0.5 / (2 * config.num_hidden_layers) ** 0.5
    expected = {
        "embed_tokens": 0.02,
        "q_proj": 256**-0.5,
        "k_proj": 256**-0.5,
        "v_proj": 256**-0.5,
        "o_proj": residual,
        "gate_proj": 256**-0.5,
        "up_proj": 256**-0.5,
        "down_proj": residual,
    }
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            want = expected[name.split(".")[-2]]
            assert parameter.std().item() == pytest.approx(want, rel=0.03), name
        else:
            assert torch.equal(parameter, torch.ones_like(parameter))


def test_a_seed_gives_the_same_weights_and_another_seed_others() -> None:
    config = LlamaConfig.model_validate(SMALL)
    one, same, other = (build_model(config, device="cpu", seed=s) for s in (5, 5, 6))
    for (name, a), b, c in zip(
        one.named_parameters(), same.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b), name
        assert a.ndim == 1 or not torch.equal(a, c), name


def test_norm_under_autocast_computes_in_fp32_and_returns_bf16() -> None:
    model = build_model(LlamaConfig.model_validate(SMALL), device="cpu", seed=0)
    x = torch.randn(4, 64) * 1e4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = model.norm(x)
    want = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt()
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, want.bfloat16())
