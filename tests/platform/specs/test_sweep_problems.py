"""Golden texts of errors in sweeps, names and plain values."""

from __future__ import annotations

from textwrap import dedent

import pytest

from lehr.errors import SpecError
from lehr.specs import RunSpec, expand, load_spec, read_yaml
from lehr.specs.problems import show
from lehr_testing.spec_texts import LIST, PARAMETERS, RANDOM, RUN, SWEEP, fields
from lehr_trainer.configs.train import TrainConfig


def numbers(count: int) -> str:
    return f"[{', '.join(str(number) for number in range(1, count + 1))}]"


USUAL = "Common metrics: val/loss, train/loss, tokens_per_s. For a part of the model: params/<part>/norm."
EXAMPLE = "By dotted path into run, e.g. train.optimizer.lr: {values: [1e-4, 1e-3]}"
TOKENS = "Change train.steps with the batch (method: list), or allow it with budget: any"
NAME = "Letters, digits, dots, dashes and underscores; at most 100; first a letter or digit."

GOLDEN = {
    "a metric that is nearly one": (
        SWEEP + "metric: {name: val_loss}\n",
        f"""\
        run.yaml, line 12: metric.name is val_loss, which no run logs.
          Did you mean val/loss?   {USUAL}""",
    ),
    "a metric that is nearly one with an underscore of its own": (
        SWEEP + "metric: {name: tokens_per_sec}\n",
        f"""\
        run.yaml, line 12: metric.name is tokens_per_sec, which no run logs.
          Did you mean tokens_per_s?   {USUAL}""",
    ),
    "a metric like no other": (
        SWEEP + "metric: {name: bananas}\n",
        f"""\
        run.yaml, line 12: metric.name is bananas, which no run logs.
          {USUAL}""",
    ),
    "the loss of an average that no run has": (
        SWEEP + "metric: {name: val/average/loss}\n",
        f"""\
        run.yaml, line 12: metric.name is val/average/loss, which no run logs.
          It needs run.train.average.   {USUAL}""",
    ),
    "a part's metric that there is not": (
        SWEEP + "metric: {name: params/head/size}\n",
        f"""\
        run.yaml, line 12: metric.name is params/head/size, which no run logs.
          {USUAL}""",
    ),
    "no parameters": (
        SWEEP.replace(PARAMETERS, ""),
        f"""\
        run.yaml, line 1: parameters is missing.
          {EXAMPLE}""",
    ),
    "empty parameters": (
        SWEEP.replace(PARAMETERS, "parameters: {}\n"),
        f"""\
        run.yaml, line 3: parameters is empty; give at least 1 value.
          {EXAMPLE}""",
    ),
    "parameters of a list": (
        LIST + PARAMETERS,
        """\
        run.yaml, line 12: parameters cannot be used with method list: it uses points.""",
    ),
    "a list with no trials in it": (
        SWEEP.replace("method: grid", "method: list").replace(PARAMETERS, "points: []\n"),
        """\
        run.yaml, line 3: points is empty; give at least 1 value.""",
    ),
    "a grid that trains on unequal numbers of tokens": (
        SWEEP.replace("train.optimizer.lr", "train.steps").replace("1e-4, 1e-3", "100, 100.0, 200"),
        """\
        run.yaml, line 5: parameters.train.steps.values has 100.0 twice.""",
    ),
    "a grid over the number of steps": (
        SWEEP.replace("train.optimizer.lr", "train.steps").replace("1e-4, 1e-3", "100, 200, 300"),
        f"""\
        run.yaml, line 3: the trials train on different numbers of tokens: train.steps=100 on 102,400, train.steps=200 on 204,800.
          {TOKENS}""",
    ),
    "a list of which one trial ends early": (
        LIST.replace("train.optimizer.lr: 1e-3", "train.optimizer.lr: 1e-3, train.steps: 50"),
        f"""\
        run.yaml, line 3: the trials train on different numbers of tokens: train.optimizer.lr=0.01 on 102,400, train.optimizer.lr=0.001, train.steps=50 on 51,200.
          {TOKENS}""",
    ),
    "a sweep over projects": (
        SWEEP.replace("train.optimizer.lr", "project").replace("1e-4, 1e-3", "a, b"),
        """\
        run.yaml, line 4: project cannot be swept: a sweep belongs to one project.""",
    ),
    "a path like no other": (
        SWEEP.replace("train.optimizer.lr", "zzz.qqqqqq"),
        """\
        run.yaml, line 4: zzz.qqqqqq is not in the spec of a run.
          Paths begin with train, resources, retries, priority, time_limit_s, env or tracking.""",
    ),
    "a path that begins with run": (
        SWEEP.replace("train.optimizer.lr", "run.train.optimizer.lr"),
        """\
        run.yaml, line 4: run.train.optimizer.lr is not in the spec of a run.
          Did you mean train.optimizer.lr?""",
    ),
    "too many trials": (
        SWEEP.replace("[1e-4, 1e-3]", f"{numbers(101)}\n  train.seed:\n    values: {numbers(100)}"),
        """\
        run.yaml, line 3: the parameters make 10,100 trials; at most 10,000.""",
    ),
    "a value that does not go with the rest of the run": (
        SWEEP.replace("train.optimizer.lr", "train.batch.sequences").replace("1e-4, 1e-3", "8, 6")
        + "  resources: {gpus: 4}\nbudget: any\n",
        """\
        run.yaml, line 3: train.batch.sequences=6: resources.gpus 4: 6 sequences a step cannot be shared by 4 ranks evenly; make batch.sequences a multiple.""",
    ),
    "a trial that does not go with the rest of the run": (
        LIST.replace("train.optimizer.lr: 1e-3", "train.batch.sequences: 6, train.seed: 1")
        + "  resources: {gpus: 4}\nbudget: any\n",
        """\
        run.yaml, line 5: train.batch.sequences=6, train.seed=1: resources.gpus 4: 6 sequences a step cannot be shared by 4 ranks evenly; make batch.sequences a multiple.""",
    ),
    "a warmup that is longer than the run": (
        SWEEP.replace("train.optimizer.lr", "train.schedule.warmup_steps").replace(
            "1e-4, 1e-3", "10, 400"
        ),
        """\
        run.yaml, line 5: train: schedule: warmup takes 400 steps, but it has only 100.""",
    ),
    "a value that is a mapping": (
        SWEEP.replace("train.optimizer.lr", "retries").replace("[1e-4, 1e-3]", "[{user: -1}]"),
        """\
        run.yaml, line 5: retries.user is -1; it must be at least 0.
          Errors of the training code.""",
    ),
    "mappings that are the same in another order": (
        SWEEP.replace("train.optimizer.lr", "train.batch").replace(
            "[1e-4, 1e-3]",
            "[{sequences: 8, sequence_length: 64}, {sequence_length: 64, sequences: 8}]",
        ),
        """\
        run.yaml, line 5: parameters.train.batch.values has {"sequence_length": 64, "sequences": 8} twice.""",
    ),
    "a trial of a list twice": (
        LIST.replace("run:", "  - {train.optimizer.lr: 0.001}\nseeds: [0, 1]\nrun:"),
        """\
        run.yaml, line 6: trials 3 and 5 are the same run: train.optimizer.lr=0.001, train.seed=0 and train.optimizer.lr=0.001, train.seed=0.""",
    ),
    "a trial's value with several seeds": (
        LIST.replace("train.optimizer.lr: 1e-3", "train.optimizer.lr: fast") + "seeds: [0, 1]\n",
        """\
        run.yaml, line 5: train.optimizer.lr is fast; it must be a number.
          Peak learning rate.""",
    ),
    "one of the seeds": (
        SWEEP + "seeds: [1, -1]\n",
        """\
        run.yaml, line 12: seeds[1] is -1; it must be at least 0.""",
    ),
    "a median that would never look": (
        SWEEP + "pruning: {name: median, min_steps: 100}\n",
        """\
        run.yaml, line 12: pruning.min_steps is 100: median first prunes there, and a trial ends at step 100.""",
    ),
    "values without their name": (
        SWEEP.replace("lr:\n    values: [1e-4, 1e-3]", "lr: [1e-4, 1e-3]"),
        """\
        run.yaml, line 4: parameters.train.optimizer.lr is [0.0001, 0.001]; it must be a mapping.
          Write it as values: [0.0001, 0.001]""",
    ),
    "a value without its name": (
        SWEEP.replace("lr:\n    values: [1e-4, 1e-3]", "lr: 3"),
        """\
        run.yaml, line 4: parameters.train.optimizer.lr is 3; it must be a mapping.
          Write it as values: [3]""",
    ),
    "a step where none is asked for": (
        RANDOM.replace("values: [1e-4, 1e-3]", "min: 1\n    max: 2\n    q: 1"),
        """\
        run.yaml, line 5: parameters.train.optimizer.lr: q is 1, but distribution uniform takes no q; only q_uniform and q_log_uniform_values take it.""",
    ),
    "a logarithm of nothing": (
        RANDOM.replace(
            "values: [1e-4, 1e-3]", "min: 0\n    max: 2\n    distribution: log_uniform_values"
        ),
        """\
        run.yaml, line 5: parameters.train.optimizer.lr: min 0 has no logarithm; it must be above 0.""",
    ),
    "whole numbers between halves": (
        RANDOM.replace(
            "values: [1e-4, 1e-3]", "min: 0.5\n    max: 2\n    distribution: int_uniform"
        ),
        """\
        run.yaml, line 5: parameters.train.optimizer.lr: min is 0.5 and max is 2; int_uniform needs whole numbers.""",
    ),
    "more trials than a coarse range has values": (
        RANDOM.replace("trials: 2", "trials: 4")
        .replace("train.optimizer.lr", "train.seed")
        .replace(
            "values: [1e-4, 1e-3]", "min: 1\n    max: 3\n    distribution: q_uniform\n    q: 1"
        ),
        """\
        run.yaml, line 3: trials is 4; the parameters have only 3 points.""",
    ),
    "a field of the run, misspelt": (
        SWEEP.replace("  train:\n", "  resorces: {}\n  train:\n"),
        """\
        run.yaml, line 7: run.resorces is not a field.
          Did you mean run.resources?   Fields here: kind, name, project, tags, notes, hypothesis, baseline, trainer, train, evaluations, resources, retries, checkpoints, priority, preemptible, time_limit_s, stall_limit_s, env, secrets, code, tracking, alerts""",
    ),
    "a name of which only the initials are known": (
        RUN.replace("  steps: 100", "  steps: 100\n  learn_rate: 3"),
        f"""\
        run.yaml, line 9: train.learn_rate is not a field.
          Did you mean train.optimizer.lr?   {fields(TrainConfig)}""",
    ),
    "a name like no other": (
        RUN + "xyzzyq: 3\n",
        f"""\
        run.yaml, line 11: xyzzyq is not a field.
          {fields(RunSpec)}""",
    ),
    "a number for a mapping": (
        RUN + "resources: 3\n",
        """\
        run.yaml, line 11: resources is 3; it must be a mapping.
          Fields here: gpus, nodes, gpu_type""",
    ),
    "text for a pruner": (
        SWEEP + "pruning: asha\n",
        """\
        run.yaml, line 12: pruning is asha; it must be a mapping.
          Fields here: name, min_steps, reduction, startup_trials""",
    ),
    "a pruner without its name": (
        SWEEP + "pruning: {min_steps: 3}\n",
        """\
        run.yaml, line 12: pruning.name is missing; it must be one of asha, median, hyperband, forecast.""",
    ),
    "a pruner like no other": (
        SWEEP + "pruning: {name: zzzzz, min_steps: 3}\n",
        """\
        run.yaml, line 12: pruning.name is zzzzz; it must be one of asha, median, hyperband, forecast.""",
    ),
    "true among numbers": (
        SWEEP + "seeds: [true]\n",
        """\
        run.yaml, line 12: seeds[0] is true; it must be a number.""",
    ),
    "one of two numbers": (
        RUN.replace("lr: 1e-3", "betas: [0.9]"),
        """\
        run.yaml, line 10: train.optimizer.betas[1] is missing.""",
    ),
    "a variable of Lehr's own": (
        RUN + "env: {LEHR_HOME: x}\n",
        """\
        run.yaml, line 11: env: LEHR_HOME is set by Lehr itself.""",
    ),
    "a GPU without a GPU": (
        RUN.replace("  steps: 100", "  steps: 100\n  device: cuda") + "resources: {gpus: 0}\n",
        """\
        run.yaml, line 12: resources.gpus is 0, but train.device is cuda: make it cpu or auto.""",
    ),
    "a priority that is too high": (
        RUN + "priority: 101\n",
        """\
        run.yaml, line 11: priority is 101; it must be at most 100.
          Higher values start first; equal ones in order of submission.""",
    ),
    "a name with a blank": (
        RUN.replace("name: demo", "name: a b"),
        f"""\
        run.yaml, line 1: name is "a b"; that is not a name.
          {NAME}""",
    ),
    "a project that begins with a dash": (
        RUN + "project: '-x'\n",
        f"""\
        run.yaml, line 11: project is "-x"; that is not a name.
          {NAME}""",
    ),
    "a variable that begins with a digit": (
        RUN + "env: {1A: x}\n",
        """\
        run.yaml, line 11: env: '1A' is not the name of an environment variable.""",
    ),
}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.replace(" ", "-"))
def test_the_error_names_the_field_the_value_and_what_is_valid(tmp_path, case):
    text, expected = GOLDEN[case]
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / "run.yaml")
    assert str(caught.value).replace(f"{tmp_path}/", "") == dedent(expected)


@pytest.mark.parametrize(
    ("data", "path", "message"),
    [
        ({"env": {1: "a"}}, "env", "env: the key 1 is not text."),
        ({"name": "\ud800"}, "name", "name is not Unicode text."),
        ({"train": {"seed": 2**63}}, "train.seed", "train.seed does not fit in 64 bits."),
        ({"train": {"seed": -(2**63) - 1}}, "train.seed", "train.seed does not fit in 64 bits."),
    ],
)
def test_data_that_yaml_cannot_represent_is_rejected(data, path, message):
    with pytest.raises(SpecError) as caught:
        load_spec(data)
    assert (path, message) in [(one.path, one.message) for one in caught.value.problems]


def test_data_is_bounded_in_size_and_depth():
    deep: list = []
    for _ in range(40):
        deep = [deep]
    with pytest.raises(SpecError, match=r"^tags: too many values\.$"):
        load_spec({"tags": ["a"] * 100_001})
    with pytest.raises(SpecError, match=r"^tags(\[0\]){32}: nested more than 32 deep\.$"):
        load_spec({"tags": deep})


def test_trials_may_differ_in_tokens_if_the_sweep_allows_it():
    text = SWEEP.replace("train.optimizer.lr", "train.steps").replace("1e-4, 1e-3", "100, 200")
    spec = load_spec(read_yaml(text + "budget: any\n").data)
    assert [run.train.steps for _, run in expand(spec)] == [100, 200]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a/word-of_4.", "a/word-of_4."),
        ("w" * 40, "w" * 40),
        ("w" * 41, f'"{"w" * 41}"'),
        ("größe 1", '"größe 1"'),
        ("", '""'),
        ("w" * 58 + "!", f'"{"w" * 56}...'),
        (["w" * 56], f'["{"w" * 56}"]'),
        (["w" * 57], f'["{"w" * 55}...'),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (["NaN Infinity"], '["NaN Infinity"]'),
        ({1, 2}, '"{1, 2}"'),
        (1e-05, "1e-05"),
        (None, "null"),
    ],
)
def test_error_shows_a_value_as_yaml_on_one_line(value, shown):
    assert show(value) == shown
    assert len(shown) <= 60


def test_recursive_value_is_shown_by_its_type():
    endless: list = []
    endless.append(endless)
    assert show(endless) == "a list"
