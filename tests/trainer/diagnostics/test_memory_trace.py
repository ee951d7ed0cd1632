"""The memory trace of a real step on fake tensors, and the plan's formula against it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from lehr_trainer.assemble import build_parts, prepare_model
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.course import accumulates
from lehr_trainer.diagnostics.memory_trace import trace_memory, traceable
from lehr_trainer.errors import BadConfig
from lehr_trainer.models.documents import make_input_fn
from lehr_trainer.planning.memory import memory_by_stage, training_memory
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.train import TrainStep

LLAMA: dict[str, Any] = {
    "kind": "llama",
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_sequence_length": 1024,
}
GPT2: dict[str, Any] = {
    "kind": "gpt2",
    "vocab_size": 8192,
    "hidden_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "max_sequence_length": 1024,
}


def sized(sequences: int, micro_batch: int | None = None) -> dict[str, Any]:
    return {"sequences": sequences, "sequence_length": 512, "micro_batch": micro_batch}


def recompute(policy: str, every: int = 1) -> dict[str, Any]:
    return {"activation_checkpointing": {"policy": policy, "every": every}}


MUON: dict[str, Any] = {
    "name": "muon",
    "coefficients": "polar_express",
    "normuon_beta": 0.95,
    "qkv_heads": 1,
    "cautious_weight_decay": True,
}
MASKED = {"data": {"corpus": {"kind": "stdlib"}, "loss_mask": "document_starts"}}
BOTH_PRECISIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulating": {"batch": sized(16, 4)},
    "norms": recompute("norms"),
    "attention": recompute("attention"),
    "mlp": recompute("swiglu"),
    "block": recompute("block"),
    "every-second-block": recompute("block", 2),
    "standard": {"loss": {"name": "standard"}},
    "standard-z-loss": {"loss": {"name": "standard", "z_loss": 1e-4}},
    "masked-z-loss": {**MASKED, "loss": {"z_loss": 1e-4}},
    "in-autocast": {"loss": {"name": "in_autocast"}},
    "bf16-softmax": {"loss": {"name": "bf16_softmax"}},
    "torch-chunked": {"loss": {"name": "torch_chunked"}},
    "small-chunks": {"loss": {"chunk_mb": 16}},
    "muon": {"batch": sized(2), "optimizer": {"name": "muon"}},
    "muon-of-today": {"batch": sized(2), "optimizer": MUON},
    "unfused": {"batch": sized(2), "optimizer": {"fused": False}},
    "8-ranks": {"batch": sized(64)},
    "muon-8-ranks": {"batch": sized(16), "optimizer": {"name": "muon", "batch_mb": 1}},
    "8-ranks-accumulating": {"batch": sized(64, 4)},
    "block-accumulating": {"batch": sized(4, 1), **recompute("block")},
}
BF16_ALONE: dict[str, dict[str, Any]] = {
    "untied": {"model": {"tie_embeddings": False}},
    "untied-accumulating": {"model": {"tie_embeddings": False}, "batch": sized(8, 2)},
    "fp16": {"precision": {"compute": "fp16"}},
    "math": {"attention": {"backend": "math"}},
    "documents": {"attention": {"document_masking": True}},
    "stable-embedding": {"model": {"stable_embedding": True}},
    "wide-vocabulary": {"model": {"vocab_size": 50_000}, "batch": sized(2)},
    # Most of its backward pass are two gradients of tied weights, which are added up in place.
    "tied-accumulating": {
        "model": {"vocab_size": 50_000},
        "batch": sized(2, 1),
        **recompute("block"),
    },
    "stages": {
        "batch": {
            "sequences": 16,
            "sequence_length": 256,
            "micro_batch": 8,
            "stages": [{"after": 0.5, "sequence_length": 1024}],
        }
    },
}
BLOCKS: dict[str, Any] = {"compile": {"scope": "block"}}
COMPILED: dict[str, dict[str, Any]] = {
    f"compiled-{name}": {**BOTH_PRECISIONS[name], **BLOCKS}
    for name in (
        *("plain", "accumulating", "norms", "attention", "mlp", "block", "every-second-block"),
        *("small-chunks", "8-ranks"),
    )
}
COMPILED_BF16_ALONE: dict[str, dict[str, Any]] = {
    **{f"compiled-{name}": {**BF16_ALONE[name], **BLOCKS} for name in BF16_ALONE},
    "residual": {"precision": {"residual": "bf16"}},
    "compiled-residual": {**BLOCKS, "precision": {"residual": "bf16"}},
    "compiled-loss": {**BLOCKS, "loss": {"pointwise": "compiled"}},
}
EIGHT_BITS: dict[str, dict[str, Any]] = {
    f"{library}{'-untied' if not tied else ''}": {
        "batch": sized(2),
        "optimizer": {"name": "adamw8bit", "library": library},
        "model": {"tie_embeddings": tied},
    }
    for library in ("bitsandbytes", "torchao")
    for tied in (True, False)
}
FP8: dict[str, dict[str, Any]] = {
    f"{recipe}-{scope}-{policy}": {
        # Only a run on CUDA computes in FP8, so that is what is traced.
        "device": "auto",
        "precision": {"fp8": {"recipe": recipe}},
        "compile": {"scope": scope},
        **BOTH_PRECISIONS[policy],
    }
    for recipe in ("tensorwise", "rowwise")
    for scope in ("block", "none")
    for policy in ("plain", "mlp", "block")
}
IN_BF16 = BOTH_PRECISIONS | BF16_ALONE | COMPILED | COMPILED_BF16_ALONE | EIGHT_BITS | FP8
IN_FP32 = BOTH_PRECISIONS | COMPILED | EIGHT_BITS


def one(shape: dict[str, Any], compute: str, changes: dict[str, Any]) -> dict[str, Any]:
    return {
        "batch": sized(8),
        **changes,
        "precision": {"compute": compute, **changes.get("precision", {})},
        "model": {**shape, **changes.get("model", {})},
    }


GRID: dict[str, dict[str, Any]] = {
    f"{model}-{compute}-{name}": one(shape, compute, changes)
    for model, shape in (("llama", LLAMA), ("gpt2", GPT2))
    for compute, sets in (("bf16", IN_BF16), ("fp32", IN_FP32))
    for name, changes in sets.items()
}
for joined in ("none", "block"):
    GRID[f"llama-bf16-joint-products-{joined}"] = one(
        LLAMA, "bf16", {"compile": {"scope": joined, "joint_products": True}}
    )
GRID["llama-fp32-average-stages"] = one(
    LLAMA,
    "fp32",
    {
        "average": {"last": 3, "every": 2},
        "stages": [
            {"tokens": 65_536},
            {
                "tokens": 65_536,
                "batch": {"sequences": 2, "micro_batch": 1},
                "model": {"max_sequence_length": 16_384},
                "loss": {"z_loss": 1e-4},
            },
        ],
    },
)
for shard in ("optimizer", "node", "all"):
    for name, changes in {
        "": {},
        "-muon": {"optimizer": {"name": "muon"}},
        "-muon-of-today": {"optimizer": MUON},
        "-block": {"activation_checkpointing": {"policy": "block"}},
        "-bitsandbytes": {"optimizer": {"name": "adamw8bit"}},
        "-torchao": {"optimizer": {"name": "adamw8bit", "library": "torchao"}},
        "-tensorwise": FP8["tensorwise-none-plain"],
        "-tensorwise-block": FP8["tensorwise-none-block"],
    }.items():
        GRID[f"llama-bf16-8-ranks-{shard}{name}"] = one(
            LLAMA, "bf16", {"parallel": {"shard": shard}, **changes}
        )
for blocks, fields in {
    "qwen3": {"qk_norm": "head", "head_dim": 128},
    "olmo2": {"norm": "post", "qk_norm": "whole"},
    "peri-windows": {"norm": "peri", "window": {"size": 128, "pattern": "SSL"}},
    "gelu": {"mlp": "gelu"},
    "relu2": {"mlp": "relu2"},
    "softcap": {"logit_softcap": 30.0},
}.items():
    for name, changes in {
        "": {},
        "-block": recompute("block"),
        "-mlp": recompute("swiglu"),
        "-standard": {"loss": {"name": "standard"}},
        "-documents": {"attention": {"document_masking": True}},
        "-compiled": BLOCKS,
        "-compiled-block": {**BLOCKS, **recompute("block")},
    }.items():
        GRID[f"llama-bf16-{blocks}{name}"] = one(LLAMA, "bf16", {**changes, "model": fields})
    GRID[f"llama-fp32-{blocks}"] = one(LLAMA, "fp32", {"model": fields})
QUICK = {
    "llama-bf16-qwen3-block",
    "llama-bf16-olmo2",
    "llama-bf16-peri-windows",
    "llama-bf16-relu2",
    "llama-bf16-softcap-standard",
    "llama-bf16-8-ranks-optimizer",
    "llama-bf16-8-ranks-all-muon-of-today",
    "llama-bf16-8-ranks-all-bitsandbytes",
    "llama-bf16-8-ranks-all-tensorwise",
    "llama-fp32-average-stages",
    "llama-bf16-block",
    "llama-bf16-masked-z-loss",
    "llama-bf16-8-ranks",
    "gpt2-bf16-muon",
    "llama-bf16-muon-of-today",
    "llama-bf16-bitsandbytes",
    "llama-bf16-tensorwise-none-plain",
}
"""One or two of each kind; the others are traced at night, and with them what is compiled."""


def config(**values: Any) -> TrainConfig:
    steps = None if "stages" in values else 10
    defaults = {"data": {"corpus": {"kind": "stdlib"}}, "steps": steps, "device": "cpu"}
    return TrainConfig.model_validate({**defaults, **values})


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.nightly) for name in GRID],
)
def test_formula_and_trace_agree_in_every_phase(name: str) -> None:
    ranks = 8 if "8-ranks" in name else 1
    trace = trace_memory(config(**GRID[name]), ranks)
    plans = memory_by_stage(trace.config, ranks)
    assert [plan.shape for plan in plans] == [stage.shape for stage in trace.stages]
    for plan, stage in zip(plans, trace.stages, strict=True):
        planned = {phase: moment.total for phase, moment in plan.phases.items()}
        traced = {phase: moment.total for phase, moment in stage.phases.items()}
        assert planned == pytest.approx(traced, rel=0.05)
        assert plan.peak == pytest.approx(stage.peak.total, rel=0.02)
        assert plan.kept == pytest.approx(stage.phases["loss"].activations, rel=0.02)
        for kind in ("parameters", "gradients", "optimizer"):
            for phase in ("resting", "loss", "optimizer"):
                expected = getattr(stage.phases[phase], kind)
                found = getattr(plan.phases[phase], kind)
                if kind == phase and "torchao" in name:  # What it decodes counts as its state.
                    expected += stage.phases[phase].temporaries
                    found += plan.phases[phase].temporaries
                assert found == pytest.approx(expected, rel=0.01, abs=2**16), (phase, kind)
    # The formula divides vectors among the ranks, too; each has them whole, as it has the tables
    # of 8-bit codes, which it does not count.
    assert max(plan.checkpoint_copy for plan in plans) == pytest.approx(
        trace.checkpoint_copy, rel=3e-3, abs=2**17
    )


# Each compiles for seconds. planning/test_memory.py shows that a plan names its bounds.
@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["plain", "block"])
@pytest.mark.parametrize("model", ["llama-bf16", "gpt2-bf16"])
def test_compiled_model_keeps_to_the_bounds_that_a_plan_names(model: str, policy: str) -> None:
    """Over all layers at once the compiler keeps and computes again what no formula counts."""
    values = {**GRID[f"{model}-compiled-{policy}"], "compile": {"scope": "model"}}
    trace = trace_memory(config(**values))
    (plan,), (stage,) = memory_by_stage(trace.config, 1), trace.stages
    for phase, moment in plan.phases.items():
        assert 0.97 <= stage.phases[phase].total / moment.total <= 1.12, phase
    assert stage.peak.total == pytest.approx(plan.peak, rel=0.03)


def test_the_trace_shows_what_the_allocator_hands_out() -> None:
    """The same step on real tensors, by the account of torch's allocator."""
    shape = {**LLAMA, "vocab_size": 2048, "hidden_size": 128, "intermediate_size": 512}
    asked = config(
        model={**shape, "num_hidden_layers": 2},
        batch={"sequences": 16, "sequence_length": 128, "micro_batch": 8},
        precision={"compute": "fp32"},
    ).on("cpu")
    traced = trace_memory(asked).stages[0]

    ranks = Ranks(0, 1, torch.device("cpu"))
    precision = Precision.choose(asked.precision, ranks.device)
    parts = build_parts(asked, ranks, precision)

    class Batches:
        def micro_steps(self, _step: int) -> int:
            return 2

        counted = None

        def batch(self, _step: int, _micro_step: int) -> tuple[torch.Tensor, torch.Tensor]:
            tokens = torch.arange(8 * 128).view(8, 128)
            return tokens, tokens

    class NoPhases:
        def phase(self, _name: str) -> Any:
            return torch.enable_grad()

    step = TrainStep(
        config=asked,
        ranks=ranks,
        precision=precision,
        model=parts.model,
        wrapped=parts.model,
        make_input=make_input_fn(None),
        loss=parts.loss,
        optimizer=parts.optimizer,
        update_step=parts.update_step,
        accumulation=prepare_model(
            parts.model, asked, ranks, accumulates=accumulates(asked, ranks)
        ),
        profiler=NoPhases(),
    )

    def take_step() -> None:
        step.update(step.backward(0, Batches()).mean)

    take_step()  # The optimizer's state.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        take_step()
    events = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]
    sizes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    most = traced.phases["resting"].total + max(itertools.accumulate(sizes))
    assert traced.peak.total == pytest.approx(most, rel=0.02)


def test_the_trace_of_a_cuda_run_names_what_differs() -> None:
    asked = config(model=LLAMA, batch=sized(8), device="auto", attention={"backend": "fa3"})
    traced, notes = traceable(asked, "cpu")
    assert traced.precision.compute == "bf16"
    assert (traced.device, traced.attention.backend) == ("cpu", "auto")
    assert notes == ("a CPU's kernels, not a GPU's", "attention.backend fa3 is traced as auto")
    on_gpu, notes = traceable(asked, "cuda")
    assert (on_gpu.device, on_gpu.attention.backend) == ("cuda", "fa3")
    assert notes == ()


def test_a_run_for_the_cpu_is_traced_on_one_beside_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config(model={**LLAMA, "num_hidden_layers": 1}, batch=sized(8))
    without = trace_memory(asked)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: pytest.fail("CUDA was started"))
    assert trace_memory(asked) == without
    assert (without.device, without.config.device) == ("cpu", "cpu")


@pytest.mark.parametrize(
    ("changes", "ranks", "message"),
    [
        ({"precision": {"fp8": {"recipe": "rowwise"}}}, 1, "rowwise needs a GPU with FP8"),
        (
            {"precision": {"fp8": {"recipe": "te_delayed"}}, "device": "auto"},
            1,
            "precision.fp8.recipe: te_delayed cannot be traced",
        ),
        ({"loss": {"name": "liger"}}, 1, "loss.name: liger"),
        ({}, 3, "8 sequences a step cannot be shared by 3 ranks"),
    ],
    ids=str,
)
def test_what_cannot_be_traced_is_named(changes: dict[str, Any], ranks: int, message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        trace_memory(config(model=LLAMA, batch=sized(8), **changes), ranks)


def test_a_unfused_norm_is_planned_for_a_cpu_only() -> None:
    """docs/trainer.md: 4.4 GB for llama-1b at [8, 2048]."""
    values = {
        "model": "llama-1b",
        "batch": {"sequences": 8, "sequence_length": 2048},
        "precision": {"compute": "bf16"},
        "compile": {"scope": "none"},
    }
    on_cpu = training_memory(config(**values))
    on_cuda = training_memory(config(**values, device="cuda"))
    assert on_cpu.kept - on_cuda.kept == 33 * 2048 * 4 * 8 * 2048
