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


def test_step_within_an_epoch_counts_on_from_the_epoch_before():
    patterns = ["epoch {epoch} | {step}/{} batches | loss {loss}", "valid loss {val/loss}"]
    lines = [
        "epoch 1 | 60/ 72 batches | loss 3",
        "valid loss 2",
        "epoch 2 | 20/ 72 batches | loss 1",
    ]
    assert [step for step, _ in rows(patterns, *lines)] == [60, 60, 92]
    uncounted = rows(
        ["Epoch: {epoch}, step {step}: {loss}"],
        *[f"Epoch: {e}, step {s}: 1" for e in (0, 1) for s in (0, 5)],
    )
    assert [step for step, _ in uncounted] == [0, 5, 5, 10]
    ends = rows(["Epoch {epoch} {step}/{} {loss}"], "Epoch 1 9/9 3", "Epoch 2 9/9 2")
    assert [step for step, _ in ends] == [9, 18]
    # A restart of the program is none.
    again = rows(patterns, lines[2], lines[0], "epoch 1 | 10/72 batches | loss 2")
    assert [step for step, _ in again] == [20, 60, 10]


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
