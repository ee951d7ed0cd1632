"""Time of a run: from measured runs, else from published ones."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.analysis.plan_time import SIZES, Measured, differences, estimate_time, traits
from lehr.specs import RunSpec, load_spec
from lehr_testing.paths import DATA
from lehr_trainer.planning.hardware import gpu_of_kind, usual_mfu

FLOPS = 1e18
PARAMETERS = 100_000_000


def seconds(*measured: Measured, gpu: str | None = "A100", gpus: int = 2, **overrides):
    spec = load_spec(DATA / "run.yaml", overrides)
    assert isinstance(spec, RunSpec)
    return estimate_time(
        spec.train,
        gpus=gpus,
        gpu=None if gpu is None else gpu_of_kind(gpu),
        flops=FLOPS,
        parameters=PARAMETERS,
        measured=measured,
    )


def other(name: str, mfu: float | None, parameters: int) -> Measured:
    return Measured(name, 1.0, mfu, parameters, differs={"size": f"{parameters:,} parameters"})


def test_run_of_the_same_kind_decides_alone():
    same = Measured("before", 1024.0, 0.2, PARAMETERS)
    found = seconds(other("wide", 0.9, PARAMETERS), same)
    assert found.seconds == pytest.approx(100 * 8 * 128 / 1024.0)
    assert "before, at its median 1,024 tok/s" in found.basis


def test_mfu_of_runs_of_about_the_same_size_is_used_and_named():
    found = seconds(
        other("a", 0.30, 90_000_000), other("b", 0.20, 150_000_000), other("c", 0.25, 250_000_000)
    )
    assert found.seconds == pytest.approx(FLOPS / (0.25 * 312e12 * 2))
    assert "the MFU of a, b, c (25%)" in found.basis


def test_run_of_another_kind_is_named_with_what_differs_and_its_mfu_is_not_used():
    differs = {"precision": "TF32", "compile": "not compiled"}
    found = seconds(Measured("slow", 10.0, 0.1, PARAMETERS, differs=differs))
    assert found.seconds == seconds().seconds
    assert "no measured run of this kind yet (slow differs: TF32, not compiled)" in found.basis
    many = {name: name for name in ("precision", "compile", "GPU", "loss")}
    assert seconds(Measured("far", 10.0, differs=many)).basis == seconds().basis


def test_runs_of_another_size_or_without_an_mfu_are_not_used():
    found = seconds(other("huge", 0.6, 301_000_000), other("unknown", None, PARAMETERS))
    assert found.seconds == pytest.approx(FLOPS / (usual_mfu("A100").share * 312e12 * 2))
    assert "at 50 % MFU (published runs on A100 reach 29 to 62 %)" in found.basis


def test_recomputation_costs_the_time_that_was_measured_for_it():
    path = "train.activation_checkpointing.policy"
    plain, block = seconds().seconds, seconds(**{path: "block"}).seconds
    assert block == pytest.approx(1.17 * plain)
    halved = seconds(**{path: "block", "train.activation_checkpointing.every": 2}).seconds
    assert halved == pytest.approx(1.085 * plain)


@pytest.mark.parametrize(("gpu", "words"), [("L4", "assumed"), (None, "no GPU type")])
def test_basis_says_what_is_assumed_or_unknown(gpu, words):
    assert words in seconds(gpu=gpu).basis


def test_peak_of_an_arithmetic_that_a_gpu_lacks_is_unknown():
    found = seconds(gpu="V100")
    assert found.seconds is None
    assert "no bf16 peak of V100 is known" in found.basis


def of(
    *, cuda: bool = True, gpus: int = 1, parameters: int = 1000, **overrides: Any
) -> dict[str, str]:
    spec = load_spec(DATA / "run.yaml", {"resources.gpus": gpus, **overrides})
    assert isinstance(spec, RunSpec)
    return traits(spec, parameters, cuda=cuda)


def test_runs_that_differ_in_rate_seed_steps_and_name_are_of_the_same_kind() -> None:
    changes = {"train.optimizer.lr": 1e-2, "train.seed": 7, "train.steps": 900, "name": "other"}
    scaling = {"train.model.rope_scaling": {"factor": 9, "original_max_sequence_length": 1024}}
    assert differences(of(**changes, **scaling), of()) == {}


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("train.precision.compute", "fp32", "TF32"),
        ("train.precision.tf32", False, None),
        ("train.precision.fp8.recipe", "tensorwise", "bf16 with FP8 tensorwise"),
        ("train.compile.scope", "none", "not compiled"),
        ("train.compile.mode", "max-autotune", "block compiled with max-autotune"),
        ("train.activation_checkpointing.policy", "block", "recomputes block in 1 of 1 layers"),
        ("train.attention.backend", "math", "attention math"),
        ("train.optimizer.name", "muon", "optimizer muon"),
        ("train.loss.name", "standard", "loss standard"),
        ("train.deterministic", True, "deterministic kernels"),
    ],
)
def test_what_changes_the_speed_of_a_gpu_is_a_difference(path, value, text) -> None:
    found = differences(of(**{path: value}), of())
    assert list(found.values()) == ([] if text is None else [text])
    assert not found.keys() & SIZES


def test_compression_of_gradients_counts_where_ranks_exchange_them() -> None:
    changes = {"train.parallel.compression": "bf16"}
    assert differences(of(**changes), of()) == {}
    found = differences(of(gpus=2, **changes), of(gpus=2))
    assert found == {"gradients": "gradients compressed by bf16"}


def test_length_of_the_sequences_counts_at_the_same_tokens_of_a_step() -> None:
    shape = {"train.batch.sequences": 16, "train.batch.sequence_length": 64}
    found = differences(of(**shape), of())
    assert found == {
        "batch": "16 sequences a step",
        "length": "sequences of 64",
        "micro-batch": "micro-batch 16",
    }
    assert found.keys() <= SIZES


def test_what_a_config_leaves_open_is_what_the_device_makes_of_it() -> None:
    assert differences(of(**{"train.precision.compute": "bf16"}), of()) == {}
    assert differences(of(**{"train.precision.compute": "fp32"}, cuda=False), of(cuda=False)) == {}
    assert differences(of(cuda=False), of())["precision"] == "fp32"


def test_another_model_of_as_many_parameters_is_another_kind() -> None:
    found = differences(of(**{"train.model.intermediate_size": 100}), of())
    assert found == {"model": "another shape of model"}
    found = differences(of(**{"train.model.num_hidden_layers": 3}, parameters=1500), of())
    assert found == {"size": "1,500 parameters"}
