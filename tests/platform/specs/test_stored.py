"""Values of recorded specs: of Lehr's trainer and of programs."""

from __future__ import annotations

from pathlib import Path

from lehr.control.forks import fork_spec
from lehr.specs import RunSpec, load_spec
from lehr.specs.stored import StoredSpec
from lehr_testing import specs


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
    assert StoredSpec(spec).extra_tokens == 0
    fork = fork_spec(spec, ["train.batch.sequences=2"], step=4)
    assert 5 * 128 + StoredSpec(fork.model_dump(mode="json")).extra_tokens == 4 * 256 + 128
    assert StoredSpec(recorded({"name": "a", "trainer": {"module": "m"}})).extra_tokens == 0
