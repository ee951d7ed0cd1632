"""What a plan of memory does not count is named, and nothing else is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lehr_testing.specs import train as train_values
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.planning.memory import not_counted


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
