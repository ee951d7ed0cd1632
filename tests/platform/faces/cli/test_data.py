"""`lehr data prepare`: the trainer's own preparation, started from a spec."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lehr.faces.cli.data import corpora
from lehr.specs import load_spec
from lehr_testing.specs import lr_sweep, text_corpus

LEHR = str(Path(sys.executable).parent / "lehr")


@pytest.fixture
def lehr(tmp_path):
    def call(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [LEHR, *args],
            env={**os.environ, "LEHR_HOME": str(tmp_path / "home")},
            capture_output=True,
            text=True,
            check=False,
        )

    return call


def test_corpus_of_a_sweep_is_prepared_once_and_reused(lehr, tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(json.dumps(lr_sweep(text_corpus(tmp_path / "texts"), "s", [1e-3, 1e-4])))
    first = lehr("data", "prepare", str(file))
    assert first.returncode == 0, first.stderr
    assert "training tokens" in first.stdout
    scored = re.search(
        r"scores ([\d,]+ of [\d,]+ held-out tokens, from .* documents)", first.stdout
    )
    assert f"scored   {scored[1]}\n" in lehr("plan", str(file)).stdout
    again = lehr("data", "prepare", str(file), "--json")
    assert again.returncode == 0
    prepared = json.loads(again.stdout)["prepared"]
    assert len(prepared) == 1
    assert prepared[0] == first.stdout.strip()
    shards = tmp_path / "home" / "data"
    assert shards.is_dir()
    assert str(shards) in prepared[0]


def test_trials_whose_stages_have_other_data_are_prepared_each(tmp_path):
    values = lr_sweep(tmp_path, "s", [1e-3])
    del values["run"]["train"]["steps"]
    values["run"]["train"]["stages"] = [{"tokens": 512}, {"tokens": 512}]
    for path, count in (("optimizer.lr", 1), ("data.max_tokens", 2)):
        values["parameters"] = {f"train.stages.1.{path}": {"values": [1, 2]}}
        assert len(corpora(load_spec(values))) == count


def test_missing_corpus_is_reported_in_one_line(lehr, tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(json.dumps(lr_sweep(tmp_path / "nowhere", "s", [1e-3])))
    done = lehr("data", "prepare", str(file))
    assert done.returncode == 2
    assert "nowhere" in done.stderr
    assert "Traceback" not in done.stderr
