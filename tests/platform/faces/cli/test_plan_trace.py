"""``lehr plan``: memory by stage and phase, and the trace beside the formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lehr_testing import cli

RUN: dict[str, Any] = {
    "kind": "run",
    "name": "traced",
    "train": {
        "model": {"preset": "tiny", "num_hidden_layers": 2},
        "data": {"corpus": {"kind": "stdlib"}},
        "batch": {
            "sequences": 16,
            "sequence_length": 128,
            "micro_batch": 4,
            "stages": [{"after": 0.5, "sequence_length": 256}],
        },
        "steps": 10,
        "precision": {"compute": "fp32"},
        "device": "cpu",
    },
    "resources": {"gpus": 2},
}


def call(*args: str, folder: Path, code: int = 0) -> cli.CommandResult:
    home = {"HOME": str(folder), "LEHR_HOME": str(folder / "home")}
    done = cli.call(*args, cwd=folder, LEHR_SERVER="http://127.0.0.1:9", **home)
    assert done.returncode == code, done.stderr
    return done


def written(folder: Path, **changes: Any) -> str:
    path = folder / "run.json"
    path.write_text(json.dumps({**RUN, **changes}))
    return str(path)


def test_the_plan_shows_each_stage_and_phase_without_a_trace(tmp_path: Path) -> None:
    text = call("plan", written(tmp_path), folder=tmp_path).stdout
    for shape in ("[4, 128]", "[2, 256]"):
        assert shape in text
    for phase in ("built", "forward", "loss", "backward", "optimizer", "evaluation", "save"):
        assert f"{phase} " in text
    assert "trace" not in json.loads(
        call("plan", written(tmp_path), "--json", folder=tmp_path).stdout
    )


def test_the_text_says_how_both_figures_were_obtained(tmp_path: Path) -> None:
    text = " ".join(call("plan", written(tmp_path), "--trace", folder=tmp_path).stdout.split())
    assert "formula, CPU trace, CPU difference" in text
    assert "on fake CPU tensors, counted by torch's MemTracker" in text
    for kind in ("parameters", "gradients", "optimizer state", "activations", "temporaries"):
        assert f"{kind} in " in text


def test_sweep_cannot_be_traced(tmp_path: Path) -> None:
    sweep = {
        "kind": "sweep",
        "name": "many",
        "run": {key: RUN[key] for key in ("train", "resources")},
        "parameters": {"train.optimizer.lr": {"values": [1e-3, 2e-3]}},
    }
    other = tmp_path / "sweep.json"
    other.write_text(json.dumps(sweep))
    refused = call("plan", str(other), "--trace", folder=tmp_path, code=2)
    assert "--trace takes a run" in " ".join(refused.stderr.split())
