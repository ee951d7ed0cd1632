"""``lehr plan``: memory by stage and phase, and the trace beside the formula."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

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


@pytest.mark.nightly  # The next test prints the same table.
def test_the_trace_stands_beside_the_formula_of_each_stage(tmp_path: Path) -> None:
    done = call("plan", written(tmp_path), "--trace", "--json", folder=tmp_path)
    found = json.loads(done.stdout)
    trace, stages = found["trace"], found["plan"]["memory_stages"]
    assert (trace["device"], trace["ranks"], trace["notes"]) == ("cpu", 2, [])
    shapes = [[4, 128], [2, 256]]
    assert [stage["shape"] for stage in trace["stages"]] == shapes
    assert [stage["shape"] for stage in stages] == shapes
    for stage, own in zip(trace["stages"], stages, strict=True):
        # The run is one for a CPU, so its own plan is that of what was traced.
        assert stage["planned"] == own["phases"]
        assert stage["traced"].keys() == own["phases"].keys()
        most = {
            name: max(phase["total"] for phase in stage[name].values())
            for name in ("planned", "traced")
        }
        percent = 100 * (most["planned"] / most["traced"] - 1)
        assert stage["difference_percent"] == pytest.approx(percent, abs=0.01)
        assert abs(percent) < 5


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


@pytest.mark.nightly  # trainer/diagnostics/test_memory_trace.py has the errors of the trace.
def test_what_the_trainer_cannot_trace_is_one_error(tmp_path: Path) -> None:
    path = written(tmp_path)
    fp8 = ("train.precision.fp8.recipe=te_delayed", "train.device=auto")
    bf16 = "train.precision.compute=bf16"
    refused = call("plan", path, "--trace", *fp8, bf16, folder=tmp_path, code=2)
    assert "precision.fp8.recipe: te_delayed cannot be traced" in " ".join(refused.stderr.split())


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
