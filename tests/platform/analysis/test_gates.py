"""The gates of a rollout: when each passes, fails, waits, or is not judged."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from lehr.analysis.curve import Curve
from lehr.analysis.diagnosis import Alert
from lehr.analysis.gates import Evidence, Pair, expected, judge
from lehr.analysis.plan import plan_run, refuse_if_impossible
from lehr.analysis.replaced_parts import BuiltParts, not_ours, still_known
from lehr.control.forks import fork_spec
from lehr.errors import PlanRefused, SpecError
from lehr.specs import RunSpec, stages
from lehr_testing import rollouts, specs
from lehr_testing.rollouts import H100, spec
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.planning.counts import predicted_first_loss
from lehr_trainer.planning.memory import PHASES

STAGES = {stage.name: stage for stage in stages(spec())}
ONE = STAGES["one_gpu"]
START = predicted_first_loss(ONE.train.train.model)


def curve(values, first=1):
    return Curve(list(range(first, first + len(values))), list(values))


def seen(*, complete=True, device=H100, losses=None, **more):
    losses = [START * (1 - 0.002 * n) for n in range(100)] if losses is None else losses
    curves = {"train/loss": curve(losses), **more.pop("curves", {})}
    return Evidence("r", curves, device=device, complete=complete, **more)


def verdict(gate, evidence, stage=ONE):
    found = judge(gate, stage, evidence)
    return None if found is None else found.verdict


def with_gate(stage, gate, **values):
    return replace(stage, gates={**stage.gates, gate: stage.gates[gate].model_copy(update=values)})


# --- first loss ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "found"),
    [
        (START, "passed"),
        (START + 0.49, "passed"),
        (START - 0.49, "passed"),
        (START + 0.51, "failed"),
        (START - 0.51, "failed"),
        (math.nan, "failed"),
        (math.inf, "failed"),
    ],
)
def test_first_loss_must_be_near_that_of_untrained_weights(first, found):
    # It is known after one step: nothing is waited for.
    assert verdict("first_loss", seen(losses=[first], complete=False)) == found


@pytest.mark.parametrize(
    "model",
    [
        {"preset": "tiny", "num_hidden_layers": 2},
        {"preset": "tiny", "num_hidden_layers": 2, "tie_embeddings": False},
        {"preset": "tiny", "vocab_size": 2**16, "num_hidden_layers": 2, "stable_embedding": True},
        {"preset": "tiny", "vocab_size": 4096, "hidden_size": 512, "num_hidden_layers": 1},
        {"preset": "gpt2-tiny", "num_hidden_layers": 2},
        {"preset": "gpt2-tiny", "num_hidden_layers": 2, "tie_embeddings": False},
    ],
    ids=str,
)
def test_predicted_first_loss_matches_fresh_weights(model):
    import torch

    from lehr_trainer.models import build_model

    config = TrainConfig.model_validate(
        {
            "model": model,
            "data": {"corpus": {"kind": "stdlib"}},
            "batch": {"sequences": 4, "sequence_length": 128},
            "steps": 2,
        }
    ).model
    made = build_model(config, device="cpu", seed=3)
    torch.manual_seed(0)
    tokens_BT, targets_BT = torch.randint(config.vocab_size, (2, 4, 128))
    with torch.no_grad():
        logits_BTV = made(tokens_BT) @ made.head_weight.T
    loss = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())
    assert float(loss) == pytest.approx(predicted_first_loss(config), abs=0.1)


def test_published_run_matches_its_predicted_first_loss():
    model = spec(train={"model": "llama-1b"}).run.train.model
    assert math.log(model.vocab_size) == pytest.approx(11.78, abs=0.01)
    assert predicted_first_loss(model) == pytest.approx(12.26, abs=0.1)


# --- falling loss, alerts ------------------------------------------------------------------


def test_loss_must_fall_by_the_end_and_never_be_nan():
    flat = [START + 0.01 * (-1) ** n for n in range(100)]
    assert verdict("falling_loss", seen(losses=flat, complete=False)) is None
    assert verdict("falling_loss", seen(losses=flat)) == "failed"
    assert verdict("falling_loss", seen()) == "passed"
    just = [START] * 90 + [START * 0.9701] * 10
    assert verdict("falling_loss", seen(losses=just)) == "failed"
    assert verdict("falling_loss", seen(losses=[*just[:90], *[START * 0.9699] * 10])) == "passed"
    lost = judge("falling_loss", ONE, seen(losses=[START, math.nan], complete=False))
    assert (lost.verdict, lost.seen, lost.step) == ("failed", "the loss became nan at step 2", 2)
    few = judge("falling_loss", ONE, seen(losses=[START] * 5))
    assert (few.verdict, few.seen) == (
        "not_judged",
        "only 5 of its steps were logged; 6 are needed",
    )


def test_alerts_fail_at_the_end_nan_at_once_and_ignored_ones_never():
    rising = Alert(50, "the loss rose", "A lower rate", code="diverging")
    assert verdict("no_alerts", seen(alerts=[rising], complete=False)) is None
    found = judge("no_alerts", ONE, seen(alerts=[rising]))
    assert (found.verdict, found.seen, found.step) == ("failed", "the loss rose. A lower rate", 50)
    lost = Alert(3, "the loss became nan", "A lower rate", code="nan")
    assert verdict("no_alerts", seen(alerts=[lost], complete=False)) == "failed"
    waits = Alert(9, "7% of a step", "More workers", code="data_wait")
    assert verdict("no_alerts", seen(alerts=[waits])) == "failed"
    assert verdict("no_alerts", seen(alerts=[waits]), STAGES["cpu"]) == "passed"


# --- memory, MFU ---------------------------------------------------------------------------


def memory(peak_gb, reserved_gb=None):
    found = {"memory/peak_bytes": curve([peak_gb * 1e9] * 3)}
    if reserved_gb is not None:
        found["memory/reserved_bytes"] = curve([reserved_gb * 1e9] * 3)
    return found


def test_memory_must_be_within_the_plan_and_the_gpu():
    limit = expected("memory", ONE).at_most
    assert limit is not None
    assert verdict("memory", seen(curves=memory(limit * 0.99), complete=False)) is None
    assert verdict("memory", seen(curves=memory(limit * 0.99))) == "passed"
    # What is too much is known at once.
    assert verdict("memory", seen(curves=memory(limit * 1.01), complete=False)) == "failed"
    # Seen on an H100: 14.9 GB at the peak, 73.8 reserved; it is the card that overflows.
    assert verdict("memory", seen(curves=memory(limit * 0.9, 80.0))) == "passed"
    assert verdict("memory", seen(curves=memory(limit * 0.9, 81.0))) == "failed"
    stated = with_gate(ONE, "memory", at_most_gb=0.5)
    assert verdict("memory", seen(curves=memory(0.6)), stated) == "failed"
    assert verdict("memory", seen(curves=memory(0.4)), stated) == "passed"
    assert verdict("memory", seen(cause="out_of_memory", complete=False)) == "failed"
    assert verdict("memory", seen()) == "not_judged"


def test_on_a_cpu_memory_and_mfu_are_not_judged():
    rss = {"memory/rss_bytes": curve([2e9] * 3)}
    on_cpu = seen(device="cpu", curves=rss)
    assert verdict("memory", on_cpu) == "not_judged"
    assert verdict("mfu", on_cpu) == "not_judged"
    assert verdict("memory", seen(device="cpu", curves=rss, complete=False)) is None
    stated = with_gate(STAGES["cpu"], "memory", at_most_gb=1.5)
    assert verdict("memory", on_cpu, stated) == "failed"
    found = judge("mfu", ONE, seen(device="NVIDIA Unheard-of 9"))
    assert found.seen == "no peak is known of NVIDIA Unheard-of 9, so there is no MFU"


def test_mfu_is_the_median_of_the_second_half():
    slow_start = {"mfu": curve([0.01] * 50 + [0.41] * 50)}
    found = judge("mfu", ONE, seen(curves=slow_start))
    assert (found.verdict, found.value) == ("passed", 0.41)
    assert found.seen == "41.0 %, the median of steps 51 to 100"
    assert verdict("mfu", seen(curves={"mfu": curve([0.41] * 40 + [0.19] * 60)})) == "failed"
    assert verdict("mfu", seen(curves=slow_start, complete=False)) is None
    floor = with_gate(ONE, "mfu", at_least=0.42)
    assert verdict("mfu", seen(curves=slow_start), floor) == "failed"


def test_spike_at_the_end_does_not_fail_the_falling_loss_gate():
    """A mean of the last steps would be over the limit by the spike alone."""
    falling = [START] * 90 + [START * 0.95] * 10
    spike = [*falling[:95], START * 3, *falling[96:]]
    found = judge("falling_loss", ONE, seen(losses=spike))
    assert (found.verdict, found.value) == ("passed", START * 0.95)
    dip = [START] * 99 + [0.01]
    assert verdict("falling_loss", seen(losses=dip)) == "failed"


# --- resume --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pair", "found", "wording"),
    [
        (Pair("r", 20, {"a": "1", "b": "2"}, {"a": "1", "b": "2"}), "passed", "all 2 files"),
        (Pair("r", 20, {"a": "1", "b": "2"}, {"a": "1", "b": "3"}), "failed", "files differ: b"),
        (Pair("r", 20, {"a": "1", "b": "2"}, {"a": "1"}), "failed", "1 of 2 files differ: b"),
        (Pair("r", 20, problem="r failed: boom", failed=True), "failed", "r failed: boom"),
        (Pair("r", 20, problem="it cannot be read"), "not_judged", "cannot be read"),
        (Pair("r", 20), "not_judged", "no file"),
    ],
)
def test_exact_resume_fails_if_any_file_differs(pair, found, wording):
    judged = judge("exact_resume", ONE, seen(pair=pair))
    assert judged.verdict == found
    assert wording in judged.seen
    assert verdict("exact_resume", seen()) is None


@pytest.mark.parametrize("gate", list(ONE.gates))
def test_disabled_gate_has_no_verdict(gate):
    off = with_gate(ONE, gate, enabled=False)
    pair = Pair("r", 20, {"a": "1"}, {"a": "2"})
    assert judge(gate, off, seen(losses=[math.nan], pair=pair)) is None


def test_unlogged_first_loss_is_not_judged_and_no_loss_at_all_fails():
    late = Evidence("r", {"train/loss": curve([5.0] * 9, first=10)}, complete=True)
    found = judge("first_loss", ONE, late)
    assert (found.verdict, found.seen) == (
        "not_judged",
        "its first loss is logged at step 10 (diagnostics.log_every)",
    )
    assert verdict("first_loss", Evidence("r", {}, complete=False)) is None
    assert verdict("first_loss", Evidence("r", {}, complete=True)) == "failed"


BUILT = BuiltParts(parameters=1_000_000, looked_up=200_000)


def changed_spec(parts, **resources) -> RunSpec:
    made = specs.run(Path("/corpus"), "changed", parts=parts)
    return RunSpec.model_validate(
        {**made, "code": {"include": ["*.py"]}, "resources": {"gpus": 1, **resources}}
    )


def test_plan_of_a_changed_model_has_its_own_count_and_its_flops_as_6n():
    run = changed_spec({"model": "own:Gated"}, gpu_type="A100")
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


def moments(gigabytes: float) -> dict:
    kinds = ("parameters", "gradients", "optimizer", "activations", "temporaries")
    return {phase: {kind: round(gigabytes * 1e9) for kind in kinds} for phase in PHASES}


def test_memory_of_a_changed_model_is_what_its_trace_has_beyond_the_formula():
    run = changed_spec({"model": "own:Gated"}, gpu_type="A100")
    plain = plan_run(run, built=BUILT)
    for more, fits in ((1, True), (-10, True), (20, False)):
        built = replace(BUILT, traces=((moments(10 + more), moments(10)),))
        made = plan_run(run, built=built)
        for phase, moment in made.memory.phases.items():
            before = plain.memory.phases[phase]
            assert moment.activations == max(0, before.activations + more * 10**9)
        assert (made.fits, made.largest_micro_batch) == (fits, None)
        assert "memory planned by a trace of its step" in made.replaced_parts[0]
    with pytest.raises(PlanRefused, match="GB too much") as refusal:
        refuse_if_impossible(run, made)
    assert "smaller train.batch.micro_batch" in refusal.value.hint
    text = plan_run(run, built=replace(BUILT, untraced="its reason")).replaced_parts[-1]
    assert text == "a step with these parts could not be traced: its reason"


def test_loss_and_optimizer_are_named_with_what_is_planned_in_their_place():
    run = changed_spec({"loss": "own:loss", "optimizer": "own:lion"})
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


def test_first_loss_of_a_changed_model_is_shown_and_not_judged():
    stage = changed_stage()
    assert expected("first_loss", stage).text == "unknown: model class own:Gated is not Lehr's"
    found = judge("first_loss", stage, seen(losses=[99.0, 98.0]))
    assert (found.verdict, found.seen, found.value) == ("not_judged", "99.00 nats at step 1", 99.0)


def test_memory_of_a_changed_model_is_judged_by_the_card_alone():
    stage = changed_stage()
    text = expected("memory", stage).text
    assert text.startswith("not planned, because model class own:Gated is not Lehr's")
    assert judge("memory", stage, seen(curves=memory(1.0))).verdict == "passed"
    assert judge("memory", stage, seen(curves=memory(84.0))).verdict == "failed"


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_fork_keeps_the_parts_that_its_checkpoint_holds_the_state_of(part):
    source = changed_spec({part: "own:Part"}).model_dump(mode="json")
    words = {"model": "is own:Part in the", "optimizer": ": .* own:Part, and own:Other cannot"}
    with pytest.raises(SpecError, match=rf"train.parts.{part}.*{words[part]}"):
        fork_spec(source, [f"train.parts.{part}=own:Other"], step=10)
    assert fork_spec(source, ["train.optimizer.lr=1e-4"], step=10).own.parts is not None
