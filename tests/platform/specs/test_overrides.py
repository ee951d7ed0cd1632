"""Overrides: their number, and the length of a run, where steps and a token budget replace each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lehr.control.forks import fork_spec
from lehr.errors import SpecError
from lehr.specs import RunSpec, SweepSpec, expand, load_spec, stages
from lehr.specs.overrides import DEEPEST, MOST, parse_overrides, set_path
from lehr_testing.spec_texts import RUN

BUDGET = RUN.replace("steps: 100", "tokens_per_parameter: 20")
TOKENS = RUN.replace("steps: 100", "tokens: 200k")


def run(text: str, *overrides: str) -> RunSpec:
    spec = load_spec(text, overrides)
    assert isinstance(spec, RunSpec)
    return spec


def sweep(parameters: dict, **fields) -> SweepSpec:
    data = run(BUDGET).model_dump(mode="json", exclude_unset=True)
    spec = load_spec(
        {"kind": "sweep", "name": "s", "parameters": parameters, "run": data, **fields}
    )
    assert isinstance(spec, SweepSpec)
    return spec


def refused(make) -> str:
    with pytest.raises(SpecError) as caught:
        make()
    return str(caught.value)


def test_override_of_one_length_replaces_the_other() -> None:
    full = run(BUDGET).train
    assert run(BUDGET, "train.steps=7").train.steps == 7
    assert run(BUDGET, "train.steps=7").train.tokens_per_parameter is None
    assert run(RUN, "train.tokens_per_parameter=20").train == full
    halved = run(BUDGET, "train.tokens_per_parameter=10").train
    assert halved.steps == pytest.approx(full.steps / 2, abs=1)


def test_override_of_an_absolute_budget_replaces_steps_and_the_other_budget() -> None:
    full = run(TOKENS).train
    assert (full.tokens, full.steps) == (200_000, 196)
    assert run(RUN, "train.tokens=200k").train == full
    assert run(BUDGET, "train.tokens=200000").train == full
    assert run(TOKENS, "train.tokens_per_parameter=20").train == run(BUDGET).train
    assert (run(TOKENS, "train.steps=7").train.tokens, run(TOKENS, "train.steps=7").steps) == (
        None,
        7,
    )
    both = ["train.tokens=1M", "train.tokens_per_parameter=20"]
    assert "are both given; give only one" in refused(lambda: run(RUN, *both))


def test_both_lengths_are_one_error_that_names_both() -> None:
    both = RUN.replace("steps: 100", "steps: 100\n  tokens_per_parameter: 20")
    assert "steps 100 and tokens_per_parameter 20 do not agree" in refused(lambda: run(both))
    overrides = ["train.steps=100", "train.tokens_per_parameter=20"]
    for text in (RUN, BUDGET):
        assert "do not agree" in refused(lambda text=text: run(text, *overrides))


def test_each_trial_has_the_steps_of_its_own_budget() -> None:
    swept = sweep({"train.tokens_per_parameter": {"values": [10, 20, 40]}}, budget="any")
    steps = [run.train.steps for _, run in expand(swept)]
    assert steps[1] == run(BUDGET).train.steps
    assert [steps[0] * 2, steps[2] / 2] == pytest.approx([steps[1]] * 2, abs=2)
    # A stored sweep has the steps that were resolved; they do not bind its trials.
    stored = SweepSpec.model_validate(swept.model_dump(mode="json"))
    assert expand(stored) == expand(swept)


def test_swept_steps_and_budgets_contradict_each_other() -> None:
    both = {"train.steps": {"values": [30]}, "train.tokens_per_parameter": {"values": [20]}}
    assert "do not agree" in refused(lambda: sweep(both, budget="any"))


def test_pruning_is_judged_by_the_steps_of_the_longest_trial() -> None:
    ratios = {"train.tokens_per_parameter": {"values": [10, 20]}}
    longest = run(BUDGET).train.steps
    fits = {"name": "median", "min_steps": longest - 1}
    assert len(expand(sweep(ratios, budget="any", pruning=fits))) == 2
    late = {"name": "median", "min_steps": longest}
    message = refused(lambda: sweep(ratios, budget="any", pruning=late))
    assert f"median first prunes there, and the longest trial ends at step {longest}." in message


def test_fork_keeps_the_budget_or_replaces_it() -> None:
    source = run(BUDGET).model_dump(mode="json")
    same = fork_spec(source, [], step=10)
    assert same.train.steps == source["train"]["steps"]
    wider = fork_spec(source, ["train.batch.sequences=16"], step=10)
    assert wider.train.steps == pytest.approx(10 + (same.train.steps - 10) / 2, abs=1)
    assert fork_spec(source, ["train.steps=12"], step=10).train.steps == 12
    longer = fork_spec(source, ["train.tokens_per_parameter=40"], step=10)
    assert longer.train.steps == pytest.approx(2 * same.train.steps, abs=1)


def test_stages_of_a_rollout_have_their_own_steps_and_the_last_the_budget() -> None:
    data = run(BUDGET).model_dump(mode="json", exclude_unset=True)
    rollout = load_spec({"kind": "rollout", "name": "r", "run": data})
    found = {stage.name: stage.train.train for stage in stages(rollout)}
    assert found["cpu"].steps == 60
    assert found["cpu"].tokens_per_parameter is None
    assert found["all"].steps == run(BUDGET).train.steps
    assert found["all"].tokens_per_parameter == 20
    own = {"cpu": {"set": {"train.tokens_per_parameter": 3}}}
    message = refused(
        lambda: load_spec({"kind": "rollout", "name": "r", "run": data, "stages": own})
    )
    assert "use `steps` of the stage" in message


def test_number_of_overrides_and_of_names_in_a_path_is_limited() -> None:
    most = ["train.steps=5"] * MOST
    assert len(parse_overrides(most)) == MOST
    with pytest.raises(SpecError, match="overrides: 1,001 given; at most 1,000 are allowed"):
        parse_overrides([*most, "train.steps=5"])
    data: dict[str, Any] = {}
    set_path(data, ".".join(["a"] * DEEPEST), 1)
    with pytest.raises(ValueError, match="a path of 33 names; at most 32 are allowed"):
        set_path(data, ".".join(["a"] * (DEEPEST + 1)), 1)


def test_a_part_of_a_section_that_is_written_short_can_be_set() -> None:
    short = run(RUN, "train.optimizer=muon", "train.precision.fp8=tensorwise")
    data = short.model_dump(mode="json", exclude_unset=True)
    assert data["train"]["optimizer"] == {"name": "muon"}
    text = {**data, "train": {**data["train"], "optimizer": "muon", "compile": False}}
    changed = load_spec(text, ["train.optimizer.lr=0.1", "train.compile.scope=model"])
    assert isinstance(changed, RunSpec)
    assert (changed.own.optimizer.name, changed.own.optimizer.lr) == ("muon", 0.1)
    assert (changed.own.compile.scope, changed.own.precision.fp8.recipe) == ("model", "tensorwise")
    with pytest.raises(SpecError, match=r"train.steps has no fields"):
        load_spec(text, ["train.steps.x=1"])
    for change, meant in (("stpes=200", "train.steps"), ("nots=x", "notes")):
        with pytest.raises(SpecError, match=rf"Did you mean {meant}\?"):
            load_spec(text, [change])
    with pytest.raises(SpecError) as raised:
        load_spec(text, ["train.grad_accum=2"])
    assert (raised.value.problems[0].hint or "").startswith("Did you mean train.batch.micro_batch?")


STAGED = RUN.replace(
    "steps: 100",
    """stages:
    - {name: main, tokens: 64k}
    - {name: anneal, tokens: 32k, data: {corpus: {kind: text, paths: [clean]}}}""",
)


def test_a_stage_is_changed_by_its_number_or_its_name(tmp_path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(STAGED)
    for stage in ("1", "anneal"):
        spec = load_spec(
            file,
            [f"train.stages.{stage}.optimizer.lr=0.5", f"train.stages.{stage}.schedule.name=wsd"],
        )
        assert isinstance(spec, RunSpec)
        changed = spec.own.course[1].config
        assert (changed.optimizer.lr, changed.schedule.name) == (0.5, "wsd")
        assert changed.data.corpus.paths == [str(tmp_path / "clean")]
        moved = load_spec(file, [f"train.stages.{stage}.data.corpus.paths=[other]"])
        assert moved.own.course[1].config.data.corpus.paths == [str(Path.cwd() / "other")]
    whole = run(STAGED, "train.stages.0={name: short, tokens: 4k}", "train.stages.1.tokens=8k")
    assert [(span.name, span.last) for span, _ in whole.own.course] == [
        ("short", 4),
        ("anneal", 12),
    ]
    assert run(RUN, "train.stages=[{tokens: 64k}]").steps == 63, "steps gave way to stages"
    assert "takes 94 steps; give only one" in refused(lambda: run(STAGED, "train.steps=5"))
    for stage in ("2", "cool"):
        text = refused(lambda stage=stage: run(STAGED, f"train.stages.{stage}.tokens=1k"))
        assert f"train.stages has no stage {stage}; it has 0 (main), 1 (anneal)." in text


def test_a_sweep_names_stages_as_overrides_do() -> None:
    def swept(*paths: str, values: list[Any]) -> SweepSpec:
        data = run(STAGED).model_dump(mode="json", exclude_unset=True)
        parameters = {path: {"values": values} for path in paths}
        spec = load_spec({"kind": "sweep", "name": "s", "parameters": parameters, "run": data})
        assert isinstance(spec, SweepSpec)
        return spec

    rate = "train.stages.anneal.optimizer.lr"
    trials = expand(swept(rate, values=[0.1, 0.2]))
    assert [values for values, _ in trials] == [{rate: 0.1}, {rate: 0.2}]
    rates = [[one.config.optimizer.lr for one in made.own.course] for _, made in trials]
    assert rates == [[0.001, 0.1], [0.001, 0.2]]
    for path, values, text in (
        ("train.stages.cool.optimizer.lr", [1], "has no stage cool; it has 0 (main), 1 (anneal)"),
        ("train.stages.1.lr", [1], "train.stages.1.lr is not in the spec of a run"),
        (rate, [0.1, "x"], "stages.1 (anneal): optimizer.adamw.lr: Input should be a valid number"),
    ):
        assert text in refused(lambda path=path, values=values: swept(path, values=values))
    with pytest.raises(SpecError) as caught:
        swept(rate, values=[0.1, "x"])
    assert [problem.path for problem in caught.value.problems] == [f"parameters.{rate}.values.1"]
    both = refused(lambda: swept("train.stages.1.optimizer.lr", rate, values=[1]))
    assert f"{rate} and train.stages.1.optimizer.lr are the same field" in both
