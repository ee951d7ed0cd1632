"""What decides the speed of a run, and how runs differ in it."""

from __future__ import annotations

from typing import Any

import pytest

from lehr.analysis.plan_time import SIZES, differences, traits
from lehr.specs import RunSpec, load_spec
from lehr_testing.paths import DATA


def of(
    *, cuda: bool = True, gpus: int = 1, parameters: int = 1000, **overrides: Any
) -> dict[str, str]:
    spec = load_spec(DATA / "run.yaml", {"resources.gpus": gpus, **overrides})
    assert isinstance(spec, RunSpec)
    return traits(spec, parameters, cuda=cuda)


def test_runs_that_differ_in_rate_seed_steps_and_name_are_of_the_same_kind() -> None:
    changes = {"train.optimizer.lr": 1e-2, "train.seed": 7, "train.steps": 900, "name": "other"}
    assert differences(of(**changes), of()) == {}


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
