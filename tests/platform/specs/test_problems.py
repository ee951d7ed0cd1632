"""Golden texts: the errors of a wrong spec."""

from pathlib import Path
from textwrap import dedent

import pytest

from lehr import examples
from lehr.errors import SpecError, nearest
from lehr.specs import RunSpec, SweepSpec, load_spec, synonyms
from lehr.specs.fields import synonym
from lehr_testing.paths import DATA
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import AdamWConfig, DataConfig, TrainConfig

RUN = (DATA / "run.yaml").read_text()
SWEEP = (DATA / "sweep.yaml").read_text()
RANDOM = SWEEP.replace("method: grid", "method: random\ntrials: 2")
LIST = SWEEP.replace("method: grid", "method: list").replace(
    "parameters:\n  train.optimizer.lr:\n    values: [1e-4, 1e-3]\n",
    "points:\n  - {train.optimizer.lr: 1e-2}\n  - {train.optimizer.lr: 1e-3}\n",
)


def fields(model) -> str:
    return f"Fields here: {', '.join(model.model_fields)}"


PRESETS = f"Presets: {', '.join(sorted(MODEL_PRESETS))}"


def message(tmp_path: Path, text: str, overrides=(), name="run.yaml") -> str:
    """The error's text with the file's folder left out."""
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_spec(file, overrides)
    return str(caught.value).replace(f"{tmp_path}/", "")


GOLDEN = {
    "a near miss": (
        RUN.replace("lr: 1e-3", "learning_rate: 1e-3"),
        f"""\
        run.yaml, line 10: train.optimizer.learning_rate is not a field.
          Did you mean train.optimizer.lr?   {fields(AdamWConfig)}""",
    ),
    "a field in the wrong place": (
        RUN + "lr: 3\n",
        f"""\
        run.yaml, line 11: lr is not a field.
          Did you mean train.optimizer.lr?   {fields(RunSpec)}""",
    ),
    "a long name in the wrong place": (
        RUN + "learning_rate: 3\n",
        f"""\
        run.yaml, line 11: learning_rate is not a field.
          Did you mean train.optimizer.lr?   {fields(RunSpec)}""",
    ),
    "a misspelt field that is needed is one mistake": (
        RUN.replace("steps: 100", "step: 100"),
        f"""\
        run.yaml, line 8: train.step is not a field.
          Did you mean train.steps?   {fields(TrainConfig)}""",
    ),
    "a wrong type": (
        RUN.replace("steps: 100", "steps: many"),
        """\
        run.yaml, line 8: train.steps is many; it must be a whole number.
          Optimizer steps. Give these, tokens or tokens_per_parameter.""",
    ),
    "true is no number": (
        RUN.replace("lr: 1e-3", "lr: true"),
        """\
        run.yaml, line 10: train.optimizer.lr is true; it must be a number.""",
    ),
    "negative steps": (
        RUN.replace("steps: 100", "steps: -5"),
        """\
        run.yaml, line 8: train.steps is -5; it must be at least 1.
          Optimizer steps. Give these, tokens or tokens_per_parameter.""",
    ),
    "not a number": (
        RUN.replace("lr: 1e-3", "lr: .nan"),
        """\
        run.yaml, line 10: train.optimizer.lr is nan; it must be a finite number.
          Peak learning rate.""",
    ),
    "an unknown preset": (
        RUN.replace("model: tiny", "model: lama-1b"),
        f"""\
        run.yaml, line 3: train.model: there is no preset lama-1b.
          Did you mean llama-1b?   {PRESETS}""",
    ),
    "a preset's part that does not fit": (
        RUN.replace("model: tiny", "model: {preset: tiny, num_attention_heads: 5}"),
        """\
        run.yaml, line 3: train.model: num_attention_heads 5 does not divide hidden_size 128.""",
    ),
    "an unknown kind of corpus": (
        RUN.replace("kind: stdlib", "kind: stdlb"),
        """\
        run.yaml, line 5: train.data.corpus.kind is stdlb; it must be one of stdlib, text, jsonl, parquet, hub, mix.
          Did you mean stdlib?""",
    ),
    "a corpus by name alone": (
        RUN.replace("{kind: stdlib}", "stdlib"),
        """\
        run.yaml, line 5: train.data.corpus is stdlib; it must be a mapping.
          Write it as {kind: stdlib}""",
    ),
    "a field of one kind of corpus, wrong": (
        RUN.replace("{kind: stdlib}", "{kind: text, paths: []}"),
        """\
        run.yaml, line 5: train.data.corpus.paths is empty; give at least 1 value.""",
    ),
    "batch and GPUs that do not go together": (
        RUN + "resources: {gpus: 3}\n",
        """\
        run.yaml, line 11: resources.gpus 3: 8 sequences a step cannot be shared by 3 ranks evenly; make batch.sequences a multiple.""",
    ),
    "YAML that does not parse": (
        RUN.replace("corpus: {kind: stdlib}", "corpus: {kind: stdlib"),
        """\
        run.yaml, line 6, column 14: this is not YAML: while parsing a flow mapping, expected ',' or '}', but got ':'.""",
    ),
    "a key given twice": (
        RUN + "name: again\n",
        """\
        run.yaml, line 11, column 1: name is given twice (first in line 1).""",
    ),
    "a tag that builds objects": (
        RUN.replace("name: demo", "name: !!python/name:os.system {}"),
        """\
        run.yaml, line 1, column 7: the tag !!python/name:os.system is not allowed: a spec is plain data.""",
    ),
    "an empty file": ("", "run.yaml: it is empty; a spec is a mapping of fields."),
    "a list": (
        "- a\n- b\n",
        """run.yaml, line 1, column 1: a spec is a mapping of fields, not ["a", "b"].""",
    ),
    "an unknown kind of spec": (
        RUN + "kind: swep\n",
        """\
        run.yaml, line 11: kind is swep; it must be one of run, sweep, rollout.
          Did you mean sweep?""",
    ),
    "variables that are Lehr's": (
        RUN + "env: {CUDA_VISIBLE_DEVICES: '1'}\n",
        """\
        run.yaml, line 11: env: CUDA_VISIBLE_DEVICES is set by Lehr itself.""",
    ),
    "a sweep over a path that is not there": (
        SWEEP.replace("train.optimizer.lr", "train.optimizer.learning_rate"),
        """\
        run.yaml, line 4: train.optimizer.learning_rate is not in the spec of a run.
          Did you mean train.optimizer.lr?""",
    ),
    "a sweep over a path without its beginning": (
        SWEEP.replace("train.optimizer.lr", "optimizer.lr"),
        """\
        run.yaml, line 4: optimizer.lr is not in the spec of a run.
          Did you mean train.optimizer.lr?""",
    ),
    "no learning rates": (
        SWEEP.replace("[1e-4, 1e-3]", "[]"),
        """\
        run.yaml, line 5: parameters.train.optimizer.lr.values is empty; give at least 1 value.""",
    ),
    "one learning rate of several is wrong": (
        SWEEP.replace("[1e-4, 1e-3]", "\n    - 1e-4\n    - -1e-3\n    - fast"),
        """\
        run.yaml, line 7: train.optimizer.lr is -0.001; it must be greater than 0.
          Peak learning rate.
        run.yaml, line 8: train.optimizer.lr is fast; it must be a number.
          Peak learning rate.""",
    ),
    "a learning rate twice": (
        SWEEP.replace("[1e-4, 1e-3]", "[1e-4, 0.0001]"),
        """\
        run.yaml, line 5: parameters.train.optimizer.lr.values has 0.0001 twice.""",
    ),
    "two trials that come to the same": (
        SWEEP.replace("train.optimizer.lr", "train.model").replace(
            "[1e-4, 1e-3]", "[tiny, {preset: tiny}]"
        ),
        """\
        run.yaml, line 3: trials 1 and 2 are the same run: train.model=tiny and train.model={"preset": "tiny"}.""",
    ),
    "a preset in a sweep": (
        SWEEP.replace("train.optimizer.lr", "train.model.preset"),
        """\
        run.yaml, line 4: train.model.preset cannot be swept: a preset is the whole model.
          Sweep train.model, with the presets' names as values.""",
    ),
    "a range in a grid": (
        SWEEP.replace("values: [1e-4, 1e-3]", "min: 1e-4\n    max: 1e-2"),
        """\
        run.yaml, line 4: parameters.train.optimizer.lr is a range; a grid needs values: [...].
          Ranges go with method: random or tpe.""",
    ),
    "a range without its end": (
        RANDOM.replace("values: [1e-4, 1e-3]", "min: 1e-4"),
        """\
        run.yaml, line 5: parameters.train.optimizer.lr.max is missing.
          Upper bound, included.""",
    ),
    "a range the wrong way round": (
        RANDOM.replace("values: [1e-4, 1e-3]", "min: 1\n    max: 0.1"),
        """\
        run.yaml, line 5: parameters.train.optimizer.lr: min 1 is not below max 0.1.""",
    ),
    "a distribution that is not there": (
        RANDOM.replace("values: [1e-4, 1e-3]", "{min: 1e-4, max: 0.1, distribution: log}").replace(
            "lr:\n    {", "lr: {"
        ),
        """\
        run.yaml, line 5: parameters.train.optimizer.lr.distribution is log; it must be one of uniform, log_uniform_values, int_uniform, q_uniform, q_log_uniform_values.
          Did you mean log_uniform_values?""",
    ),
    "a range whose end does not fit": (
        RANDOM.replace("values: [1e-4, 1e-3]", "min: -1\n    max: 1"),
        """\
        run.yaml, line 5: train.optimizer.lr is -1.0; it must be greater than 0.
          Peak learning rate.""",
    ),
    "values and a range": (
        RANDOM.replace("[1e-4, 1e-3]", "[1e-4, 1e-3]\n    min: 3"),
        """\
        run.yaml, line 7: parameters.train.optimizer.lr.min is not a field.
          Fields here: values""",
    ),
    "a search without an end": (
        SWEEP.replace("method: grid", "method: tpe"),
        """\
        run.yaml, line 1: trials is missing.
          The number of points for tpe to try.""",
    ),
    "more trials than points": (
        RANDOM.replace("trials: 2", "trials: 9"),
        """\
        run.yaml, line 3: trials is 9; the parameters have only 2 points.""",
    ),
    "trials of a grid": (
        SWEEP.replace("method: grid", "trials: 4"),
        """\
        run.yaml, line 2: trials goes with method random or tpe; the method is grid.""",
    ),
    "a list without points": (
        SWEEP.replace("method: grid", "method: list").replace(
            "parameters:\n  train.optimizer.lr:\n    values: [1e-4, 1e-3]\n", ""
        ),
        """\
        run.yaml, line 1: points is missing.
          Write each point as a mapping: points: [{train.optimizer.lr: 1e-3}]""",
    ),
    "points of a grid": (
        SWEEP + "points: [{train.seed: 1}]\n",
        """\
        run.yaml, line 12: points goes with method list; the method is grid.""",
    ),
    "a trial's path": (
        LIST.replace("train.optimizer.lr: 1e-3", "train.optimizer.learning_rate: 1e-3"),
        """\
        run.yaml, line 5: train.optimizer.learning_rate is not in the spec of a run.
          Did you mean train.optimizer.lr?""",
    ),
    "a trial's value": (
        LIST.replace("train.optimizer.lr: 1e-3", "train.optimizer.lr: fast"),
        """\
        run.yaml, line 5: train.optimizer.lr is fast; it must be a number.
          Peak learning rate.""",
    ),
    "two ways to say the seed": (
        SWEEP.replace("train.optimizer.lr", "train.seed").replace("1e-4, 1e-3", "1, 2")
        + "seeds: [1]\n",
        """\
        run.yaml, line 12: seeds and train.seed both set the seed of a trial; give one of them.""",
    ),
    "a seed twice": (
        SWEEP + "seeds: [1, 1]\n",
        """\
        run.yaml, line 12: seeds has 1 twice.""",
    ),
    "a pruner that is not there": (
        SWEEP + "pruning: {name: ash, min_steps: 4}\n",
        """\
        run.yaml, line 12: pruning.name is ash; it must be one of asha, median, hyperband.
          Did you mean asha?""",
    ),
    "a pruner that would never look": (
        SWEEP + "pruning: {name: asha, min_steps: 400}\n",
        """\
        run.yaml, line 12: pruning.min_steps is 400: asha has its first rung there, and a trial ends at step 100.""",
    ),
    "several at once, in the file's order": (
        RUN.replace("model: tiny", "model: huge")
        .replace("steps: 100", "steps: 0")
        .replace("tokenizer: byte", "tokenizr: byte"),
        f"""\
        run.yaml, line 3: train.model: there is no preset huge.
          {PRESETS}
        run.yaml, line 6: train.data.tokenizr is not a field.
          Did you mean train.data.tokenizer?   {fields(DataConfig)}
        run.yaml, line 8: train.steps is 0; it must be at least 1.
          Optimizer steps. Give these, tokens or tokens_per_parameter.""",
    ),
}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.replace(" ", "-"))
def test_error_names_the_problem_its_place_and_the_remedy(tmp_path, case):
    text, expected = GOLDEN[case]
    assert message(tmp_path, text) == dedent(expected)


OVERRIDES = {
    "a wrong value": (
        RUN,
        ["train.steps=-5"],
        """\
        override train.steps=-5: train.steps is -5; it must be at least 1.
          Optimizer steps. Give these, tokens or tokens_per_parameter.""",
    ),
    "a misspelt path": (
        RUN,
        ["train.optimizer.lrr=1"],
        f"""\
        override train.optimizer.lrr=1: train.optimizer.lrr is not a field.
          Did you mean train.optimizer.lr?   {fields(AdamWConfig)}""",
    ),
    "no equals sign": (
        RUN,
        ["train.steps"],
        """\
        'train.steps' is not an override.
          Write it as path=value, e.g. train.optimizer.lr=1e-3""",
    ),
    "a value that is not YAML": (
        RUN,
        ["tags=[a"],
        """\
        override tags=[a: this is not YAML: while parsing a flow sequence, expected ',' or ']', but got '<stream end>'.""",
    ),
    "a path through a number": (
        RUN,
        ["train.steps.more=1"],
        "override train.steps.more=1: train.steps has no fields.",
    ),
    "a path into a list": (
        RUN + "tags: [a]\n",
        ["tags.0=b"],
        "override tags.0=b: tags is a list; set it whole.",
    ),
    "an empty learning-rate list": (
        SWEEP,
        ["parameters.train.optimizer.lr.values=[]"],
        """\
        override parameters.train.optimizer.lr.values=[]: parameters.train.optimizer.lr.values is empty; give at least 1 value.""",
    ),
}


@pytest.mark.parametrize("case", OVERRIDES, ids=lambda case: case.replace(" ", "-"))
def test_an_override_is_named_as_it_was_written(tmp_path, case):
    text, overrides, expected = OVERRIDES[case]
    assert message(tmp_path, text, overrides) == dedent(expected)


def test_a_file_that_comes_with_lehr_is_found_from_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError) as caught:
        load_spec("sweeps/lr_grid_small.yaml")
    [problem] = caught.value.problems
    assert problem.hint == f"Lehr has an example of that name: cp {examples.LR_GRID_SMALL} ."
    assert load_spec(str(examples.LR_GRID_SMALL)).name == "lr-grid-small"


def test_a_missing_file_names_the_one_beside_it(tmp_path):
    (tmp_path / "lr_grid.yaml").write_text(SWEEP)
    with pytest.raises(SpecError) as caught:
        load_spec(tmp_path / "lr-grid.yaml")
    assert str(caught.value) == (
        f"{tmp_path}/lr-grid.yaml: no such file.\n  Did you mean {tmp_path}/lr_grid.yaml?"
    )


def test_a_folder_or_a_binary_file_is_refused_without_a_traceback(tmp_path):
    (tmp_path / "weights.yaml").write_bytes(b"\x93\xff\x00")
    with pytest.raises(SpecError, match="not UTF-8 text"):
        load_spec(tmp_path / "weights.yaml")
    with pytest.raises(SpecError, match="cannot be read"):
        load_spec(tmp_path)


def test_errors_in_json_use_the_terms_of_json(tmp_path):
    assert message(tmp_path, '{"name": "x",}', name="run.json").startswith(
        "run.json, line 1, column "
    )
    assert "given twice" in message(tmp_path, '{"name": "x", "name": "y"}', name="run.json")
    assert "is not a JSON number" in message(tmp_path, '{"name": NaN}', name="run.json")


def test_a_problem_in_a_json_file_has_its_line(tmp_path):
    text = '{\n\t"name": "x",\n\t"trian": {}\n}'
    assert message(tmp_path, text, name="run.json").splitlines()[0] == (
        "run.json, line 3: trian is not a field."
    )


def test_prefix_matches_only_if_it_is_unique():
    assert nearest("min", ("minimize", "maximize")) == "minimize"
    assert nearest("seq", ("sequences", "sequence_length")) is None


@pytest.mark.parametrize(
    ("text", "overrides", "meant"),
    [
        (RUN + "batch_size: 8\n", [], "train.batch.sequences"),
        (RUN.replace("  steps: 100", "  steps: 100\n  batch_size: 8"), [], "train.batch.sequences"),
        (
            RUN.replace("  steps: 100", "  steps: 100\n  n_layers: 2"),
            [],
            "train.model.num_hidden_layers",
        ),
        (RUN.replace("  steps: 100", "  max_iters: 100"), [], "train.steps"),
        (RUN, ["train.batch_size=8"], "train.batch.sequences"),
        (RUN, ["train.dtype=bf16"], "train.precision.compute"),
        (RUN, ["n_gpus=8"], "resources.gpus"),
        (
            SWEEP.replace("train.optimizer.lr", "train.n_layers"),
            [],
            "train.model.num_hidden_layers",
        ),
        (SWEEP, ["run_cap=3"], "trials"),
    ],
)
def test_name_of_another_trainer_gives_a_suggestion_but_is_not_accepted(
    tmp_path, text, overrides, meant
):
    assert f"Did you mean {meant}?" in message(tmp_path, text, overrides)


def test_every_synonym_suggests_a_field_and_is_no_field_itself():
    for name, paths in synonyms._BY_NAME.items():
        root = SweepSpec if paths[0] in SweepSpec.model_fields and len(paths) == 1 else RunSpec
        assert synonym(root, name) is not None, name
        assert synonym(SweepSpec, name) is not None, name
