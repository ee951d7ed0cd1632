"""Tasks are evaluated in a training, of the weights and their average, the same on any ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lehr_testing.assembled import begin, recorded
from lehr_testing.trainer import make_run, records, train_to_end
from lehr_trainer.errors import BadConfig, BadData
from lehr_trainer.export.command import open_source
from lehr_trainer.tasks.command import main as evaluate

MODULES = {"name": "modules", "path": "stdlib_modules", "limit": 30, "every": 4}
SIGNATURES = {"name": "signatures", "path": "stdlib_signatures", "limit": 20, "every": 0}
SETTINGS: dict[str, Any] = {"steps": 10, "batch": {"sequences": 4, "sequence_length": 128}}


def evaluations(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one for one in found if one["kind"] == "evaluation" and one.get("tasks")]


def test_training_evaluates_weights_and_average_at_their_steps_and_keeps_its_items(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"context": "the lehr", "continuation": "warms"}\n' * 3)
    own = {"name": "own", "path": str(file), "every": 0}
    changes = {**SETTINGS, "evals": [MODULES, own], "average": {"last": 2, "every": 2}}
    kept = {"every": 4, "keep_best": "task/modules/bits_per_byte"}
    changes["checkpoint"] = kept
    logged: list[str] = []
    made = begin(tmp_path / "run", corpus, log=logged.append, **changes)
    with made.loader:
        made.run()
    found = evaluations(recorded(made, "evaluation"))
    assert [one["step"] for one in found] == [4, 8, 10]
    assert [{*one["tasks"]} for one in found] == [
        {"modules"},
        {"modules"},
        {"modules", "own", "mean"},
    ]
    last = found[-1]["values"]
    assert last["task/mean"] == pytest.approx(
        (last["task/modules/accuracy_centred"] + last["task/own/accuracy_centred"]) / 2
    )
    rates = [last[f"task/{name}modules/bits_per_byte"] for name in ("", "average/")]
    assert rates[0] != rates[1]
    assert "task/mean" not in found[0]["values"]
    rates = {one["step"]: one["values"]["task/modules/bits_per_byte"] for one in found}
    saved = {one["step"]: one["score"] for one in recorded(made, "checkpoint")}
    assert saved == rates
    best = min(rates, key=lambda step: rates[step])
    assert open_source(tmp_path / "run", "best").manifest.step == best
    assert logged[0].startswith("task modules: 30 of 150 multiple_choice items; digest ")
    out = tmp_path / "record.json"
    assert evaluate([str(tmp_path / "run"), "--out", str(out)]) == 0
    by_hand = json.loads(out.read_text())
    assert by_hand["tasks"] == found[-1]["tasks"]
    assert by_hand["values"] == pytest.approx(
        {name: value for name, value in last.items() if "average" not in name}, rel=1e-5
    )
    changes["evals"] = [{**one, "where": "beside"} for one in changes["evals"]]
    for task in changes["evals"]:
        task.pop("every")
    with pytest.raises(ValidationError, match="none or not all of these are evaluated in the"):
        begin(tmp_path / "alike", corpus, **changes)
    del changes["checkpoint"]
    alike = begin(tmp_path / "alike", corpus, **changes)
    with alike.loader:
        alike.run()
    assert not evaluations(recorded(alike, "evaluation"))
    checkpoint = tmp_path / "alike/attempt-1/checkpoints/step-00000010"
    assert evaluate([str(checkpoint), "--beside", "--out", str(out)]) == 0
    beside = json.loads(out.read_text())
    assert (beside["values"], beside["tasks"]) == (last, found[-1]["tasks"])
    file.write_text('{"context": "the lehr", "continuation": "cools"}\n')
    assert evaluate([str(checkpoint), "--beside", "--out", str(out)]) == 2
    changes["evals"] = [MODULES, own]
    with pytest.raises(BadData, match=r"evals\.own: its items changed; restore them, or fork"):
        begin(tmp_path / "run", corpus, **{**changes, "steps": 12})


def test_ranks_of_a_sharded_model_give_the_values_of_one(tmp_path: Path, corpus: Path) -> None:
    """Each rank takes part in each forward pass, also one without a batch of its own."""
    changes = {**SETTINGS, "steps": 2, "evals": [MODULES, SIGNATURES]}
    run = make_run(tmp_path / "run", corpus, parallel={"shard": "all"}, **changes)
    train_to_end(run, ranks=2, data=tmp_path / "data")
    (trained,) = evaluations(records(run / "attempt-1"))
    assert evaluate([str(run), "--out", str(tmp_path / "alone.json")]) == 0
    alone = json.loads((tmp_path / "alone.json").read_text())
    assert alone["tasks"] == trained["tasks"]
    assert alone["values"] == pytest.approx(trained["values"], rel=1e-6)


@pytest.mark.parametrize("value", ["perplexity", "modules"])
def test_kept_checkpoint_is_judged_by_a_value_that_its_task_has(
    tmp_path: Path, corpus: Path, value: str
) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"text": "the lehr warms"}\n' * 3)
    texts = {"name": "perplexity", "path": str(file), "kind": "perplexity"}
    metric = f"task/{value}/{'accuracy' if value == 'perplexity' else 'loss'}"
    changes = {**SETTINGS, "evals": [MODULES, texts], "checkpoint": {"keep_best": metric}}
    with pytest.raises(BadConfig, match=f"keep_best is {metric}, but a task of kind .* has "):
        begin(tmp_path / "run", corpus, **changes)
