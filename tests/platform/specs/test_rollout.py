"""The spec of a rollout: its defaults and its errors."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lehr.errors import SpecError
from lehr.specs import RolloutSpec, RunSpec, json_schema, load_spec, stages
from lehr.specs.examples import FOLDER, ROLLOUT_SMALL
from lehr.specs.stages import left_out
from lehr_testing.paths import ROOT
from lehr_testing.properties import examples

TRAIN = {
    "model": "llama-1b",
    "data": {"corpus": {"kind": "stdlib"}},
    "batch": {"sequences": 512, "sequence_length": 2048, "micro_batch": 8},
    "steps": 20_000,
    "schedule": {"warmup_steps": 2000},
    "average": {"last": 5, "every": 2000},
}
LEAST = {"kind": "rollout", "name": "llama-1b", "run": {"resources": {"gpus": 8}, "train": TRAIN}}


def read(overrides=(), **fields) -> RolloutSpec:
    found = load_spec({**LEAST, **fields}, overrides)
    assert isinstance(found, RolloutSpec)
    return found


def planned(overrides=(), **fields):
    return {stage.name: stage for stage in stages(read(overrides, **fields))}


def message(overrides=(), **fields) -> str:
    with pytest.raises(SpecError) as error:
        read(overrides, **fields)
    return str(error.value)


def test_rollout_needs_only_kind_name_and_run():
    found = planned()
    assert list(found) == ["cpu", "one_gpu", "two_gpus", "all"]
    assert [stage.train.resources.gpus for stage in found.values()] == [0, 1, 2, 8]
    assert [stage.train.train.steps for stage in found.values()] == [60, 250, 100, 20_000]
    assert [stage.train.name for stage in found.values()] == [
        "llama-1b-cpu",
        "llama-1b-one-gpu",
        "llama-1b-two-gpus",
        "llama-1b-all",
    ]
    assert [stage.roles for stage in found.values()] == [
        ("train", "resumed"),
        ("train", "whole", "resumed"),
        ("train", "whole", "resumed"),
        ("train",),
    ]


def test_short_stages_train_the_first_stage_of_the_run():
    course = [
        {
            "tokens": 512 * 2048 * 200,
            "batch": {"sequence_length": 1024},
            "optimizer": {"lr": 1e-3},
            "schedule": {"name": "wsd", "warmup_steps": 20},
        },
        {"tokens": "20B", "batch": {"sequences": 1024, "sequence_length": 2048}},
    ]
    train = {name: value for name, value in TRAIN.items() if name not in {"steps", "average"}}
    found = planned(run={"resources": {"gpus": 8}, "train": {**train, "stages": course}})
    small, whole = found["one_gpu"].train.own, found["all"].train.own
    assert (small.steps, small.stages, small.optimizer.lr) == (200, [], 1e-3)
    assert (small.batch.sequences, small.batch.sequence_length) == (128, 1024)
    assert (small.schedule.name, small.schedule.warmup_steps) == ("wsd", None)
    assert small.schedule.warmup_ratio == pytest.approx(20 / 200)
    assert whole.steps == found["all"].train.steps > 200
    assert len(whole.stages) == 2


def test_stages_keep_the_batch_per_gpu_and_the_shape_of_the_schedule():
    found = planned()
    for name in ("one_gpu", "two_gpus"):
        train = found[name].train.train
        assert train.batch.sequences == 64 * found[name].train.resources.gpus
        assert train.batch.micro_batch == 8
        assert train.schedule.warmup(train.steps) == train.steps // 10
        assert train.average.every == train.steps // 10
        assert train.model == found["all"].train.train.model
    assert not found["one_gpu"].train.train.deterministic
    assert found["one_gpu"].runs["whole"].train.deterministic
    assert found["all"].changes == {}


def test_cpu_stage_trains_a_small_model_of_the_same_kind():
    big = {
        "model": {"preset": "llama-1b", "tie_embeddings": False},
        "precision": {"compute": "bf16", "fp8": {"recipe": "rowwise"}},
        "compile": {"scope": "block", "mode": "max-autotune"},
        "attention": {"backend": "flash"},
        "loss": {"name": "liger"},
    }
    train = planned(run={"resources": {"gpus": 8}, "train": {**TRAIN, **big}})["cpu"].train.train
    assert (train.model.num_hidden_layers, train.model.hidden_size) == (2, 64)
    assert train.model.vocab_size == 2**17
    assert not train.model.tie_embeddings
    assert (train.batch.sequences, train.batch.sequence_length) == (8, 256)
    assert (train.device, train.precision.compute, train.compile.scope) == ("cpu", "fp32", "none")
    assert (train.attention.backend, train.loss.name) == ("auto", "chunked")
    assert train.precision.fp8.recipe == "none"
    # 3e-4 at a width of 2,048 is 9.6e-3 at 64.
    assert train.optimizer.lr == 9.6e-3
    assert train.deterministic


def test_cpu_stage_keeps_the_rate_under_mup():
    mup = {"preset": "llama-1b", "parametrization": "mup", "base_width": 256}
    train = planned(run={"resources": {"gpus": 8}, "train": {**TRAIN, "model": mup}})[
        "cpu"
    ].train.train
    assert (train.model.parametrization, train.model.hidden_size) == ("mup", 64)
    assert train.optimizer.lr == 3e-4


def test_overrides_reach_the_run_the_stages_and_their_gates():
    found = read(["train.optimizer.lr=1e-3", "stages.one_gpu.gates.mfu.at_least=0.3", "name=other"])
    assert found.run.train.optimizer.lr == 1e-3
    assert found.stages.one_gpu.gates.mfu.at_least == 0.3
    assert found.name == "other"
    # What was not given keeps its stage's own default.
    assert found.stages.cpu.gates.no_alerts.ignore == ["data_wait", "slowdown", "straggler"]
    assert load_spec({"name": "x", "run": LEAST["run"], "stages": {}}).kind == "rollout"


@pytest.mark.parametrize(
    ("gpus", "names", "out"),
    [
        (0, ["cpu", "all"], ["one_gpu", "two_gpus"]),
        (1, ["cpu", "one_gpu", "all"], ["two_gpus"]),
        (2, ["cpu", "one_gpu", "two_gpus", "all"], []),
    ],
)
def test_stage_with_more_gpus_than_the_run_is_omitted(gpus, names, out):
    run = {"resources": {"gpus": gpus}, "train": TRAIN}
    assert list(planned(run=run)) == names
    assert list(left_out(read(run=run))) == out
    assert list(planned(["stages.cpu.enabled=false"], run=run)) == names[1:]


@pytest.mark.parametrize(
    ("override", "text"),
    [
        (
            "stages.one_gpu.gates.mfu.at_leest=0.3",
            (
                "stages.one_gpu.gates.mfu.at_leest is not a field.\n"
                "  Did you mean stages.one_gpu.gates.mfu.at_least?"
            ),
        ),
        ("stages.one_gp.steps=3", "stages.one_gp is not a field.\n  Did you mean stages.one_gpu?"),
        (
            "stages.cpu.set={train.optimizer.learning_rate: 1e-3}",
            (
                "train.optimizer.learning_rate is not in the spec of a run.\n"
                "  Did you mean train.optimizer.lr?"
            ),
        ),
        (
            "stages.cpu.set={train.optimizer.lr: -1}",
            "stage cpu: train.optimizer.lr is -1; it must be greater than 0.",
        ),
        (
            "stages.one_gpu.set={train.steps: 10}",
            "train.steps cannot be set here: use `steps` of the stage.",
        ),
        (
            "stages.two_gpus.nodes=3",
            "stage two_gpus: resources: nodes 3 does not divide gpus 2, the number over all nodes: gpus 3 gives each node 1.",
        ),
        (
            "stages.all.gates.exact_resume.enabled=true",
            "stages.all.gates.exact_resume is not a field.",
        ),
        (
            "stages.cpu.gates.no_alerts.ignore=[data_wiat]",
            "stages.cpu.gates.no_alerts.ignore[0] is data_wiat; it must be one of",
        ),
        ("stages.cpu.gpus=-1", "stages.cpu.gpus is -1; it must be at least 0."),
    ],
)
def test_error_names_the_valid_values(override, text):
    assert text in message([override])


@pytest.mark.parametrize(
    "path", [FOLDER / "rollout_llama_1b.yaml", ROLLOUT_SMALL], ids=lambda path: path.stem
)
def test_example_rollouts_have_four_stages_and_a_link_in_sweeps(path):
    found = load_spec(path)
    assert isinstance(found, RolloutSpec)
    assert [stage.name for stage in stages(found)] == ["cpu", "one_gpu", "two_gpus", "all"]
    link = ROOT / "sweeps" / path.name
    assert link.is_symlink()
    assert link.read_text() == (FOLDER / path.name).read_text()


@settings(max_examples=examples(60), deadline=None)
@given(
    gpus=st.sampled_from([0, 1, 2, 4, 8, 16]),
    per_gpu=st.sampled_from([1, 3, 8, 64]),
    steps=st.integers(2, 5000),
    warmup=st.one_of(st.none(), st.integers(0, 5000)),
    average=st.one_of(st.none(), st.integers(1, 2500)),
    model=st.sampled_from(["llama-1b", "tiny", "gpt2", "gpt2-tiny", "gpt2-134m"]),
    optimizer=st.sampled_from(["adamw", "muon"]),
    scale=st.sampled_from(["tiny", "run"]),
)
def test_stages_of_every_valid_run_are_valid(
    gpus, per_gpu, steps, warmup, average, model, optimizer, scale
):
    assume(warmup is None or warmup <= steps)
    assume(average is None or 2 * average <= steps)
    train = {
        "model": model,
        "data": {"corpus": {"kind": "stdlib"}},
        "batch": {"sequences": per_gpu * max(gpus, 1), "sequence_length": 64},
        "steps": steps,
        "optimizer": {"name": optimizer},
        "schedule": {} if warmup is None else {"warmup_steps": warmup},
        "average": None if average is None else {"ema": 0.9, "every": average},
    }
    run = {"resources": {"gpus": gpus}, "train": train}
    found = stages(read(run=run, stages={"cpu": {"scale": scale}}))
    assert [stage.number for stage in found] == list(range(1, len(found) + 1))
    for stage in found:
        again = RunSpec.model_validate(stage.train.model_dump(mode="json"))
        assert again == stage.train
        assert stage.judge_after <= stage.train.train.steps <= steps
        if stage.resumes and "resumed" in stage.roles:
            whole = stage.runs[stage.whole].train
            assert whole.deterministic
            assert 0 < stage.middle <= whole.steps
            assert whole.checkpoint.every == stage.middle
            assert stage.middle < whole.steps


def test_run_of_one_step_is_rejected():
    train = {**TRAIN, "steps": 1, "schedule": {}, "average": None}
    assert message(run={"train": train}) == "run.train.steps is 1; a rollout needs at least 2."


def test_the_schema_names_stages_gates_and_paths():
    schema = json_schema("rollout")
    assert schema["required"] == ["name", "run"]
    assert "name" not in schema["$defs"]["RunSpec"]["required"]
    paths = schema["$defs"]["Stage"]["properties"]["set"]["properties"]
    assert "train.optimizer.lr" in paths
    assert set(schema["$defs"]["Gates"]["properties"]) == {
        "first_loss",
        "falling_loss",
        "no_alerts",
        "memory",
        "mfu",
        "exact_resume",
    }
