"""The tolerance of two runs: zero if they are deterministic, and every difference is named."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from lehr_testing.trainer import make_run, train_to_end
from lehr_trainer.errors import BadConfig
from lehr_trainer.tolerance import main, tolerance


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("twins")
    runs = [make_run(folder / name, corpus, steps=6) for name in ("one", "two")]
    for run in runs:
        train_to_end(run, data=folder / "data")
    return runs[0], runs[1]


def test_two_deterministic_runs_are_bitwise_equal(twins, capsys) -> None:
    found = tolerance(*twins)
    assert found.bitwise
    assert [(one.name, one.steps, one.largest, one.at_step) for one in found.series] == [
        ("train/loss", 6, 0.0, None),
        ("train/grad_norm", 6, 0.0, None),
        ("val/loss", 1, 0.0, None),
    ]
    assert found.weights is not None
    assert (found.weights.step, found.weights.different) == (6, 0)
    assert main([*map(str, twins)]) == 0
    assert capsys.readouterr().out.endswith("bitwise equal\n")
    assert main([*map(str, twins), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bitwise"] is True


def changed(twins: tuple[Path, Path], folder: Path, old: str, new: str) -> Path:
    copy = Path(shutil.copytree(twins[1], folder / "copy"))
    events = copy / "attempt-1" / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    [index] = [i for i, line in enumerate(lines) if '"metrics"' in line and '"step":4,' in line]
    before = lines[index]
    values = json.loads(before)
    values["values"][old] = new if new == "NaN" else values["values"][old] + float(new)
    lines[index] = json.dumps(values) + "\n"
    events.write_text("".join(lines))
    return copy


def test_largest_difference_is_named_with_its_step(twins, tmp_path) -> None:
    copy = changed(twins, tmp_path, "train/loss", "0.5")
    loss, norm, _ = tolerance(twins[0], copy).series
    assert loss.largest == pytest.approx(0.5)
    assert loss.at_step == 4
    assert 0 < loss.relative < 0.5
    assert norm.largest == 0
    assert not tolerance(twins[0], copy).bitwise


def test_weights_that_differ_are_counted(twins, tmp_path, monkeypatch) -> None:
    from lehr_trainer.checkpointing import checkpoint

    whole = checkpoint.read_tensors

    def doubled(folder: Path, manifest: object, kind: str) -> dict[str, torch.Tensor]:
        found = whole(folder, manifest, kind)
        if kind == "model" and twins[1] in folder.parents:
            name = min(found)
            found[name] = found[name] * 2
        return found

    monkeypatch.setattr(checkpoint, "read_tensors", doubled)
    weights = tolerance(*twins).weights
    assert weights is not None
    assert weights.different == 1
    assert 0 < weights.relative < 1


def test_different_configs_and_untrained_runs_are_refused(twins, tmp_path, corpus, capsys) -> None:
    other = make_run(tmp_path / "other", corpus, steps=6, seed=1)
    with pytest.raises(BadConfig, match="different configs: seed is 0 and 1"):
        tolerance(twins[0], other)
    copy = changed(twins, tmp_path, "train/loss", "0.5")
    events = copy / "attempt-1" / "events.jsonl"
    (digest,) = set(re.findall('"validation_digest":"([0-9a-f]+)"', events.read_text()))
    events.write_text(events.read_text().replace(digest, "0" * 64))
    with pytest.raises(BadConfig, match="evaluated on different held-out sets"):
        tolerance(twins[0], copy)
    untrained = make_run(tmp_path / "untrained", corpus, steps=6)
    assert main([str(twins[0]), str(untrained)]) == 2
    assert "no step in common: train both first" in capsys.readouterr().err
