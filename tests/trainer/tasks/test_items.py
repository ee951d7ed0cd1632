"""Items are written as nanochat writes them, and a wrong file is one clear error."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from lehr_testing.specs import train
from lehr_trainer.configs.tasks import SHIPPED, TaskConfig
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.errors import BadData
from lehr_trainer.tasks.items import read_items

CHOICE = {"query": "2 + 2 =", "choices": ["4", "five"], "gold": 0}
SAMPLE = {
    "doc_id": 0,
    "target": "1",
    "arguments": {"gen_args_0": {"a": "Q", "b": " x"}, "gen_args_1": {"a": "Q", "b": " y"}},
}


def written(folder: Path, *rows: Any, **changes: Any) -> TaskConfig:
    path = folder / "task.jsonl"
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in rows))
    return TaskConfig(name="t", path=str(path), **changes)


def test_each_kind_is_written_out_and_seen_by_its_fields(tmp_path: Path) -> None:
    schema = {"context_options": ["He", "She"], "continuation": "sat.", "gold": 1}
    for row, kind, pairs in (
        (CHOICE, "multiple_choice", [("2 + 2 =", " 4"), ("2 + 2 =", " five")]),
        (schema, "schema", [("He", " sat."), ("She", " sat.")]),
        ({"context": " A b ", "continuation": "c"}, "continuation", [("A b", " c")]),
        ({"text": " whole"}, "perplexity", [("", " whole")]),
        (SAMPLE, "multiple_choice", [("Q", " x"), ("Q", " y")]),
    ):
        read, items, total = read_items(written(tmp_path, row, "", row if row is SAMPLE else ""))
        assert (read, total, items[0].pairs) == (kind, 1, pairs)
    assert items[0].gold == 1
    _, items, _ = read_items(written(tmp_path, CHOICE, delimiter="\n"))
    assert items[0].pairs[1][1] == "\nfive"


def test_examples_are_other_items_and_a_limit_takes_the_same_ones(tmp_path: Path) -> None:
    rows = [{**CHOICE, "query": f"question {n}"} for n in range(100_000)]
    _, few, _ = read_items(written(tmp_path, *rows[:3], shots=2))
    assert all(len({*item.pairs[0][0].split("\n\n")}) == 3 for item in few)
    asked = [{*item.pairs[0][0].replace(" 4", "").split("\n\n")} for item in few]
    assert asked == [{row["query"] for row in rows[:3]}] * 3
    task = written(tmp_path, *rows, shots=2, limit=50)
    _, items, total = read_items(task)
    assert (len(items), total) == (50, 100_000)
    for item in items:
        *examples, query = item.pairs[0][0].split("\n\n")
        assert len({*examples, query}) == 3
        assert all(example.endswith(" 4") for example in examples)
        assert query not in "".join(examples)
    assert items == read_items(task)[1]
    _, others, _ = read_items(written(tmp_path, *rows[::-1], limit=50))
    asked = [one.pairs[0][0].split("\n\n")[-1] for one in items]
    assert [one.pairs[0][0] for one in others] == asked


@pytest.mark.parametrize(
    ("rows", "changes", "error"),
    [
        ([CHOICE, "{"], {}, r"line 2: Expecting property name"),
        (["[1]"], {}, r"line 1: it is not a JSON object"),
        ([{**CHOICE, "choices": ["4"]}], {}, r"line 1: choices has 1; an item needs two or more"),
        ([{**CHOICE, "gold": 2}], {}, r"line 1: gold is 2; with 2 choices it is 0 to 1"),
        ([{**CHOICE, "gold": True}], {}, r"gold is True; an item has query, choices, gold"),
        ([CHOICE, {"query": "q", "gold": 0}], {}, r"line 2: choices is None; an item has query"),
        ([{**CHOICE, "choices": ["4", ""]}], {}, r"a continuation is empty"),
        ([{"prompt": "q"}], {}, r"query is None; an item has query, choices, gold"),
        ([""], {}, r"has no items"),
        ([CHOICE, CHOICE], {"shots": 2}, r"shots is 2, but .* has 2 multiple_choice items"),
        ([SAMPLE, {**SAMPLE, "doc_id": 1}], {"shots": 1}, r"of lm-eval, with their examples"),
        ([{**SAMPLE, "target": "z"}], {}, r"line 1: gold is -1; with 2 choices"),
        ([{**SAMPLE, "arguments": {"gen_args_0": {"a": "Q", "b": {}}}}], {}, r"not those of a log"),
        ([SAMPLE], {"kind": "continuation"}, r"is of kind multiple_choice, which must be that"),
    ],
)
def test_wrong_file_is_refused_naming_the_line(
    tmp_path: Path, rows: list[Any], changes: dict[str, Any], error: str
) -> None:
    with pytest.raises(BadData, match=rf"^evals\.t: .*task\.jsonl.*{error}|^evals\.t: {error}"):
        read_items(written(tmp_path, *rows, **changes))


def test_names_of_tasks_are_those_of_one_metric_each(tmp_path: Path) -> None:
    one = {"name": "one", "path": "stdlib_modules"}
    for tasks, error in (([one, one], "one"), ([{**one, "name": "mean"}], "mean")):
        with pytest.raises(ValidationError, match=f"evals: the name {error} is in use"):
            TrainConfig.model_validate(train(tmp_path, evals=tasks))
    stages = [{"tokens": 512}, {"tokens": 512, "batch": {"sequence_length": 32}}]
    course = TrainConfig.model_validate(train(tmp_path, evals=[one], stages=stages, steps=4)).course
    assert all([task.name for task in own.evals] == ["one"] for _, own in course)
    assert "evals" not in TrainConfig.model_validate(train(tmp_path)).model_dump()


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_tasks_fit_into_a_short_sequence_and_have_no_favourite(name: str) -> None:
    _, items, total = read_items(TaskConfig(name=name, path=name))
    assert len(items) == total > 100
    pairs = [pair for item in items for pair in item.pairs]
    assert max(len("".join(pair).encode()) for pair in pairs) <= 128
    assert max(Counter(item.gold for item in items).values()) < 0.4 * total
    assert {len({text for _, text in item.pairs}) for item in items} == {4}
