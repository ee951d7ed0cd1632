"""The memory plan against what autograd keeps, and the table of GPUs."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from lehr_testing.assembled import begin, recorded
from lehr_testing.paths import ROOT
from lehr_testing.specs import train
from lehr_testing.specs import train as train_values
from lehr_trainer.configs.loss import LOSSES, LossConfig, LossName
from lehr_trainer.configs.optimizer import BaseOptimizerConfig, OptimizerConfig
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.sizes import HeadSize
from lehr_trainer.configs.train import LlamaConfig, TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.planning import hardware
from lehr_trainer.planning.counts import checkpoint_plan, parameter_counts
from lehr_trainer.planning.hardware import GPUS, GpuType, find_gpu, peak_flops, usual_mfu
from lehr_trainer.planning.memory import memory_by_stage, not_counted, training_memory


def config(
    model: str | dict[str, Any], sequences: int, length: int, **changes: object
) -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "model": model,
            "data": {"corpus": {"kind": "stdlib"}},
            "batch": {"sequences": sequences, "sequence_length": length},
            "steps": 1,
            **changes,
        }
    )


def test_planned_optimizer_step_matches_the_published_peak() -> None:
    plan = training_memory(config("llama-1b", 16, 2048, device="cpu"))
    assert plan.stages["optimizer"] == pytest.approx(19.87e9, rel=1e-3)
    resting = plan.phases["resting"]
    assert resting.parameters + resting.optimizer == pytest.approx(14.90e9, rel=1e-3)


def test_fp32_activations_are_within_a_tenth_of_the_published_6_2_gb() -> None:
    plan = training_memory(config("llama-1b", 1, 2048, device="cpu"))
    assert plan.kept == pytest.approx(6.2e9, rel=0.1)


def test_mask_of_all_pairs_is_planned_where_a_kernel_takes_one() -> None:
    sequences, length = 4, 512

    def planned(device: str, backend: str, *, masked: bool) -> int:
        attention = {"backend": backend, "document_masking": masked}
        changes = {"device": device, "precision": {"compute": "bf16"}, "attention": attention}
        return training_memory(config("tiny", sequences, length, **changes)).kept

    layers = LlamaConfig(**MODEL_PRESETS["tiny"].values).num_hidden_layers
    # Each layer keeps the mask in the operands' type; all share the bool one.
    pairs = sequences * length**2
    for device, backend, bytes_of_a_pair in (
        ("cpu", "auto", 1 + 2 * layers),
        ("cuda", "efficient", 1 + 2 * layers),
        ("cuda", "auto", 0),
        # Its mask is added to scores that it keeps anyway.
        ("cuda", "math", 1),
    ):
        with_masks, without = (planned(device, backend, masked=on) for on in (True, False))
        assert with_masks - without == pairs * bytes_of_a_pair, (device, backend)


def test_smaller_micro_batches_and_more_ranks_take_less() -> None:
    fp32 = {"precision": {"compute": "fp32"}}  # Without 16-bit copies of weights, which stay.
    batch = {"sequences": 64, "sequence_length": 2048, "micro_batch": 8}
    whole = training_memory(config("llama-1b", 64, 2048, **fp32))
    halves = training_memory(config("llama-1b", 64, 2048, **fp32, batch=batch))
    spread = training_memory(config("llama-1b", 64, 2048, **fp32), world_size=8)
    assert halves.kept * 8 == whole.kept
    assert spread.kept == halves.kept
    in_forward = [bool(plan.phases["forward"].gradients) for plan in (halves, spread, whole)]
    assert in_forward == [True, True, False]


def test_each_stage_is_planned_as_a_run_with_the_positions_that_the_longest_needs() -> None:
    average = {"ema": 0.9, "every": 1}
    model = {"max_sequence_length": 4096}
    long = {"loss": {"name": "chunked"}, "validation": {"micro_batch": 1}}
    stages = [
        {"tokens": 512},
        {"name": "long", "tokens": 512, "batch": {"sequence_length": 256}, "model": model, **long},
    ]
    staged = config("tiny", 8, 64, steps=None, stages=stages, average=average)
    plans = memory_by_stage(staged)
    assert [(plan.stage, plan.shape) for plan in plans] == [("1", (8, 64)), ("long", (2, 256))]
    shape = {"preset": "tiny", **model}
    alone = [
        config(shape, 8, 64, steps=2, average=average),
        config(shape, 2, 256, steps=2, average=average, **long),
    ]
    assert [plan.phases for plan in plans] == [training_memory(one).phases for one in alone]


# --- a formula for every technique ------------------------------------------------------------


def test_each_optimizer_has_its_own_memory_formulas() -> None:
    union, *_ = get_args(OptimizerConfig)
    for optimizer in get_args(union):
        assert issubclass(optimizer, BaseOptimizerConfig)
        # Not inherited: an optimizer that extends another one states its own.
        assert {"state_bytes", "update_workspace_bytes"} <= vars(optimizer).keys(), optimizer


def test_an_optimizer_without_formulas_cannot_be_made() -> None:
    class Lion(BaseOptimizerConfig):
        lr: float = 1e-4

    with pytest.raises(TypeError, match="state_bytes"):
        Lion()


def test_each_loss_has_a_memory_formula() -> None:
    assert LOSSES.keys() == set(get_args(LossName))
    head = HeadSize(tokens=2048, hidden=64, vocabulary=4096, half=True)
    for name in LOSSES:
        loss = LossConfig(name=name)
        assert max(loss.forward_bytes(head), loss.backward_bytes(head)) > head.operand_bytes


# --- GPUs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "bf16", "gib"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", 989.4e12, 79.1),
        ("NVIDIA H100 PCIe", "H100", 756e12, 79.1),
        ("NVIDIA H100 NVL", "H100", 835.5e12, 93.0),
        ("NVIDIA H200", "H200", 989.4e12, 139.8),
        ("NVIDIA A100-SXM4-80GB", "A100", 312e12, 79.1),
        ("NVIDIA A100-SXM4-40GB", "A100", 312e12, 39.4),
        ("NVIDIA A10", "A10", 125e12, 22.0),
        ("NVIDIA A10G", "A10G", 70e12, 22.0),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 165.2e12, 23.6),
    ],
)
def test_a_driver_name_finds_its_gpu(name: str, kind: str, bf16: float, gib: float) -> None:
    gpu = find_gpu(name)
    assert gpu is not None
    assert (gpu.kind, gpu.memory_bytes) == (kind, round(gib * 2**30))
    assert peak_flops(name, "bf16") == bf16


def test_a_variant_has_a_row_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ada = GpuType("RTX 6000 Ada", "RTX 6000 ADA", 48 * 10**9, {}, 0.8)
    monkeypatch.setattr(hardware, "GPUS", (*GPUS, ada))
    assert find_gpu("NVIDIA RTX 6000 Ada Generation") is ada
    assert find_gpu("Quadro RTX 6000") is None
    older = GpuType("RTX 6000", "RTX 6000", 24 * 10**9, {}, 0.5)
    monkeypatch.setattr(hardware, "GPUS", (*GPUS, older, ada))
    assert find_gpu("Quadro RTX 6000") is older
    assert find_gpu("NVIDIA RTX 6000 Ada Generation") is ada
    assert find_gpu("NVIDIA RTX 6000 Ada Laptop GPU") is None


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "NVIDIA A1000",
        "NVIDIA H300",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "",
    ],
)
def test_an_unknown_device_has_no_peak_and_so_no_mfu(name: str) -> None:
    assert find_gpu(name) is None
    assert peak_flops(name, "bf16") is None


def test_unsupported_arithmetic_has_no_peak() -> None:
    assert peak_flops("Tesla V100-SXM2-16GB", "bf16") is None
    assert peak_flops("NVIDIA A100-SXM4-80GB", "fp8") is None


def test_peaks_are_dense() -> None:
    for gpu in GPUS:
        if "fp8" in gpu.peak_flops:
            assert gpu.peak_flops["fp8"] == pytest.approx(2 * gpu.peak_flops["bf16"], rel=0.03)


_SPEC = importlib.util.spec_from_file_location(
    "published_plans", ROOT / "tests/bench/published_plans.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
bench = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(bench)
PRINTED = [row for row in bench.rows() if row["mfu_as_published"] and row["source"] == bench.FITTED]


@pytest.mark.parametrize("row", PRINTED, ids=lambda row: f"{row['gpu']}-{row['hidden']}")
def test_mfu_of_published_rows_is_the_one_that_their_authors_print(row):
    tokens = float(row["tokens_per_s_per_gpu"])
    mfu = 100 * tokens * bench.flops(row) / bench.peak(row)
    # Their count includes the learned positions as weights that are multiplied, ours does not.
    assert mfu == pytest.approx(float(row["mfu_as_published"]), rel=0.012)


@pytest.mark.parametrize("kind", ["A100", "H100"])
def test_range_in_the_source_is_that_of_the_table(kind):
    rows = [
        row
        for row in bench.rows()
        if row["gpu"].startswith(kind) and row["source"] in {bench.FITTED, "nanoGPT"}
    ]
    shares = [
        100 * float(row["tokens_per_s_per_gpu"]) * bench.flops(row) / bench.peak(row)
        for row in rows
    ]
    usual = usual_mfu(kind)
    assert f"{min(shares):.0f} to {max(shares):.0f} %" in usual.source
    assert min(shares) < 100 * usual.share < max(shares)


def test_gpus_with_the_units_of_an_h100_are_planned_like_it():
    assert usual_mfu("GH200") == usual_mfu("H100")
    assert usual_mfu("H100").share < usual_mfu("H200").share < 0.578, (
        "less than the best that was measured"
    )
    assert "assumed" in usual_mfu("T4").source


def named(device: str, **changes: Any) -> list[str]:
    """Return the fields that the texts begin with."""
    config = TrainConfig.model_validate(train_values(Path("unused"), device=device, **changes))
    return [text.split(" ")[0] + " " + text.split(" ")[1] for text in not_counted(config)]


@pytest.mark.parametrize(
    ("changes", "on_cuda", "on_cpu"),
    [
        ({}, [], []),
        ({"compile": {"scope": "block"}}, [], []),
        ({"compile": {"scope": "none"}}, [], []),
        ({"compile": {"scope": "model"}}, ["compile.scope: model"], ["compile.scope: model"]),
        # CUDA's graphs, which a CPU has none of.
        ({"compile": {"mode": "reduce-overhead"}}, ["compile.mode: reduce-overhead"], []),
        ({"compile": {"mode": "max-autotune"}}, ["compile.mode: max-autotune"], []),
        ({"compile": {"mode": "max-autotune-no-cudagraphs"}}, [], []),
        (
            {"precision": {"compute": "bf16", "fp8": {"recipe": "te_delayed"}}},
            ["precision.fp8.recipe: te_delayed"],
            ["precision.fp8.recipe: te_delayed"],
        ),
        ({"precision": {"compute": "bf16", "fp8": {"recipe": "rowwise"}}}, [], []),
        (
            {"compile": {"scope": "model", "mode": "reduce-overhead"}},
            ["compile.scope: model", "compile.mode: reduce-overhead"],
            ["compile.scope: model"],
        ),
    ],
    ids=str,
)
def test_only_what_the_formulas_leave_out_is_named(
    changes: dict[str, Any], on_cuda: list[str], on_cpu: list[str]
) -> None:
    assert named("cuda", **changes) == named("auto", **changes) == on_cuda
    assert named("cpu", **changes) == on_cpu


def test_the_note_on_a_compiled_model_has_the_bounds_of_its_traces() -> None:
    values = train_values(Path("unused"), device="cuda", compile={"scope": "model"})
    (note,) = not_counted(TrainConfig.model_validate(values))
    assert "within 3 %" in note
    assert "up to 3 % less or 12 % more" in note
    assert "--trace" in note


@pytest.mark.parametrize(
    ("steps", "every", "policy", "planned"),
    [
        (1000, 100, {"every": 500}, (2, 2, True)),
        (1000, 0, {"every": 100, "keep_last": 3}, (10, 3, False)),
        (1000, 100, {"every": 100, "keep_every": 300}, (10, 5, True)),
        (950, 100, {"every": 100, "keep_best": False}, (10, 2, False)),
        (7000, 300, {"every": 1000}, (7, 3, True)),
        (100, 50, {"every": 0}, (1, 1, False)),
        (100, 50, {"every": 0, "save_last": False}, (0, 0, False)),
        (
            10**15,
            6,
            {"every": 4, "keep_every": 10},
            (250_000_000_000_000, 50_000_000_000_002, True),
        ),
    ],
)
def test_saves_and_kept_ones_follow_the_policy(
    steps: int, every: int, policy: dict[str, Any], planned: tuple[int, int, bool]
) -> None:
    changes = {"checkpoint": policy, "validation": {"every": every}}
    config = TrainConfig.model_validate(train(Path("x"), steps=steps, **changes))
    made = checkpoint_plan(config)
    assert (made.saves, made.kept, made.keeps_best) == planned
    if policy.get("keep_best", True):  # A task instead, as often as the held-out set.
        task = {"name": "own", "path": "x", "every": every}
        changes = {"checkpoint": policy | {"keep_best": "task/own/loss"}, "evals": [task]}
        config = TrainConfig.model_validate(train(Path("x"), steps=steps, **changes))
        assert checkpoint_plan(config) == made


@pytest.mark.parametrize(
    ("ends", "changes", "planned"),
    [
        # 100, 200, ..., 1000, and 250: kept are 900, 1000 by age, 250, and 100 as the best.
        ([250, 1000], {}, (11, 4, True)),
        ([250, 1000], {"checkpoint": {"every": 100, "keep_every": 250}}, (11, 5, True)),
        ([300, 950, 1000], {"checkpoint": {"every": 100, "keep_best": False}}, (11, 3, False)),
        ([100, 1000], {}, (10, 3, True)),
        ([300, 600, 1000], {"checkpoint": {"every": 0}}, (3, 3, True)),
        ([40, 1000], {"checkpoint": {"every": 0, "save_last": False}}, (1, 1, False)),
    ],
)
def test_end_of_each_stage_is_saved_and_kept(
    ends: list[int], changes: dict[str, Any], planned: tuple[int, int, bool]
) -> None:
    steps = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    stages = [{"tokens": 256 * count} for count in steps]
    values = {"checkpoint": {"every": 100}, "validation": {"every": 50}, **changes}
    made = checkpoint_plan(
        TrainConfig.model_validate(train(Path("x"), **values, stages=stages) | {"steps": None})
    )
    assert (made.saves, made.kept, made.keeps_best) == planned


@pytest.mark.parametrize(
    ("average", "device", "saved", "host"),
    [({"last": 5}, "cuda", 5, 5), ({"ema": 0.99}, "cuda", 1, 2), ({"ema": 0.99}, "cpu", 1, 1)],
)
def test_average_is_counted_in_host_memory_checkpoints_and_evaluations(
    average: dict[str, Any], device: str, saved: int, host: int
) -> None:
    plain, averaged = (
        TrainConfig.model_validate(train(Path("x"), device=device, **changes))
        for changes in ({}, {"average": {**average, "every": 2}})
    )
    weights = 4 * parameter_counts(plain.model).total
    before, after = training_memory(plain), training_memory(averaged)
    assert after.average == host * weights
    assert after.checkpoint_copy - before.checkpoint_copy == saved * weights
    assert after.stages["evaluation"] - before.stages["evaluation"] == weights


@pytest.mark.parametrize(
    ("course", "figures"), [({}, (5, 4)), ({"stages": [{"tokens": 768}, {"tokens": 1536}]}, (6, 5))]
)
def test_a_training_saves_and_keeps_what_is_planned(
    tmp_path: Path, corpus: Path, course: dict[str, Any], figures: tuple[int, int]
) -> None:
    training = begin(
        tmp_path / "run",
        corpus,
        steps=9,
        **course,
        validation={"tokens": 512, "share": 0.1, "every": 2},
        checkpoint={"every": 2, "keep_every": 6},
        average={"last": 3, "every": 2},
    )
    # Each is worse than the one before: the best is the first.
    losses = iter(range(1, 9))
    training.evaluate = lambda: float(next(losses))  # type: ignore[method-assign]
    with training.loader:
        training.run()
    saved, gone = recorded(training, "checkpoint"), recorded(training, "checkpoint_removed")
    whole = yaml.safe_load((tmp_path / "run" / layout.CONFIG).read_text())
    planned = checkpoint_plan(TrainConfig.model_validate(whole))
    assert (len(saved), len(saved) - len(gone)) == (planned.saves, planned.kept) == figures
    assert 0 < saved[-1]["size_bytes"] - planned.size_bytes < 100_000  # its JSON and headers
