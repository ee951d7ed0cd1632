"""A plan names data that a training would not find."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from lehr_testing import cli

SPEC = """
kind: run
name: a
train:
  model: tiny
  data: {corpus: {kind: text, paths: [texts]}, tokenizer: byte}
  batch: {sequences: 4, sequence_length: 64}
  steps: 10
"""
SWEEP = yaml.safe_dump(
    {
        "kind": "sweep",
        "name": "s",
        "parameters": {"train.optimizer.lr": {"values": [0.001, 0.01]}},
        "run": {"train": yaml.safe_load(SPEC)["train"]},
    }
)


@pytest.mark.parametrize(
    ("command", "text"),
    [("submit --dry-run", SPEC), ("plan", SPEC), ("plan", SWEEP), ("sweep --dry-run", SWEEP)],
    ids=["submit", "plan", "plan of a sweep", "sweep"],
)
def test_missing_corpus_is_named_once_and_where_it_was_looked_for(tmp_path: Path, command, text):
    (tmp_path / "spec.yaml").write_text(text)
    arguments = [*command.split(), "spec.yaml"]
    found = cli.call(*arguments, cwd=tmp_path, LEHR_HOME=str(tmp_path / "home"))
    assert found.returncode == 0
    line = f"! train.data.corpus.paths: {tmp_path}/texts does not exist"
    output = found.stdout.replace("\n", " ")
    assert output.count(line) == 1
    assert output.count("(looked for on this machine)") == 1
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("a text\n" * 20)
    (tmp_path / "texts/README.gz").touch()
    output = cli.call(*arguments, cwd=tmp_path, LEHR_HOME=str(tmp_path / "home")).stdout
    assert output.count("  files    1 file read, 1 skipped (README.gz: ending not known)") == 1
    assert output.count("! train.data.corpus is too small") == 1


def test_too_small_vocabulary_is_named(tmp_path: Path):
    (tmp_path / "spec.yaml").write_text(SPEC.replace("paths: [texts]", "paths: [spec.yaml]"))
    changes = ["train.data.tokenizer=tekken", "train.model={preset: tiny, vocab_size: 512}"]
    home = str(tmp_path / "home")
    found = cli.call("plan", "spec.yaml", *changes, cwd=tmp_path, LEHR_HOME=home, COLUMNS="200")
    assert "! train.data.tokenizer 'tekken' has 131,072 tokens" in found.stdout
    assert "looked for" not in found.stdout


def test_many_passes_over_prepared_data_are_named(tmp_path: Path):
    (tmp_path / "texts").mkdir()
    for number in range(20):
        (tmp_path / f"texts/{number}.txt").write_text(f"{number} is a number. " * 2)
    (tmp_path / "spec.yaml").write_text(f"{SPEC}  validation: {{share: 0.2, tokens: 20}}\n")
    for command in (["data", "prepare"], ["plan"]):
        given = [*command, "spec.yaml"]
        found = cli.call(*given, cwd=tmp_path, LEHR_HOME=str(tmp_path / "home"), COLUMNS="200")
    assert "passes over the corpus; up to 4 are nearly as good as new data" in found.stdout


def test_stages_are_prepared_and_the_corpus_of_each_is_looked_for(tmp_path: Path):
    (tmp_path / "texts").mkdir()
    for number in range(20):
        (tmp_path / f"texts/{number}.txt").write_text(f"{number} is a number. " * 40)
    stages = (
        "[{tokens: 512}, {tokens: 512, name: end, data: {corpus: {kind: text, paths: [code]}}}]"
    )
    spec = SPEC.replace("  steps: 10\n", f"  stages: {stages}\n  validation: {{share: 0.3}}\n")
    (tmp_path / "spec.yaml").write_text(spec.replace("[code]", f"[{tmp_path}/code]"))
    home = {"LEHR_HOME": str(tmp_path / "home"), "COLUMNS": "200"}
    missing = cli.call("plan", "spec.yaml", cwd=tmp_path, **home)
    assert f"! train.stages.1.data.corpus.paths: {tmp_path}/code does not exist" in missing.stdout
    shutil.copytree(tmp_path / "texts", tmp_path / "code")
    (tmp_path / "code/more.txt").write_text("code " * 40)
    prepared = cli.call("data", "prepare", "spec.yaml", cwd=tmp_path, **home)
    names = re.findall(r"^stage (\w+): .* training tokens", prepared.stdout, re.MULTILINE)
    assert names == ["1", "end"]
    planned = cli.call("plan", "spec.yaml", cwd=tmp_path, **home)
    assert re.search(r"^end +3 to 4 +512 +4 x 64 .* 0\.0\d\d? ", planned.stdout, re.MULTILINE)
