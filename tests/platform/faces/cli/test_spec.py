"""``lehr spec``: what it writes is planned, sent as a capsule, and refused where it cannot work."""

from __future__ import annotations

import json

import pytest

from lehr_testing.api import TOKEN, served
from lehr_testing.cli import call


@pytest.fixture
def lehr(tmp_path):
    with served(tmp_path / "home") as (_, address):
        known = {"LEHR_SERVER": address, "LEHR_TOKEN": TOKEN}
        yield lambda *args: call(*args, cwd=tmp_path, LEHR_HOME=str(tmp_path / "home"), **known)


def test_spec_to_begin_with_is_written_and_planned(tmp_path):
    def lehr(*args):
        return call(*args, cwd=tmp_path, LEHR_HOME=str(tmp_path / "home"))

    for kind in ("run", "sweep", "rollout"):
        done = lehr("spec", "new", kind)
        assert f"lehr {'submit' if kind == 'run' else kind} {kind}.yaml --watch" in done.stdout
        planned = lehr("plan", f"{kind}.yaml", "--json")
        assert planned.returncode == 0, planned.stderr
    (tmp_path / "run.yaml").write_text("mine")
    again = lehr("spec", "new")
    assert (again.returncode, (tmp_path / "run.yaml").read_text()) == (2, "mine")
    assert "run.yaml exists already" in again.stderr
    other = lehr("spec", "new", "-o", "other.yaml", "--json")
    assert json.loads(other.stdout) == {"file": "other.yaml"}
    nowhere = lehr("spec", "new", "-o", "no/where.yaml")
    assert (nowhere.returncode, "cannot be written" in nowhere.stderr) == (2, True)


def test_project_is_written_planned_and_pinned_by_its_capsule(lehr, tmp_path):
    done = lehr("spec", "trainer", "mine", "--json")
    assert json.loads(done.stdout) == {"folder": "mine", "files": ["my_model.py", "run.yaml"]}
    planned = json.loads(lehr("plan", "mine/run.yaml", "--json").stdout)["plan"]
    # A squared ReLU has two matrices in place of SwiGLU's three: 2 layers x 64 x 192 fewer.
    assert planned["parameter_count"] == 131_392 - 2 * 64 * 192
    assert "counted by building it" in planned["replaced_parts"][0]
    assert "memory planned by a trace of its step" in planned["replaced_parts"][0]
    # Lehr's own squared ReLU has the same parameters, and a formula.
    as_config = ("train.parts=null", "train.model.mlp=relu2")
    formula = json.loads(lehr("plan", "mine/run.yaml", *as_config, "--json").stdout)["plan"]
    assert formula["parameter_count"] == planned["parameter_count"]
    assert planned["memory_bytes"] == pytest.approx(formula["memory_bytes"], rel=0.01)
    for ours, theirs in zip(formula["memory_stages"], planned["memory_stages"], strict=True):
        for phase, moment in theirs["phases"].items():
            assert moment["total"] == pytest.approx(ours["phases"][phase]["total"], rel=0.1)
    assert (
        "parts    model class my_model:MyModel is not Lehr's"
        in lehr("plan", "mine/run.yaml").stdout
    )
    sent = lehr("submit", "mine/run.yaml", "--json")
    assert sent.returncode == 0, sent.stderr
    shown = json.loads(lehr("code", "show", "my-model", "--json").stdout)["capsule"]
    assert "project/my_model.py" in {file["name"] for file in shown["files"]}
    again = lehr("spec", "trainer", "mine")
    assert again.returncode == 2
    assert "mine is not empty" in again.stderr


def test_model_that_cannot_be_built_is_an_error_of_the_plan(lehr, tmp_path):
    lehr("spec", "trainer", "mine")
    path = tmp_path / "mine/my_model.py"
    path.write_text(path.read_text().replace("class MyModel(Llama)", "class MyModel(nn.Module)"))
    done = lehr("plan", "mine/run.yaml")
    assert done.returncode == 2
    assert "my_model:MyModel is no subclass of lehr_trainer's Llama" in done.stderr


def test_module_that_is_not_sent_is_named_and_nothing_is_recorded(lehr, tmp_path):
    lehr("spec", "trainer", "mine", "--part", "loss")
    (tmp_path / "mine/my_loss.py").rename(tmp_path / "mine/other.py")
    done = lehr("submit", "mine/run.yaml")
    assert done.returncode == 2
    assert "the code has no module my_loss.py" in done.stderr
    assert json.loads(lehr("ls", "--json").stdout)["runs"] == []
