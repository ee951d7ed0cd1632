"""The mean of several checkpoints is the hand-made one, says what it is made of, and is evaluated."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from lehr_testing.assembled import begin, recorded
from lehr_testing.exports import CONFIG, run_with, save
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.export.soup import main


def test_mean_is_the_hand_made_one_and_lists_its_ingredients(tmp_path: Path) -> None:
    run, models = run_with(tmp_path, [(1, 2), (1, 4), (2, 6)], {2: 3.0, 4: 2.5})
    single = layout.checkpoint_dir(run / "attempt-2", 6)
    out = tmp_path / "out"
    assert main([f"{run}@2", f"{run}@best", str(single), "--out", str(out)]) == 0
    for name, weight in load_file(out / "model.safetensors").items():
        own = [model.state_dict()[name.removeprefix("model.")] for model in models.values()]
        assert torch.equal(weight, torch.stack(own).double().mean(0).float()), name
    record = json.loads((out / "average.json").read_text())
    parts = record["ingredients"]
    assert [(one["step"], one["val_loss"]) for one in parts] == [(2, 3.0), (4, 2.5), (6, None)]
    manifest = (single / layout.MANIFEST).read_bytes()
    assert parts[2]["digest"] == hashlib.sha256(manifest).hexdigest()
    assert parts[2]["digest"] in (out / "README.md").read_text()
    assert record["values"] is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


STAGES = [{"tokens": 512}, {"tokens": 512, "model": {"rope_theta": 2e4, "max_sequence_length": 64}}]


@pytest.mark.parametrize("course", [{}, {"stages": STAGES}], ids=["plain", "staged"])
def test_mean_is_evaluated_on_the_held_out_set_of_its_runs(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, course: dict[str, Any]
) -> None:
    trained = []
    for seed in (1, 2):
        made = begin(tmp_path / str(seed), corpus, steps=4, seed=seed, **course)
        with made.loader:
            made.run()
        trained.append(made)
    monkeypatch.setenv("LEHR_DATA", str(tmp_path / "1" / "data"))
    folders = [str(tmp_path / "1"), str(tmp_path / "2")]
    assert main([*folders, "--out", str(tmp_path / "out"), "--evaluate"]) == 0
    weights = [dict(made.model.named_parameters()) for made in trained]
    for name, weight in weights[0].items():
        weight.data.copy_((weight.double() + weights[1][name].double()) / 2)
    want = trained[0]._held_out_values()
    record = json.loads((tmp_path / "out" / "average.json").read_text())
    assert record["values"] == pytest.approx(want, rel=1e-6)
    logged = recorded(trained[0], "evaluation")[-1]
    assert record["validation_digest"] == logged["validation_digest"]
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"**{want['val/loss']:.4f}**, of this mean of weights." in card
    assert ("| Stage 2 | steps 3 to 4: 512 tokens, 4 sequences of 64 a step, of" in card) == bool(
        course
    )


def damaged(folder: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "model.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    ("changes", "options", "problem"),
    [
        ({}, [], "are the same checkpoint; name each once"),
        (
            {"intermediate_size": 48},
            [],
            "down_proj.weight is (32, 48) in the one and (32, 64) in the",
        ),
        ({"tie_embeddings": False}, [], "lm_head.weight is (512, 32) in the one and missing in"),
        ({"rope_theta": 2e4}, [], "model.rope_theta is 20000.0 in the one and 10000.0 in the"),
        ({}, ["--evaluate"], "do not have one held-out set"),
        (None, [], "is damaged: its SHA-256"),
    ],
)
def test_what_has_no_mean_is_refused(
    tmp_path: Path, capsys: Any, changes: dict[str, Any] | None, options: list[str], problem: str
) -> None:
    run, _ = run_with(tmp_path, [(1, 2)])
    other, model = tmp_path / "other", {**CONFIG["model"], **(changes or {})}
    save(other, TrainConfig.model_validate({**CONFIG, "model": model}), 2, 102)
    if options:
        state = json.loads((other / "state.json").read_text())
        state["data"]["validation_digest"] = "f" * 64
        rewrite(other, state)
    if changes is None:
        damaged(other)
    assert main([str(other), f"{run}@2", "--out", str(tmp_path / "out"), *options]) == 2
    error = capsys.readouterr().err
    assert problem in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def rewrite(folder: Path, state: dict[str, Any]) -> None:
    """Replace a checkpoint's state.json, and its entry of the manifest."""
    content = json.dumps(state).encode()
    (folder / "state.json").write_bytes(content)
    manifest = json.loads((folder / layout.MANIFEST).read_text())
    entry = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    manifest["files"]["state.json"] = entry
    (folder / layout.MANIFEST).write_text(json.dumps(manifest))


def test_mean_of_one_is_refused(tmp_path: Path, capsys: Any) -> None:
    run, _ = run_with(tmp_path, [(1, 2)])
    assert main([str(run), "--out", str(tmp_path / "out")]) == 2
    assert "an average needs two checkpoints or more" in capsys.readouterr().err
