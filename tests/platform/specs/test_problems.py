"""Golden texts: the errors of a wrong run or sweep, each with its line and the remedy."""

from textwrap import dedent

import pytest

from lehr.specs import RunSpec
from lehr_testing.spec_texts import LIST, RANDOM, RUN, SWEEP, fields, message
from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import AdamWConfig, DataConfig, TrainConfig

PRESETS = f"Presets: {', '.join(sorted(MODEL_PRESETS))}"


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
          Optimizer steps. Give these, tokens, tokens_per_parameter or stages.""",
    ),
    "a wrong stage, which the steps follow from": (
        RUN.replace("steps: 100", "stages: [{tokens: 100k}, {name: b, tokens: 1}]"),
        """\
        run.yaml, line 8: train: stages.1 (b): its 1 tokens are already in the last step of the stage before, which has 1,024; give it more tokens, or leave it out.""",
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
          Optimizer steps. Give these, tokens, tokens_per_parameter or stages.""",
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
        run.yaml, line 5: train.data.corpus.kind is stdlb; it must be one of stdlib, text, jsonl, parquet, chat, hub, mix.
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
        run.yaml, line 11: kind is swep; it must be one of run, sweep, rollout, campaign.
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
        run.yaml, line 12: pruning.name is ash; it must be one of asha, median, hyperband, forecast.
          Did you mean asha?""",
    ),
    "a pruner that would never look": (
        SWEEP + "pruning: {name: asha, min_steps: 400}\n",
        """\
        run.yaml, line 12: pruning.min_steps is 400: asha has its first rung there, and a trial ends at step 100.""",
    ),
    "a forecast of what is no loss": (
        SWEEP + "metric: {name: mfu}\npruning: {name: forecast, min_steps: 4}\n",
        """\
        run.yaml, line 13: pruning.name is forecast, which needs a loss to minimize, not mfu, maximize.
          Give metric.name: val/loss, or use asha.""",
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
          Optimizer steps. Give these, tokens, tokens_per_parameter or stages.""",
    ),
}


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case.replace(" ", "-"))
def test_error_names_the_problem_its_place_and_the_remedy(tmp_path, case):
    text, expected = GOLDEN[case]
    assert message(tmp_path, text) == dedent(expected)
