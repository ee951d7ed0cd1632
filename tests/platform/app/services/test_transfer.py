"""The transfer of a sweep's rate: its answers, its file, and its errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from lehr.app.services.context import Context
from lehr.app.services.transfer import transfer_rate
from lehr.control.lifecycle import RunState
from lehr.errors import SpecError, UserError
from lehr.schemas.sweeps import TransferView
from lehr.specs import RolloutSpec, RunSpec, SweepSpec, load_spec
from lehr.store.tables import SweepRow
from lehr_testing import rollouts, seeding

RATES = (3e-4, 1e-3, 3e-3, 6e-3, 1.2e-2)
STEPS = 100


def swept(
    context: Context,
    rates: Sequence[float] = RATES,
    *,
    end: bool = True,
    until: int = STEPS,
    parameters: dict[str, Any] | None = None,
    metric: dict[str, str] | None = None,
    train: dict[str, Any] | None = None,
) -> SweepRow:
    """A sweep whose trials trained; the last of the usual rates diverges."""
    spec = load_spec(
        {
            "kind": "sweep",
            "name": "grid",
            "metric": metric or {"name": "val/loss", "goal": "minimize"},
            "parameters": parameters or {"train.optimizer.lr": {"values": list(rates)}},
            "run": {"train": seeding.train(steps=STEPS, **(train or {}))},
        }
    )
    assert isinstance(spec, SweepSpec)
    sweep, runs = seeding.create_sweep(context.store, spec)
    for number, run in enumerate(runs):
        attempt = seeding.start(context.store, run, gpus=(number,))
        attempt.train(range(1, until + 1))
        if end:
            attempt.end(RunState.COMPLETED, until)
    return sweep


def target(**changes: Any) -> dict[str, Any]:
    """The whole 1B model, with four times the batch."""
    batch = {"sequences": 128, "sequence_length": 2048}
    train = {**seeding.train(steps=400), "model": "llama-1b", "batch": batch, **changes}
    return {"kind": "run", "name": "big", "train": train}


def carried(context: Context, spec: dict[str, Any], **options: Any) -> TransferView:
    return transfer_rate(context, swept(context), spec, **options)


def test_rate_is_the_verdicts_by_depth_and_batch(context: Context) -> None:
    found = carried(context, target())
    # 8 to 16 layers, [32, 2048] to [128, 2048], the same width.
    assert found.rate == pytest.approx(found.from_rate * 0.5**0.5 * 4**0.25, rel=0.01)
    assert 3e-3 < found.from_rate < 1.2e-2
    assert found.sure[1] / found.sure[0] > found.from_sure[1] / found.from_sure[0]
    changes = {one.quantity: (one.source, one.target) for one in found.changes}
    assert changes["depth"] == (8, 16)
    assert changes["batch"] == (65_536, 262_144)
    assert changes["tokens"] == (65_536 * STEPS, 262_144 * 400)
    assert [one.name for one in found.rules if one.chosen] == ["quarter"] == [found.rule]
    # Nothing else differs from the sweep, but some answers do.
    assert not any("No rule covers" in warning for warning in found.warnings)


def test_yaml_is_the_spec_with_the_rate_and_the_reasons(context: Context, tmp_path: Path) -> None:
    found = carried(context, target())
    file = tmp_path / "big.yaml"
    file.write_text(found.yaml)
    loaded = load_spec(file)
    assert isinstance(loaded, RunSpec)
    wanted = load_spec(target(optimizer={"lr": found.rate}))
    assert loaded == wanted
    comments = [line for line in found.yaml.splitlines() if line.startswith("#")]
    text = " ".join(" ".join(line.removeprefix("#") for line in comments).split())
    assert f"from sweep grid ({found.sweep_id}) by rule quarter" in text
    assert "depth 8 -> 16 (x 2): factor 0.707, 1 / sqrt(layers) (Yang et al. 2023, " in text
    assert "Doubt: derived for blocks of one layer" in text
    for rule in found.rules:
        assert rule.chosen or f"{rule.name}: " in text
    assert "lehr submit" in text
    assert max(map(len, found.yaml.splitlines())) <= 100


def test_rollout_gets_its_rate_too(context: Context) -> None:
    spec = rollouts.plain(name="up")
    found = carried(context, spec, overrides={"run.train.steps": 300})
    loaded = load_spec(found.yaml)
    assert isinstance(loaded, RolloutSpec)
    assert loaded.run.train.optimizer.lr == found.rate
    assert loaded.run.train.steps == 300
    assert loaded.stages == load_spec(spec).stages  # type: ignore[union-attr]
    assert "lehr rollout" in found.yaml


def test_running_sweep_is_compared_where_it_is_and_says_so(context: Context) -> None:
    metric = {"name": "train/loss", "goal": "minimize"}
    sweep = swept(context, end=False, until=60, metric=metric)
    found = transfer_rate(context, sweep, target())
    assert "The sweep is running" in found.warnings[0]
    tokens = next(one for one in found.changes if one.quantity == "tokens")
    assert tokens.source == 60 * 65_536
    assert f"{tokens.source:,.0f} tokens" in found.warnings[0]


def test_best_at_the_edge_is_carried_with_a_warning(context: Context) -> None:
    found = transfer_rate(context, swept(context, (1e-4, 3e-4, 6e-4)), target())
    assert (found.likely, found.sure) == (None, None)
    assert "high edge" in found.warnings[0]
    assert "no interval" in found.yaml


LR = "train.optimizer.lr"


@pytest.mark.parametrize(
    ("sweep", "text"),
    [
        ({"rates": (9e-3, 2e-2)}, "finite val/loss: all 2 trials with a result diverged"),
        ({"rates": (1e-3,)}, "tried one learning rate, 0.001"),
        ({"until": 0, "end": False}, "no trial has a value yet"),
        (
            {"parameters": {"train.optimizer.weight_decay": {"values": [0.0, 0.1]}}},
            "does not vary a learning rate; it varies train.optimizer.weight_decay",
        ),
        (
            {"parameters": {LR: {"values": [1e-3]}, "train.grad_clip": {"values": [0.5, 1.0]}}},
            f"varies train.grad_clip besides {LR}",
        ),
        ({"metric": {"name": "tokens_per_s", "goal": "maximize"}}, "maximizes tokens_per_s"),
    ],
)
def test_sweep_without_a_verdict_is_refused(
    context: Context, sweep: dict[str, Any], text: str
) -> None:
    row = swept(context, **sweep)
    with pytest.raises(UserError, match=text):
        transfer_rate(context, row, target())


MUP = {"preset": "llama-1b", "parametrization": "mup", "base_width": 2048, "base_head_size": 64}


@pytest.mark.parametrize(
    ("spec", "error", "text"),
    [
        (target(optimizer={"name": "muon"}), UserError, "muon in the target and adamw in sweep"),
        (
            target(model={**MUP, "base_width": 1024}),
            UserError,
            "base_width is 1024 in the target; the rate of sweep grid is of base width 2048",
        ),
        ({**target(), "train": {}}, SpecError, "train"),
        (
            {
                "kind": "sweep",
                "name": "s",
                "parameters": {LR: {"values": [1e-3]}},
                "run": {"train": target()["train"]},
            },
            UserError,
            "s is a sweep",
        ),
    ],
)
def test_target_out_of_reach_is_refused(
    context: Context, spec: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        carried(context, spec)


def test_under_mup_width_changes_nothing(context: Context) -> None:
    wide = {**MUP, "hidden_size": 8192, "intermediate_size": 32_768, "num_attention_heads": 128}
    standard = {key: value for key, value in wide.items() if "base" not in key}
    mup = carried(context, target(model=wide))
    other = carried(context, target(model={**standard, "parametrization": "standard"}))
    assert mup.rate == pytest.approx(4 * other.rate, rel=0.01)
    assert not any("base_head_size" in warning for warning in mup.warnings)
    heads = carried(context, target(model={**wide, "base_head_size": 128}))
    assert any("set train.model.base_head_size=64" in warning for warning in heads.warnings)
    # A standard sweep and a tied model under muP do not have the same first weights.
    for tied in (True, False):
        found = carried(context, target(model={**wide, "tie_embeddings": tied}))
        assert any("head is tied" in warning for warning in found.warnings) == tied


def test_yaml_is_plain(context: Context) -> None:
    data = yaml.safe_load(carried(context, target()).yaml)
    assert data["kind"] == "run"
    assert data["train"]["batch"] == {"sequences": 128, "sequence_length": 2048}


def test_another_rule_can_be_chosen(context: Context) -> None:
    found = carried(context, target(), rule="keep")
    assert found.rate == pytest.approx(found.from_rate, rel=0.01)
    with pytest.raises(UserError, match="no rule 'steplaw'") as caught:
        carried(context, target(), rule="steplaw")
    assert caught.value.hint.startswith("Did you mean step_law?")


def test_rate_of_mup_is_not_carried_to_a_standard_model(context: Context) -> None:
    model = {**MUP, "num_hidden_layers": 8}
    sweep = swept(context, train={"model": model})
    with pytest.raises(UserError, match="trained under muP") as caught:
        transfer_rate(context, sweep, target())
    assert caught.value.hint is not None
    assert "base_width=2048" in caught.value.hint
