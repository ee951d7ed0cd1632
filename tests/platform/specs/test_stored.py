"""Values of recorded specs: of Lehr's trainer and of programs."""

from __future__ import annotations

from pathlib import Path

from lehr.control.forks import fork_spec
from lehr.specs import RunSpec, load_spec, stored
from lehr_testing import specs


def recorded(spec: dict) -> dict:
    loaded = load_spec(spec)
    assert isinstance(loaded, RunSpec)
    return loaded.model_dump(mode="json")


def test_values_of_a_run_of_lehrs_trainer(tmp_path: Path):
    spec = recorded(specs.run(tmp_path, "a", steps=7, seed=3))
    assert (stored.total_steps(spec), stored.seed(spec)) == (7, 3)
    assert stored.tokens_per_step(spec) == 4 * 64
    assert stored.checkpoint_policy(spec).every == 5
    assert stored.config(spec)["steps"] == 7


def test_values_of_a_program():
    trainer = {"module": "m", "args": {"iters": 9, "seed": 4}, "steps_arg": "iters", "keep": 5}
    spec = recorded({"name": "a", "trainer": {**trainer, "tokens_per_step": 64}})
    assert (stored.total_steps(spec), stored.seed(spec)) == (9, 4)
    assert stored.tokens_per_step(spec) == 64
    assert stored.checkpoint_policy(spec).keep_last == 5
    assert stored.config(spec)["module"] == "m"
    spec = recorded({"name": "a", "trainer": {"module": "m", "steps": 3}})
    assert (stored.total_steps(spec), stored.seed(spec)) == (3, None)
    assert stored.total_steps(recorded({"name": "a", "trainer": {"module": "m"}})) is None


def test_tokens_of_a_fork_with_another_batch_count_those_before_it(tmp_path: Path):
    spec = recorded(specs.run(tmp_path, "a", steps=7))
    assert stored.extra_tokens(spec) == 0
    fork = fork_spec(spec, ["train.batch.sequences=2"], step=4)
    assert 5 * 128 + stored.extra_tokens(fork.model_dump(mode="json")) == 4 * 256 + 128
    assert stored.extra_tokens(recorded({"name": "a", "trainer": {"module": "m"}})) == 0
