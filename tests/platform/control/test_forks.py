"""The spec of a fork: inherited fields and rejected changes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from lehr.control.forks import choose, fork_spec, reheating
from lehr.errors import NotFound, SpecError
from lehr.specs import load_spec
from lehr_testing.api import RUN_SPEC
from lehr_trainer.configs.budget import ForkedAt


@dataclass(frozen=True)
class Point:
    attempt: int
    step: int


def source(*changes: str) -> dict:
    return load_spec(RUN_SPEC, list(changes)).model_dump(mode="json")


def test_error_lists_the_last_ten_checkpoints():
    with pytest.raises(NotFound) as caught:
        choose("a", [Point(1, step) for step in range(1, 13)], 99)
    assert caught.value.hint.endswith("It has: ..., 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.")
    with pytest.raises(NotFound) as caught:
        choose("a", [Point(1, step) for step in range(1, 11)], 99)
    assert caught.value.hint.endswith("It has: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10.")


@pytest.mark.parametrize("field", ["warmup_ratio", "decay_ratio"])
def test_unrelated_change_keeps_the_schedule_of_the_source(field):
    given = ["train.schedule.name=wsd", f"train.schedule.{field}=0.1"]
    made = fork_spec(source(*given), ["train.seed=3"], step=10)
    assert getattr(made.train.schedule, field) == 0.1


@pytest.mark.parametrize("name", ["train.schedule=wsd", "train.schedule.name=wsd"])
def test_new_warmup_begins_at_the_fork_however_the_schedule_is_written(name):
    changes = [name, "train.schedule.warmup_steps=5"]
    for given in (changes, dict(part.split("=") for part in changes)):
        assert fork_spec(source(), given, step=10).train.schedule.starts_after == 10


def test_schedule_that_raises_the_rate_again_is_warned_of_with_both_rates():
    before = load_spec(RUN_SPEC, ["train.steps=1000", "train.optimizer.lr=1e-3"])

    def warning(step: int, *changes: str) -> str | None:
        plain = before.model_dump(mode="json")
        return reheating(before, fork_spec(plain, changes, step=step), step)

    text = warning(1000, "train.steps=2000")
    assert text is not None
    assert text.startswith("at step 1,001 the learning rate rises from 1.0e-04 to 5.6e-04, since")
    # What it proposes is no longer warned of, nor is what does not raise the rate.
    assert warning(1000, "train.steps=2000", *text.partition("was: ")[2].split()) is None
    assert warning(1000, "train.steps=2000", "train.optimizer.lr=1e-4") is None
    assert warning(500) is None
    assert warning(10, "train.steps=2000") is None
    assert "rises from 5.6e-04 to 1.0e-03" in (warning(500, "train.schedule.name=constant") or "")


def test_every_problem_names_the_field_that_cannot_change():
    changes = ["train.steps=10", "train.model.hidden_size=256", "train.optimizer.name=muon"]
    with pytest.raises(SpecError) as caught:
        fork_spec(source(), changes, step=10)
    paths = ["train.steps", "train.model.hidden_size", "train.optimizer.name"]
    assert [problem.path for problem in caught.value.problems] == paths


def test_fork_that_switches_normuon_names_the_field_and_may_start_without_state():
    muon, switch = source("train.optimizer.name=muon"), ["train.optimizer.normuon_beta=0.95"]
    with pytest.raises(SpecError) as caught:
        fork_spec(muon, switch, step=10)
    (problem,) = caught.value.problems
    assert problem.message == (
        "train.optimizer.normuon_beta: the checkpoint holds the state of the optimizer muon, and "
        "muon with normuon_beta cannot go on from it."
    )
    assert fork_spec(muon, switch, step=10, optimizer_state="fresh")
    assert fork_spec(muon, ["train.optimizer.coefficients=polar_express"], step=10)


YARN = "{factor: 4, original_max_sequence_length: 2048}"
LONGER = ["train.model.max_sequence_length=8192", "train.batch.sequence_length=4096"]


@pytest.mark.parametrize("rotary", [f"rope_scaling={YARN}", "rope_theta=5e5"])
def test_fork_may_extend_the_context(rotary):
    made = fork_spec(source(), [f"train.model.{rotary}", *LONGER], step=10)
    assert made.train.batch.longest_sequence == 4096
    stored = made.model_dump(mode="json")
    assert ("rope_scaling" in stored["train"]["model"]) == ("rope_scaling" in rotary)
    assert load_spec(stored) == made
    assert (
        fork_spec(stored, ["train.model.rope_scaling=null"], step=20).train.batch
        == made.train.batch
    )


def test_fork_cannot_add_positions_to_a_model_that_learns_them():
    with pytest.raises(SpecError) as caught:
        fork_spec(source("train.model=gpt2-tiny"), ["train.model.max_sequence_length=600"], step=10)
    (problem,) = caught.value.problems
    assert problem.message.startswith("train.model.max_sequence_length is 512 in the checkpoint")
    assert problem.hint == "Submit a new run for another model; a fork may set norm_eps."


@pytest.mark.parametrize(
    ("batch", "steps", "trained"),
    [
        # A budget of 10,240 tokens is 40 steps of 256; at step 20 half of it is left.
        (["train.batch.sequences=8"], 30, 10_240),
        (["train.batch.sequences=2"], 60, 10_240),
        (["train.batch.sequence_length=48"], 47, 10_304),
        (["train.batch.sequences=8", "train.tokens=20480"], 50, 20_480),
        (["train.batch.sequences=8", "train.steps=25"], 25, 7_680),
        (["train.seed=3"], 40, 10_240),
    ],
)
def test_fork_trains_on_the_rest_of_a_token_budget(batch, steps, trained):
    made = fork_spec(source("train.tokens=10240"), batch, step=20)
    assert (made.train.steps, made.train.total_tokens) == (steps, trained)
    stored = made.model_dump(mode="json")
    assert ("forked_at" in stored["train"]) == (batch != ["train.seed=3"])
    assert load_spec(stored) == made
    again = fork_spec(stored, ["train.batch.sequences=16"], step=22)
    tokens = made.train.tokens_at(22)
    assert again.train.forked_at == ForkedAt(after_steps=22, after_tokens=tokens)
    assert again.train.tokens_at(23) == tokens + again.train.tokens_per_step


def test_budget_for_each_parameter_counts_the_tokens_before_the_fork():
    whole = source("train.tokens_per_parameter=0.1")
    steps, step = whole["train"]["steps"], 40
    made = fork_spec(whole, ["train.batch.sequences=2"], step=step)
    assert 2 * (steps - step) - 1 <= made.train.steps - step <= 2 * (steps - step)


def test_fork_of_a_program_without_a_number_of_steps_may_start_at_any_step():
    program = {"module": "mine.train", "args": {"epochs": 3}}
    spec = load_spec({"name": "a", "trainer": program}).model_dump(mode="json")
    assert fork_spec(spec, ["trainer.args.epochs=4"], step=10**6).trainer.args == {"epochs": 4}
    with pytest.raises(SpecError, match="nothing would be left to train"):
        fork_spec(spec, ["trainer.steps=5"], step=10)


def test_state_of_a_program_cannot_be_fresh():
    spec = load_spec({"name": "a", "trainer": {"module": "mine.train"}}).model_dump(mode="json")
    with pytest.raises(SpecError, match="optimizer_state fresh is for Lehr's own trainer"):
        fork_spec(spec, {}, step=10, optimizer_state="fresh")


WEB, CODE = ({"kind": "text", "paths": [f"/{name}"]} for name in ("web", "code"))
STAGES = [
    {"name": "main", "tokens": 200 * 256, "data": {"corpus": WEB}},
    {"name": "stable", "tokens": 300 * 512, "batch": {"sequences": 8}},
    {"name": "anneal", "tokens": 100 * 512, "data": {"corpus": CODE}, "schedule": "wsd"},
]


def staged(stages: list | None = None, *changes: str) -> dict:
    given = {"train.stages": STAGES if stages is None else stages}
    given |= dict(change.split("=") for change in changes)
    return load_spec(RUN_SPEC, given).model_dump(mode="json")


@pytest.mark.parametrize(
    ("step", "change", "ends"),
    [
        (300, {"train.stages.2.tokens": 51_200}, [200, 500, 600]),
        (300, {"train.stages.anneal.data.corpus": WEB}, [200, 500, 600]),
        (300, {"train.stages.stable.tokens": 100 * 512}, [200, 300, 400]),
        (300, {"train.stages.stable.optimizer.lr": 1e-4}, [200, 500, 600]),
        (300, {"train.stages.stable.loss.z_loss": 1e-4}, [200, 500, 600]),
        (300, {"train.stages.stable.data.loss_mask": "document_starts"}, [200, 500, 600]),
        (200, {"train.stages.stable.batch.sequences": 16}, [200, 350, 400]),
        (
            299,
            {"train.stages": [*STAGES[:1], {"tokens": 51_200, "batch": {"sequences": 8}}]},
            [200, 300],
        ),
        (100, {"train.stages": [{"tokens": 51_200, "data": {"corpus": WEB}}]}, [200]),
        (550, {"train.stages": [], "train.steps": 700}, [700]),
    ],
)
def test_fork_of_stages_may_change_the_rest(step, change, ends):
    made = fork_spec(staged(), change, step=step)
    assert [stage.span.last for stage in made.own.course] == ends
    assert (made.own.forked_at is None) == bool(made.own.stages)
    assert load_spec(made.model_dump(mode="json")) == made


@pytest.mark.parametrize(
    ("step", "change", "says", "hint"),
    [
        (
            300,
            {"train.stages.stable.batch.sequences": 16},
            (
                "step 300 lies within stage stable (steps 200 to 500), whose batch cannot change there "
                "(8 sequences of 64 tokens, not 16 sequences of 64 tokens)."
            ),
            (
                "Fork at step 200, where it begins; or fork at step 500, where it ends; or end it here "
                "(train.stages.1.tokens=51200), and change the stage after it."
            ),
        ),
        (
            300,
            {"train.stages.0.data.corpus.paths": ["/other"]},
            "step 300 lies after stage main (steps 0 to 200), whose data cannot change there.",
            "Leave it as it was.",
        ),
        (
            550,
            {"train.stages.1.tokens": 1024},
            "train.stages end with step 302, but",
            "Add a stage",
        ),
        (300, {"train.seed": 5}, "whose seed cannot change there (0, not 5)", "Leave it"),
        (
            550,
            {"train.schedule.warmup_steps": 5},
            "train.schedule ends with step 500, and the checkpoint is at step 550: a warmup",
            "train.stages.NAME.schedule.warmup_steps",
        ),
    ],
)
def test_fork_of_stages_cannot_change_what_was_trained(step, change, says, hint):
    with pytest.raises(SpecError) as caught:
        fork_spec(staged(), change, step=step)
    (problem,) = caught.value.problems
    assert says in problem.message
    assert hint in problem.hint


def test_run_without_stages_is_the_first_stage_of_its_fork():
    plain = source("train.steps=500")
    further = {"tokens": 10 * 512, "batch": {"sequences": 8}}
    made = fork_spec(plain, {"train.stages": [{"tokens": 300 * 256}, further]}, step=300)
    assert [stage.span.last for stage in made.own.course] == [300, 310]
    wider = fork_spec(plain, ["train.batch.sequences=8"], step=100)
    again = fork_spec(
        wider.model_dump(mode="json"),
        {"train.stages": [{"tokens": wider.own.tokens_at(300)}, {"tokens": 5120}]},
        step=300,
    )
    assert again.own.forked_at == ForkedAt(after_steps=100, after_tokens=25_600)
    assert [stage.span.last for stage in again.own.course] == [300, 310]
    with pytest.raises(
        SpecError, match=r"step 400 lies within the run \(steps 0 to 500\), whose b"
    ):
        fork_spec(
            plain, {"train.stages": [{"tokens": 300 * 256}, {**further, "tokens": "1M"}]}, step=400
        )


def test_rate_at_the_fork_is_that_of_its_stage():
    plain = staged(None, "train.schedule.name=constant", "train.optimizer.lr=1e-3")
    cooled = fork_spec(plain, {"train.stages.2.schedule.decay_ratio": 1.0}, step=550)

    def warning(before, change: dict, step: int) -> str | None:
        source = before.model_dump(mode="json")
        return reheating(before, fork_spec(source, change, step=step), step)

    assert warning(cooled, {}, 550) is None
    text = warning(cooled, {"train.stages.2.tokens": 200 * 512}, 550)
    assert text is not None
    assert text.startswith("at step 551 the learning rate rises from 5.4e-04 to 7.7e-04, since wsd")
    assert "train.schedule" not in text
    assert warning(cooled, {"train.stages.2.optimizer.lr": 1.0}, 550) is None
    assert warning(cooled, {"train.stages.2.schedule": "constant"}, 500) is None


def test_fork_may_add_a_stage_that_reads_its_corpus_in_longer_sequences():
    change = {"train.stages.2": {"tokens": 51_200, "batch": {"sequence_length": 128}}}
    fork = fork_spec(staged(), change, step=100)
    assert [one.config.batch.longest_sequence for one in fork.own.course] == [128] * 3
