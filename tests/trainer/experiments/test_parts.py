"""Parts of the experiments: rows that fail, searches, verdicts, explanations."""

from __future__ import annotations

import pytest

from lehr_trainer.experiments.batch import largest_that_fits
from lehr_trainer.experiments.case import Case, config
from lehr_trainer.experiments.gpu import verdicts
from lehr_trainer.experiments.gpu_rows import SECTIONS, rows
from lehr_trainer.experiments.runner import measure
from lehr_trainer.experiments.sizes import SIZES
from lehr_trainer.experiments.table import Column, Row, Table, change, ratio

TINY = SIZES["tiny"]


@pytest.mark.timeout(600)
def test_failing_row_has_its_error_and_stops_no_other() -> None:
    cases = [
        Case("good", "training", config(TINY, "cpu")),
        Case("bad", "training", config(TINY, "cpu", attention={"backend": "cudnn"})),
        Case("not here", "training", {}, skip="no such machine"),
        Case("worse", "training", config(TINY, "cpu", loss={"name": "liger"})),
    ]
    lines: list[str] = []
    good, bad, skipped, worse = measure(
        cases, turns=2, steps=1, together=True, log=lines.append, timeout_s=300
    )
    assert good.error == ""
    assert len(good.seconds) == 2
    assert len(good.facts["losses"]) == 2 + 2  # two to warm up
    assert good.facts["memory_bytes"] > 0
    assert "needs a CUDA GPU" in bad.error
    assert "needs a CUDA GPU" in worse.error
    assert skipped.error == "no such machine"
    assert bad.step_s is None
    assert any("bad: attention.backend" in line for line in lines)


@pytest.mark.parametrize("most", [0, 1, 2, 3, 7, 8, 13, 100, 1000])
def test_the_largest_batch_is_found_to_within_an_eighth(most: int) -> None:
    asked: list[int] = []

    def fits(count: int) -> bool:
        asked.append(count)
        return count <= most

    found = largest_that_fits(fits)
    assert found <= most
    assert most - found <= max(1, most // 8)
    assert len(asked) == len(set(asked)) <= 16


def test_each_row_of_the_gpu_bench_is_a_valid_and_different_training() -> None:
    every = list(rows(SIZES["llama-1b-64x2048"], "cuda"))
    keys = [row.key for row in every]
    assert len(keys) == len(set(keys))
    assert {row.section for row in every} == set(SECTIONS)
    target = [row.case.config for row in every if row.section == "target"]
    assert {(c["batch"]["sequences"], c["batch"]["sequence_length"]) for c in target} == {
        (64, 2048)
    }


def test_targets_are_judged_by_measured_figures_only() -> None:
    figures = {
        "target/bf16, a": {"step": 1.0, "rate": 60e3, "mfu": 50.0, "reserved": 60.0},
        "target/bf16, b": {"step": 1.0, "rate": 90e3, "mfu": 75.0, "reserved": 80.0},
        "target/bf16, c": {"step": 1.0, "rate": 70e3, "mfu": 58.0, "reserved": 74.0},
        "target/FP8, a": {"step": 1.0, "rate": 72e3, "reserved": 60.0},
        "target/FP8, c": {},
    }
    judged = verdicts(figures, on_cuda=True)
    assert "bf16, c" in judged[0]
    assert "58.0 %" in judged[0]
    assert "1.20x" in judged[1]
    assert verdicts({}, on_cuda=True) == ["bf16: nothing measured under 75 GB yet."]
    assert "not judged" in verdicts(figures, on_cuda=False)[0]


def test_a_table_explains_its_columns_and_leaves_out_empty_ones() -> None:
    made = Table(
        "x", "tiny", "A title", {"torch": "2"},
        (Column("a", "first", "ms", "by hand"), Column("b", "second", "", "never")),
        (Row("one", {"a": 1234.5}), Row("two", {}, "not | here")),
    )  # fmt: skip
    assert "second" not in made.text()
    assert "first: by hand" in made.text()
    assert "1,234.50" in made.text()
    assert r"not \| here" in made.markdown()
    assert ratio(3.0, 0.0) is None
    assert change(1.5, 1.0) == pytest.approx(50)
