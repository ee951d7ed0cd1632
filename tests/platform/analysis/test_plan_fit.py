"""Ways to make a run fit: each is tried through the real spec loader and planner."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lehr.analysis.plan import plan_run, refuse_if_impossible, refuse_without_space
from lehr.analysis.plan_fit import usable_bytes, ways_to_fit
from lehr.errors import PlanRefused
from lehr.specs import RunSpec, load_spec
from lehr_testing.paths import DATA
from lehr_trainer.planning.hardware import gpu_of_kind


def run(**overrides) -> RunSpec:
    spec = load_spec(DATA / "run.yaml", overrides)
    assert isinstance(spec, RunSpec)
    return spec


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
