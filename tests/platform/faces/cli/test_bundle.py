"""``lehr verify``: the first steps of a recorded training, repeated with the code of its file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from io import BytesIO
from zipfile import ZipFile

import pytest
import yaml

from lehr.base.bundle import RECORD, SPEC, BundleWriter
from lehr.code import archive
from lehr.code.collect import trainer_sources
from lehr.faces.verify import first_difference, read, weights
from lehr.specs import RunSpec
from lehr_testing import cli
from lehr_testing.paths import ROOT


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    text = "\n\n".join((ROOT / name).read_text() for name in ("README.md", "docs/trainer.md"))
    (folder / "corpus.txt").write_text(text)
    train = {
        "model": "tiny",
        "data": {
            "corpus": {"kind": "text", "document": "paragraph", "paths": [f"{folder}/corpus.txt"]},
            "tokenizer": "byte",
        },
        "batch": {"sequences": 4, "sequence_length": 64},
        "steps": 6,
        "threads": 1,
        "validation": {"every": 3, "tokens": 512, "share": 0.2},
        "checkpoint": {"every": 3},
    }
    with (folder / "code.tar").open("wb") as file:
        digest, _ = archive.write(trainer_sources(), file)
    spec = RunSpec.model_validate({"name": "small", "train": train, "code": {"digest": digest}})
    plain = spec.model_dump(mode="json")
    (folder / "run").mkdir()
    (folder / "run/config.yaml").write_text(yaml.safe_dump(plain["train"]))
    command = [sys.executable, "-m", "lehr_trainer", str(folder / "run")]
    environment = {**os.environ, "LEHR_DATA": str(folder / "data"), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, timeout=300)
    return folder, plain, (folder / "run/attempt-1/events.jsonl").read_text()


@pytest.fixture
def verified(recorded, tmp_path):
    folder, plain, events = recorded

    def run(*args, spec=plain, edit=lambda text: text, line=None, **row):
        code, digest = folder / "code.tar", plain["code"]["digest"]
        files = {file.name: file.sha256 for file in archive.members(code)}
        if line is not None:
            archive.unpack(code, str(tmp_path / "code"))
            path = tmp_path / "code/trainer/lehr_trainer/train.py"
            assert line[0] in path.read_text()
            path.write_text(path.read_text().replace(*line))
            every = [s._replace(path=f"{tmp_path}/code/{s.name}") for s in trainer_sources()]
            archive.write(every, packed := BytesIO())
        with (tmp_path / "small.lehr.html").open("wb") as file:
            writer = BundleWriter(file, "</body>")
            row = {"id": "k3f9x2ab", "name": "small", "resume_from": None, "spec": plain, **row}
            writer.add(RECORD, {"runs": [row]})
            writer.add(f"runs/k3f9x2ab/{SPEC}", yaml.safe_dump(spec).encode())
            writer.add("runs/k3f9x2ab/attempt-1/events.jsonl", edit(events).encode())
            writer.add(f"code/{digest}.tar", packed.getvalue() if line else code.read_bytes())
            writer.add(f"code/{digest}.json", files)
            writer.close(id="k3f9x2ab", name="small")
        saved = "attempt-1/checkpoints/step-00000003/model.safetensors"
        with ZipFile(tmp_path / "small.lehr.html", "a") as file:
            file.write(folder / "run" / saved, f"runs/k3f9x2ab/{saved}")
        done = cli.call(
            "verify", "small.lehr.html", *args, cwd=tmp_path, LEHR_HOME=str(tmp_path / "home")
        )
        return done.returncode, done.stdout or done.stderr

    return run


def test_same_training_is_bitwise_the_same_and_another_version_is_named(verified):
    code, shown = verified(
        "--steps", "4", edit=lambda text: re.sub('"numpy":"[^"]*"', '"numpy":"1.0"', text)
    )
    assert code == 0, shown
    assert "  not as recorded  numpy: 1.0 -> " in shown
    assert re.search(r"\nBitwise the same: \d+ values, with the weights of step 3, of step", shown)


def test_changed_line_is_named_with_its_file_and_the_step_where_it_counts(verified):
    line = ("optimizer.lr * factor", "optimizer.lr * factor * (1 + (step == 2))")
    code, shown = verified("--steps", "2", line=line)
    assert code == 1
    assert "  not as recorded  code: trainer/lehr_trainer/train.py\n" in shown
    assert "Differs at step 2: train/lr is " in shown
    assert "Weights are not compared: they are of step 3, see --steps" in shown


def test_changed_seed_and_datum_are_named_and_a_missing_one_is_a_sentence(verified, recorded):
    folder, plain, _ = recorded
    corpus, other = folder / "corpus.txt", {**plain, "train": {**plain["train"], "seed": 7}}
    text = corpus.read_text()
    try:
        corpus.write_text(text.replace("e", "E"))
        code, shown = verified("--steps", "2", "--json", spec=other)
        found = json.loads(shown)["verification"]
        assert (code, found["changes"][0]) == (1, "train.seed: 0 -> 7")
        assert found["changes"][1].startswith("digest of the data: ")
        assert found["beyond"].startswith("step 1: data/digest is ")
        corpus.unlink()
        code, shown = verified("--steps", "2")
        assert code == 2
        assert re.match("it cannot be trained here: .*corpus.txt", shown)
    finally:
        corpus.write_text(text)


def test_what_cannot_be_verified_is_one_sentence(verified):
    forged = "small.lehr.html is refused: its record is not of a run: "
    for args, row, why in (
        (["--run", "big"], {}, "--run big: the file has small."),
        ([], {"resume_from": "/x/step-1"}, "cannot be verified: it starts from /x/step-1."),
        ([], {"edit": lambda text: text[:9]}, "of small cannot be verified: none is recorded."),
        ([], {"spec": ["train"]}, forged),
        ([], {"edit": lambda text: text.replace('"step":1,', '"step":"one",')}, forged),
        ([], {"edit": lambda text: text.replace('"values":{', '"values":[],"x":{')}, forged),
    ):
        code, shown = verified(*args, **row)
        assert code == 2
        assert why in shown


def test_first_tensor_that_differs_is_named_and_a_near_one_is_allowed_elsewhere(recorded):
    saved = weights(recorded[0] / "run")
    name = sorted(saved)[5]
    here = {**saved, name: saved[name].copy()}
    here[name].view("u4")[7] ^= 1
    assert first_difference(saved, here) == f"step 3: {name[1]} differs"
    assert first_difference(saved, here, 0.02) is None
    by_hand = (
        b'{"kind": "evaluation", "step": 3, "values": {"task/own/accuracy": 1, "val/loss": 2}}'
    )
    assert read(by_hand)[1] == {(3, "val/loss"): 2}
    assert first_difference(saved, {**saved, name: saved[name] * 1.1}, 0.02) is not None


def test_tolerance_is_for_measured_values_and_not_for_data():
    recorded = {(1, "data/digest"): 5.0, (1, "train/loss"): 6.0, (2, "train/loss"): 5.0}
    near = {**recorded, (2, "train/loss"): 5.05}
    assert first_difference(recorded, dict(recorded)) is None
    assert first_difference(recorded, near) == "step 2: train/loss is 5.0 in the file, 5.05 here"
    assert first_difference(recorded, near, 0.02) is None
    assert "data/digest" in (
        first_difference(recorded, {**near, (1, "data/digest"): 5.01}, 0.02) or ""
    )
