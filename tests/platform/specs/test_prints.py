"""``trainer.prints``: what a pattern matches, and which patterns are refused."""

from __future__ import annotations

import math

import pytest

from lehr.errors import SpecError
from lehr.specs import load_spec
from lehr.specs.prints import PrintedLines

NANO = ["step {step}: train loss {train/loss}, val loss {val/loss}", "iter {step}: loss {loss}"]


def rows(patterns: list[str], *lines: str, step: int = 0) -> list:
    printed = PrintedLines(patterns, step)
    return [printed.row(line) for line in lines]


def test_numbers_are_read_by_the_names_of_their_fields():
    assert rows(NANO, "step 0: train loss 4.28, val loss 4.3", "x", "12:01 iter 1,000: loss 1e-3") == [
        (0, {"train/loss": 4.28, "val/loss": 4.3}), None, (1000, {"loss": 0.001}),
    ]  # fmt: skip
    bar = rows(["{step}/{} [{}, loss={loss}]"], " 10%|## | 10/100 [00:01, 9.9it/s, loss=2.31]")
    assert bar == [(10, {"loss": 2.31})]
    assert rows(["{{x}} {a}%"], "\x1b[1m{x}   -2.5%") == [(1, {"a": -2.5})]
    losses = rows(["loss {loss}", "test loss {val/loss}"], "test loss 1", "loss 2")
    assert losses == [(0, {"val/loss": 1}), (1, {"loss": 2})]
    commas = rows(["{step},{loss}"], "100,2.5", "1,000,234.5")
    assert commas == [(100, {"loss": 2.5}), (1000, {"loss": 234.5})]
    [(_, values)] = rows(["loss {a} {b}"], "loss nan -Inf")
    assert (math.isnan(values["a"]), values["b"]) == (True, -math.inf)
    assert rows(["iter {step}: loss {loss}"], "iter 1.5: loss 2", "iter x: loss 2") == [None, None]


def test_line_without_a_step_has_the_one_before_it_or_is_counted():
    lines = ("val loss 3", "iter 5: loss 2", "val loss 2.5")
    steps = [row[0] for row in rows(["iter {step}: loss {loss}", "val loss {val/loss}"], *lines)]
    assert steps == [0, 5, 5]
    lines = ("loss 3", "accuracy 1", "loss 2")
    steps = [row[0] for row in rows(["loss {loss}", "accuracy {accuracy}"], *lines, step=7)]
    assert steps == [8, 8, 9]


@pytest.mark.parametrize(
    ("pattern", "lines", "steps"),
    [
        ("epoch {epoch} | {step}/{} | {loss}", "epoch 1 | 60/ 72 | 3; epoch 2 | 20/ 72 | 1", [60, 92]),
        ("epoch {epoch}, {step}: {loss}", "epoch 0, 5: 1; epoch 1, 0: 1; epoch 1, 5: 1", [5, 5, 10]),
        ("epoch {epoch} {step}/{} {loss}", "epoch 1 9/9 3; epoch 2 9/9 2", [9, 18]),
        ("epoch {epoch} {step}/{} {loss}", "epoch 2 9/9 3; epoch 1 2/9 2", [9, 2]),  # Run again.
    ],
)  # fmt: skip
def test_step_within_an_epoch_counts_on_from_the_epoch_before(pattern, lines, steps):
    assert [step for step, _ in rows([pattern], *lines.split(";"))] == steps


def test_line_that_almost_matches_takes_no_long_time():
    printed = PrintedLines(["a{}a{}a{}a{}a{}a{}a{}a{}a{}b {x}", "{a}/{} [{b}]", "x: {c}]"])
    for line in ("a" * 9_000, "1" * 9_000, " " * 9_000, "1," * 9_000, "x:" + " " * 9_000):
        assert printed.row(line) is None


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("loss {loss", "expected '}' before end of string; a literal brace is written twice"),
        ("loss loss}", "Single '}' encountered"),
        ("loss {loss:.4f}", "a field is only a name: {loss}"),
        ("loss {the loss}", "'the loss' is not the name of a metric, such as {train/loss}"),
        ("loss", "has no field such as {step} or {train/loss}"),
        ("{} {}", "has no field such as"),
        ("{step}{loss}", "needs some text between {loss} and the field before it"),
        ("{step}: {a} {a}", "has {a} twice; write {} for the other one"),
        ("iter {step}\nloss {loss}", "is not one line"),
        ("iter {step}", "no pattern has a metric beside {step}"),
    ],
)
def test_wrong_pattern_is_one_error_of_its_field(pattern, message):
    with pytest.raises(SpecError) as refused:
        load_spec({"name": "a", "trainer": {"script": "a.py", "prints": [pattern]}})
    [problem] = refused.value.problems
    assert problem.path == "trainer.prints"
    assert message in problem.message
