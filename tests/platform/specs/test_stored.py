"""Values of recorded specs: of Lehr's trainer and of programs."""

from __future__ import annotations

from pathlib import Path

from lehr.control.forks import fork_spec
from lehr.specs import RunSpec, load_spec
from lehr.specs.stored import StoredSpec
from lehr_testing import specs
from lehr_trainer.configs.stages import steps_within


def recorded(spec: dict) -> dict:
    loaded = load_spec(spec)
    assert isinstance(loaded, RunSpec)
    return loaded.model_dump(mode="json")


def test_values_of_a_run_of_lehrs_trainer(tmp_path: Path):
    spec = recorded(specs.run(tmp_path, "a", steps=7, seed=3))
    assert (StoredSpec(spec).total_steps, StoredSpec(spec).seed) == (7, 3)
    assert StoredSpec(spec).tokens_per_step == 4 * 64
    assert StoredSpec(spec).checkpoint_policy.every == 5
    assert StoredSpec(spec).config["steps"] == 7


def test_values_of_a_program():
    trainer = {"module": "m", "args": {"iters": 9, "seed": 4}, "steps_arg": "iters", "keep": 5}
    spec = recorded({"name": "a", "trainer": {**trainer, "tokens_per_step": 64}})
    assert (StoredSpec(spec).total_steps, StoredSpec(spec).seed) == (9, 4)
    assert StoredSpec(spec).tokens_per_step == 64
    assert StoredSpec(spec).checkpoint_policy.keep_last == 5
    assert StoredSpec(spec).config["module"] == "m"
    spec = recorded({"name": "a", "trainer": {"module": "m", "steps": 3}})
    assert (StoredSpec(spec).total_steps, StoredSpec(spec).seed) == (3, None)
    assert StoredSpec(recorded({"name": "a", "trainer": {"module": "m"}})).total_steps is None


def test_tokens_of_a_fork_with_another_batch_count_those_before_it(tmp_path: Path):
    spec = recorded(specs.run(tmp_path, "a", steps=7))
    assert StoredSpec(spec).tokens_at(5) == 5 * 256
    fork = fork_spec(spec, ["train.batch.sequences=2"], step=4)
    assert StoredSpec(fork.model_dump(mode="json")).tokens_at(5) == 4 * 256 + 128
    assert StoredSpec(recorded({"name": "a", "trainer": {"module": "m"}})).tokens_at(3) == 3


def test_tokens_of_a_step_follow_its_stage(tmp_path: Path):
    stages = [{"tokens": 1000}, {"name": "big", "tokens": 2000, "batch": {"sequences": 8}}]
    values = specs.run(tmp_path, "a", stages=stages)
    del values["train"]["steps"]
    spec = StoredSpec(recorded(values))
    assert [spec.tokens_at(step) for step in (1, 4, 5, 8)] == [256, 1024, 1536, 3072]
    assert [steps_within(spec.spans, n) for n in (255, 1024, 1535, 1536, 3072)] == [0, 4, 4, 5, 8]
    assert (spec.total_steps, spec.tokens_per_step) == (8, 512)
    ratio = {"name": "wsd", "warmup_ratio": 0.5}
    train = {"schedule": ratio, "stages": [*stages, {"tokens": 5120, "schedule": {"name": "wsd"}}]}
    for given in (
        train,
        train | {"stages": [{**stages[0], "schedule": ratio}, *train["stages"][1:]]},
    ):
        values["train"] |= given
        spec = StoredSpec(recorded(values))
        assert (spec.warmup_steps, spec.changes) == (4, (4, 8))
