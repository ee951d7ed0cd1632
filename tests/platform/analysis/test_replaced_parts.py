"""What a plan, a gate and a fork still know of a run whose project replaces parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.analysis.curve import Curve
from lehr.analysis.gates import Evidence, expected, judge
from lehr.analysis.plan import plan_run
from lehr.analysis.replaced_parts import BuiltModel, not_ours, still_known
from lehr.control.forks import fork_spec
from lehr.errors import SpecError
from lehr.specs import RunSpec, stages
from lehr_testing import rollouts, specs
from lehr_testing.rollouts import H100

BUILT = BuiltModel(parameters=1_000_000, looked_up=200_000)


def spec(parts, **resources) -> RunSpec:
    made = specs.run(Path("/corpus"), "changed", parts=parts)
    return RunSpec.model_validate(
        {**made, "code": {"include": ["*.py"]}, "resources": {"gpus": 1, **resources}}
    )


def test_plan_of_a_changed_model_has_its_own_count_and_its_flops_as_6n():
    run = spec({"model": "own:Gated"}, gpu_type="A100")
    made = plan_run(run, built=BUILT)
    assert made.model == "own:Gated"
    assert made.parameters.total == BUILT.parameters
    assert made.flops == 6 * 800_000 * run.own.total_tokens
    assert made.fits is None
    [text] = made.replaced_parts
    assert text == (
        "model class own:Gated is not Lehr's: parameters counted by building it; FLOPs estimated "
        "as 6N; memory planned as of Lehr's llama; export is not possible"
    )


def test_loss_and_optimizer_are_named_with_what_is_planned_in_their_place():
    run = spec({"loss": "own:loss", "optimizer": "own:lion"})
    loss, optimizer = still_known(run.own, None)
    assert loss.startswith("loss own:loss is not Lehr's: memory planned as of chunked; val/loss")
    assert optimizer == "optimizer own:lion is not Lehr's: memory planned as of adamw"
    assert not_ours(run.own) == "loss own:loss and optimizer own:lion are not Lehr's"


def changed_stage():
    plain = rollouts.plain()
    plain["run"]["train"]["parts"] = {"model": "own:Gated"}
    plain["run"]["code"] = {"include": ["*.py"]}
    from lehr.specs import RolloutSpec

    return next(one for one in stages(RolloutSpec.model_validate(plain)) if one.name == "one_gpu")


def evidence(**curves):
    made = {name: Curve([1, 2], values) for name, values in curves.items()}
    return Evidence(
        "r", {n.replace("_", "/", 1): c for n, c in made.items()}, device=H100, complete=True
    )


def test_first_loss_of_a_changed_model_is_shown_and_not_judged():
    stage = changed_stage()
    assert expected("first_loss", stage).text == "unknown: model class own:Gated is not Lehr's"
    found = judge("first_loss", stage, evidence(train_loss=[99.0, 98.0]))
    assert (found.verdict, found.seen, found.value) == ("not_judged", "99.00 nats at step 1", 99.0)


def test_memory_of_a_changed_model_is_judged_by_the_card_alone():
    stage = changed_stage()
    text = expected("memory", stage).text
    assert text.startswith("not planned, because model class own:Gated is not Lehr's")
    assert judge("memory", stage, evidence(memory_peak_bytes=[1e9, 1e9])).verdict == "passed"
    assert judge("memory", stage, evidence(memory_peak_bytes=[1e9, 8.4e10])).verdict == "failed"


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_fork_keeps_the_parts_that_its_checkpoint_holds_the_state_of(part):
    source = spec({part: "own:Part"}).model_dump(mode="json")
    words = {"model": "is own:Part in the", "optimizer": ": .* own:Part, and own:Other cannot"}
    with pytest.raises(SpecError, match=rf"train.parts.{part}.*{words[part]}"):
        fork_spec(source, [f"train.parts.{part}=own:Other"], step=10)
    assert fork_spec(source, ["train.optimizer.lr=1e-4"], step=10).own.parts is not None
