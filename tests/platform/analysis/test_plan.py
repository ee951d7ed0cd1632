"""The plan of a run or sweep: figures that can be checked by hand, and rejections."""

import itertools
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.analysis.plan import (
    RunPlan,
    model_name,
    plan_run,
    plan_spec,
    refuse_if_impossible,
    refuse_without_space,
)
from lehr.analysis.plan_fit import usable_bytes, ways_to_fit
from lehr.analysis.plan_time import Measured, link_lines
from lehr.base.formats import millions
from lehr.errors import PlanRefused
from lehr.faces.cli.plan_text import plan_text
from lehr.specs import RunSpec, SweepSpec, expand, load_spec
from lehr.specs.examples import FOLDER, LR_GRID_SMALL
from lehr_testing.paths import DATA, ROOT
from lehr_trainer.configs.batch import LengthStage
from lehr_trainer.planning.counts import flops_per_token
from lehr_trainer.planning.hardware import gpu_of_kind, usual_mfu


def run(**overrides) -> RunSpec:
    spec = load_spec(DATA / "run.yaml", overrides)
    assert isinstance(spec, RunSpec)
    return spec


def grid(*overrides: str, file: Path = FOLDER / "lr_grid.yaml") -> SweepSpec:
    spec = load_spec(file, overrides)
    assert isinstance(spec, SweepSpec)
    return spec


@pytest.mark.parametrize(("layers", "name"), [(1, "llama of 1 layer"), (2, "llama of 2 layers")])
def test_model_that_is_no_preset_is_named_by_its_layers(layers, name):
    assert model_name(run(**{"train.model.num_hidden_layers": layers}).train) == name


def test_plan_of_the_reference_grid_matches_its_logs():
    spec = grid()
    trials = expand(spec)
    plan = plan_spec(spec)
    assert len(trials) == 8
    assert trials[0][0] == {"train.optimizer.lr": 1e-4}
    assert trials[-1][0] == {"train.optimizer.lr": 1e-2}
    first = plan.runs[0][1]
    assert first.model == "llama-1b-8layer"
    assert first.parameters.total == 755_009_536
    assert first.tied
    assert first.tokens_per_step == 32 * 2048
    assert first.gpu is not None
    assert first.gpu.kind == "A100"
    assert first.fits
    assert plan.places == 8
    assert plan.waves == 1


MIX = (
    "run.train.data.corpus={kind: mix, parts: {web: {weight: 3, corpus: {kind: text, paths: [/w]}},"
    " own: {weight: 1, corpus: {kind: stdlib}}}}"
)


def test_plan_of_a_mix_has_the_tokens_of_each_corpus():
    plan = plan_run(grid(MIX).run)
    assert plan.corpus_tokens == {"web": 49_152_000, "own": 16_384_000}
    assert plan_run(grid().run).corpus_tokens == {}
    text = plan_text(plan_spec(grid(MIX).run), None)
    assert "web   49.2 M tokens, 75.0% of training" in text
    spec = grid(MIX, "parameters={train.data.corpus.parts.own.weight: {values: [1, 3]}}")
    text = plan_text(plan_spec(spec), None)
    assert "own   16.4 M to 32.8 M tokens, 25.0% to 50.0% of training" in text


@pytest.mark.parametrize(
    ("trials", "says"),
    [
        (12, "12 trials (the first 10 drawn at random, the others from results)"),
        (6, "6 trials (all drawn at random: TPE chooses from point 11 on)"),
    ],
)
def test_plan_of_a_search_says_which_trials_are_random(trials, says):
    parameters = "parameters={train.optimizer.lr: {min: 1e-4, max: 1e-2}}"
    spec = grid("method=tpe", f"trials={trials}", parameters)
    assert says in plan_text(plan_spec(spec), None)


def test_time_and_cost_follow_from_flops_and_the_dense_peak():
    plan = plan_run(grid().run)
    assert plan.gpu is not None
    flops = flops_per_token(grid().run.train.model, 2048) * 65_536 * 1000
    assert plan.seconds == pytest.approx(flops / (usual_mfu("A100").share * 312e12))
    assert "50 % MFU (published runs" in plan.basis
    assert plan.gpu_hours == pytest.approx(plan.seconds / 3600)
    assert plan.dollars == pytest.approx(plan.gpu_hours * 2.0)
    assert "no measured run" in plan.basis


@pytest.mark.parametrize(
    ("parallel", "gb", "change"),
    [
        ("{}", "5.0", "train.parallel.compression=bf16 sends 2.5 GB"),
        ("{compression: bf16}", "2.5", None),
        # In each of two micro-batches: weights (of blocks in 16 bits), blocks again, and gradients.
        ("{shard: all}", "9.9", "train.parallel.shard=node sends 5.0 GB"),
        ("{shard: optimizer}", "6.5", "train.parallel.shard=node sends 5.0 GB"),
    ],
)
def test_plan_over_nodes_names_what_a_step_sends_and_a_change(parallel, gb, change):
    """llama-1b has 4.97 GB of weights; of two nodes each sends half of twice as much."""
    changes = (
        "run.train.model=llama-1b",
        "run.train.batch={sequences: 32, sequence_length: 2048, micro_batch: 1}",
        f"run.train.parallel={parallel}",
    )
    two = "run.resources={gpus: 16, nodes: 2, gpu_type: A100}"
    text, *named = plan_run(grid(*changes, two).run).link
    assert text.startswith(f"{gb} GB a step from each node: ")
    assert "at 100 Gbit/s (assumed" in text
    assert named == ([] if change is None else [change])
    assert plan_run(grid(*changes, "run.resources={gpus: 16}").run).link == []
    train = grid(*changes, two).run.train
    assert len([*link_lines(train, nodes=2, ranks=16, step_s=60.0)]) == 1


def test_plan_over_nodes_counts_a_byte_for_a_weight_gathered_in_fp8():
    fp8 = "run.train.parallel={shard: all}", "run.train.precision={compute: bf16, fp8: tensorwise}"
    batch = "run.train.batch={sequences: 32, sequence_length: 2048, micro_batch: 1}"
    fp8 += batch, "run.train.model=llama-1b", "run.resources={gpus: 16, nodes: 2, gpu_type: A100}"
    assert plan_run(grid(*fp8).run).link[0].startswith("8.0 GB a step")


def test_cost_of_each_stage_follows_its_sequence_length():
    spec = grid().run
    stages = [LengthStage(after=0.9, sequence_length=4096)]
    batch = spec.train.batch.model_copy(update={"stages": stages})
    staged = spec.model_copy(update={"train": spec.train.model_copy(update={"batch": batch})})
    short, long = (flops_per_token(spec.train.model, length) for length in (2048, 4096))
    assert plan_run(staged).flops == pytest.approx((900 * short + 100 * long) * 65_536)


def test_the_price_can_be_given():
    assert plan_run(grid().run, price=1.0).dollars == pytest.approx(plan_run(grid().run).gpu_hours)


def test_plan_uses_and_names_a_measured_run():
    plan = plan_run(run(), before=lambda *_: [Measured("before", 1024.0)])
    assert plan.seconds == pytest.approx(100 * 8 * 128 / 1024.0)
    assert "before" in plan.basis


def test_sweep_with_a_trial_of_unknown_time_says_why_it_has_none():
    spec = grid(
        "parameters={train.optimizer.name: {values: [adamw, adamw8bit]}}", file=LR_GRID_SMALL
    )

    def planned(trial: RunSpec) -> RunPlan:
        before = [Measured("before", 1024.0)] if trial.train.optimizer.name == "adamw" else []
        return plan_run(trial, before=lambda *_: before)

    assert "  time     unknown: no measured run" in plan_text(plan_spec(spec, planned), None)


def test_plan_for_an_unknown_gpu_has_no_estimates():
    for overrides in ({}, {"resources.gpu_type": "TPU"}):
        plan = plan_run(run(**overrides))
        assert plan.seconds is None
        assert plan.dollars is None
        assert plan.fits is None


def test_trials_beyond_the_available_slots_run_in_waves():
    spec = grid()
    plan = plan_spec(spec, places=3)
    assert (plan.places, plan.waves) == (3, 3)
    assert plan.seconds == pytest.approx(3 * plan.runs[0][1].seconds)
    capped = grid("max_concurrent=2")
    assert plan_spec(capped).places == 2


def test_small_grid_varies_the_same_parameter_as_the_reference():
    spec = grid(file=LR_GRID_SMALL)
    assert list(spec.parameters) == ["train.optimizer.lr"]
    assert len(expand(spec)) == 8
    assert spec.metric == grid().metric


def test_small_grid_states_the_size_of_its_model():
    size = millions(plan_run(expand(grid(file=LR_GRID_SMALL))[0][1]).parameters.total)
    comment = LR_GRID_SMALL.read_text().partition("kind:")[0].replace("\n# ", " ")
    assert f"a model of {size} parameters" in comment


def test_grids_in_the_repository_are_those_of_the_package():
    sweeps = ROOT / "sweeps"
    assert (sweeps / "lr_grid.yaml").read_text() == (FOLDER / "lr_grid.yaml").read_text()
    assert (sweeps / "lr_grid_small.yaml").read_text() == LR_GRID_SMALL.read_text()


def test_plan_counts_trials_that_tpe_will_choose() -> None:
    searched = load_spec(
        FOLDER / "lr_grid.yaml",
        {
            "method": "tpe",
            "trials": 40,
            "parameters": {"train.optimizer.lr": {"min": 1e-5, "max": 1e-2}},
        },
    )
    assert isinstance(searched, SweepSpec)
    plan = plan_spec(searched, places=8)
    assert (len(plan.runs), plan.later, plan.waves) == (10, 30, 5)
    first = plan.runs[0][1]
    assert plan.gpu_hours is not None
    assert first.gpu_hours is not None
    assert plan.gpu_hours == pytest.approx(40 * first.gpu_hours)


def test_each_stage_of_a_rollout_shows_what_a_run_does():
    spec = load_spec(ROOT / "sweeps" / "rollout_llama_1b.yaml")
    planned = plan_spec(spec, partial(plan_run, price=3.0))
    shown = plan_text(planned, None)
    for stage, plan in planned.runs:
        assert f"{stage.number}  [bold]" in shown
        if plan.gpus:
            assert f"${plan.gpu_hours * 3.0:,.2f}" in shown, stage.name
    assert shown.count("  memory ") == len(planned.runs)


def large(gpu: str = "A100", **overrides) -> RunSpec:
    return run(
        **{
            "train.model": "llama-1b",
            "train.data.tokenizer": "tekken",
            "train.batch.sequences": 64,
            "train.batch.sequence_length": 2048,
            "resources.gpu_type": gpu,
            **overrides,
        }
    )


def ways(spec: RunSpec):
    gpu = gpu_of_kind(spec.resources.gpu_type or "")
    assert gpu is not None
    return gpu, ways_to_fit(spec, gpu)


def test_refusal_says_by_how_much_and_names_three_ways_cheapest_first():
    spec = large()
    plan = plan_run(spec)
    assert plan.fits is False
    assert plan.gpu is not None
    with pytest.raises(PlanRefused) as caught:
        refuse_if_impossible(spec, plan)
    assert caught.value.exit_code == 3
    over = (plan.memory.peak - usable_bytes(plan.gpu)) / 1e9
    assert f"{over:.1f} GB too much: an A100 has 85 GB" in caught.value.message
    assert caught.value.hint is not None
    title, *lines = caught.value.hint.splitlines()
    assert "cheapest in time first" in title
    assert len(lines) == 3
    assert lines[0].strip().startswith("train.batch.micro_batch=")


@given(
    sequences=st.sampled_from([8, 24, 64]),
    length=st.sampled_from([512, 2048]),
    loss=st.sampled_from(["standard", "chunked"]),
    gpu=st.sampled_from(["A100", "L4", "RTX 4090"]),
)
def test_every_way_fits_when_its_changes_are_applied(sequences, length, loss, gpu):
    spec = large(
        gpu,
        **{
            "train.model": "llama-1b-8layer",
            "train.batch.sequences": sequences,
            "train.batch.sequence_length": length,
            "train.loss.name": loss,
        },
    )
    found, offered = ways(spec)
    assert bool(plan_run(spec).fits) == (offered == [] and plan_run(spec).fits is not False)
    factors = [way.time_factor for way in offered]
    assert factors == sorted(factors)
    assert len({str(way.changes) for way in offered}) == len(offered)
    for way in offered:
        changed = load_spec(spec.model_dump(mode="json", exclude_unset=True), way.changes)
        assert isinstance(changed, RunSpec)
        plan = plan_run(changed)
        assert plan.memory.peak == way.memory_bytes
        assert plan.memory.peak <= usable_bytes(found)
        assert plan.tokens_per_step == plan_run(spec).tokens_per_step


def test_a_way_has_the_largest_micro_batch_that_fits():
    spec = large()
    _, offered = ways(spec)
    path = "train.batch.micro_batch"
    for way in offered:
        doubled = {**way.changes, path: 2 * way.changes.get(path, 64)}
        if doubled[path] <= 64:
            bigger = load_spec(spec.model_dump(mode="json"), doubled)
            assert isinstance(bigger, RunSpec)
            assert plan_run(bigger).fits is False


def test_no_way_is_worse_than_another_in_everything():
    for gpu in ("L4", "RTX 4090"):
        _, offered = ways(large(gpu, **{"train.batch.sequences": 8}))
        assert offered
        for one, other in itertools.permutations(offered, 2):
            path = "train.batch.micro_batch"
            better = (
                one.time_factor < other.time_factor,
                one.changes.get(path, 8) > other.changes.get(path, 8),
                one.result.startswith("same") and not other.result.startswith("same"),
                len(one.changes) < len(other.changes),
            )
            assert any(better)


def test_eight_bit_moments_are_offered_where_states_fill_the_gpu():
    _, offered = ways(large("RTX 4090", **{"train.batch.sequences": 8}))
    assert offered[0].changes == {"train.optimizer.name": "adamw8bit", "train.batch.micro_batch": 1}
    assert "8 bits" in offered[0].text


@pytest.mark.parametrize(("width", "divided"), [(8192, True), (8184, False)])
def test_eight_bit_moments_are_divided_where_rows_are_whole_blocks(width: int, divided: bool):
    changes = {"train.batch.sequences": 8, "train.model.intermediate_size": width}
    _, offered = ways(large("T4", **changes, **{"resources.gpus": 2}))
    both = {"train.optimizer.name", "train.parallel.shard"}
    assert any(both <= way.changes.keys() for way in offered) is divided


def test_recomputation_buys_a_larger_micro_batch_or_is_not_offered():
    _, offered = ways(large())
    path = "train.batch.micro_batch"
    sizes = [way.changes.get(path, 64) for way in offered]
    assert "train.activation_checkpointing.policy" not in offered[0].changes
    assert all(bigger > sizes[0] for bigger in sizes[1:])


def test_run_too_large_for_the_gpu_names_those_where_a_change_helps():
    spec = large("T4")
    with pytest.raises(PlanRefused, match=r"It fits, as it is or changed like this, in: .*A100"):
        refuse_if_impossible(spec, plan_run(spec))


def test_largest_micro_batch_is_planned_beyond_the_specs_own():
    small = large(**{"train.batch.micro_batch": 1})
    plan = plan_run(small)
    most = plan.largest_micro_batch
    assert most is not None
    assert most > 1
    assert plan_run(large(**{"train.batch.micro_batch": most})).fits
    assert not plan_run(large(**{"train.batch.micro_batch": 2 * most})).fits


def test_refusal_names_the_variant_that_has_room_not_the_refused_kind():
    shape = {"preset": "llama-1b", "hidden_size": 4096, "intermediate_size": 14_336}

    def spec(gpu: str) -> RunSpec:
        return large(gpu, **{"train.model": {**shape, "num_hidden_layers": 32}})

    with pytest.raises(PlanRefused, match=r" an H100 has 85 GB") as caught:
        refuse_if_impossible(spec("H100"), plan_run(spec("H100")))
    proposed = (caught.value.hint or "").rpartition("in: ")[2].rstrip(".").split(", ")
    assert proposed[0] == "H100 NVL"
    assert "H100" not in proposed
    # Each is what a spec can say, and then no longer refused for good.
    for gpu in proposed:
        named, offered = ways(spec(gpu))
        assert named.name == gpu
        assert plan_run(spec(gpu)).fits or offered


def test_checkpoints_that_no_disk_can_hold_are_refused():
    plan = plan_run(large(**{"train.checkpoint.every": 10, "train.checkpoint.keep_every": 20}))
    size, kept = plan.checkpoints.size_bytes, plan.checkpoints.kept
    assert (plan.checkpoints.saves, kept) == (10, 6)
    one = (kept + 1) * size
    refuse_without_space([plan], 1, [one, size])
    with pytest.raises(PlanRefused, match=r"need 104.\d GB at once \(89.\d GB are kept, each of"):
        refuse_without_space([plan], 1, [one - 1, one - 1])
    # Of eight, two train at a time; their folders are counted together.
    refuse_without_space([plan] * 8, 2, [4 * kept * size, 4 * kept * size + 2 * size])
    with pytest.raises(PlanRefused):
        refuse_without_space([plan] * 8, 2, [8 * kept * size])
    refuse_without_space([plan], 1, [])
