"""``lehr code`` against a server: show, diff, checkout, and what a submission sends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lehr_testing import specs
from lehr_testing.api import TOKEN, served
from lehr_testing.cli import call


@pytest.fixture
def lehr(tmp_path: Path):
    with served(tmp_path / "home") as (_, address):
        known = {"LEHR_SERVER": address, "LEHR_TOKEN": TOKEN}
        yield lambda *args: call(*args, cwd=tmp_path, LEHR_HOME=str(tmp_path / "home"), **known)


def project(folder: Path, corpus: Path, name: str, **code) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**specs.run(corpus, name), "code": code}))
    return path


def test_code_of_a_run_is_shown_compared_and_checked_out(lehr, tmp_path):
    corpus = specs.text_corpus(tmp_path / "corpus")
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in (("one", "SCALE = 1\n"), ("two", "SCALE = 2\n")):
        (folder / "my_model.py").write_text(text)
        spec = project(folder, corpus, name, include=["*.py"])
        done = lehr("submit", str(spec), "--json")
        assert done.returncode == 0, done.stderr
    shown = json.loads(lehr("code", "show", "one", "--json").stdout)["capsule"]
    assert "project/my_model.py" in {file["name"] for file in shown["files"]}
    assert not shown["installed"]
    assert "project/my_model.py" in lehr("code", "show", "one").stdout
    diff = lehr("code", "diff", "one", "two").stdout
    assert "changed  project/my_model.py" in diff
    assert "-SCALE = 1\n+SCALE = 2" in diff
    assert "The same code" in lehr("code", "diff", "one", "one").stdout
    done = lehr("code", "checkout", "one", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out/project/my_model.py").read_text() == "SCALE = 1\n"
    assert (tmp_path / "out/trainer/lehr_trainer/train.py").is_file()
    again = lehr("code", "checkout", "one", str(tmp_path / "out"))
    assert again.returncode == 2
    assert "is not empty" in again.stderr
    assert "neither a run nor a capsule" in lehr("code", "show", "nothing").stderr


SCRIPT = """
import sys
from pathlib import Path

import lehr_log
import wandb
from lib.scale import SCALE

lehr_log.log({"loss": 1.0}, step=1)
wandb.init(config={}).log({"loss": 1.0})
print(SCALE, Path("table.txt").read_text(), *sys.argv[1:])
print(lehr_log.__file__)
"""


@pytest.mark.parametrize("style", ["space", "file"])
def test_program_that_was_checked_out_runs_by_the_command_that_is_printed(lehr, tmp_path, style):
    folder = tmp_path / "it's mine"
    (folder / "lib").mkdir(parents=True)
    (folder / "src").mkdir()
    (folder / "lib/scale.py").write_text("SCALE = 3\n")
    (folder / "src/train.py").write_text(SCRIPT)
    (folder / "table.txt").write_text("a b")
    args = {"lr": 0.1, "name": "x y"}
    trainer = {"script": "src/train.py", "args": args, "steps": 1, "style": style}
    spec = {"name": "p", "trainer": trainer, "code": {"include": ["."], "exclude": ["*.yaml"]}}
    (folder / "run.yaml").write_text(yaml.safe_dump(spec))
    assert lehr("submit", str(folder / "run.yaml")).returncode == 0
    (folder / "lib/scale.py").write_text("SCALE = 4\n")
    done = lehr("code", "checkout", "p", "out of p")
    assert done.returncode == 0, done.stderr
    command = done.stdout.partition("Run it: ")[2].strip()
    python = str(Path(sys.executable).parent)
    environment = {
        "PATH": f"{python}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "WANDB_MODE": "disabled",  # Else the shim begins a run of its own.
    }
    ran = subprocess.run(
        ["sh", "-c", command], env=environment, cwd="/", capture_output=True, text=True, check=False
    )
    out = tmp_path / "out of p"
    given = {"space": "--lr 0.1 --name x y", "file": f"--config {out / 'args.yaml'}"}[style]
    assert ran.stderr == ""
    assert ran.stdout == f"3 a b {given}\n{out / 'trainer/lehr_log/__init__.py'}\n"
    if style == "file":
        assert yaml.safe_load((out / "args.yaml").read_text()) == args


def test_secret_is_named_and_nothing_is_recorded(lehr, tmp_path):
    corpus = specs.text_corpus(tmp_path / "corpus")
    folder = tmp_path / "project"
    spec = project(folder, corpus, "a", include=["."])
    (folder / ".env").write_text("TOKEN=abc")
    done = lehr("submit", str(spec))
    assert done.returncode == 2
    assert ".env (a file of environment variables)" in done.stderr
    assert "Nothing was recorded" in done.stderr
    assert json.loads(lehr("ls", "--json").stdout)["runs"] == []
    assert not list((tmp_path / "home").glob("capsules/*"))


def test_script_alone_is_sent_and_the_line_says_what_was_taken(lehr, tmp_path, caplog):
    folder = tmp_path / "elsewhere"  # The spec's folder counts, not the current one.
    folder.mkdir()
    (folder / "helper.py").write_text('print(f"iter {i}: loss {loss}")')
    (folder / "train.py").write_text("import helper")
    (folder / "books").mkdir()
    for name in ("books/a.txt", "notes.md"):
        (folder / name).write_text("abc")
    trainer = {"script": "train.py", "steps": 2, "data": ["books"]}
    trainer["prints"] = ["iter {step}: loss {loss}", "val {val/loss}"]
    spec = {"name": "p", "trainer": trainer}
    (folder / "run.yaml").write_text(yaml.safe_dump(spec))
    (tmp_path / "train.py").write_text("")
    done = lehr("submit", str(folder / "run.yaml"))
    assert done.returncode == 0, done.stderr
    assert "code.include names no files; the run's code: helper.py; train.py (the" in caplog.text
    assert (
        "import them: notes.md (3 B, 1 file). To use it: trainer.data: [notes.md] links"
        in caplog.text
    )
    assert "trainer.prints: no text in the code gives a line like val {val/loss};" in caplog.text
    run = json.loads(lehr("show", "p", "--json").stdout)["run"]
    assert run["spec"]["trainer"]["data_files"]["books"].endswith(", 1 file, 3 bytes")
    shown = json.loads(lehr("code", "show", "p", "--json").stdout)["capsule"]
    names = {file["name"] for file in shown["files"]}
    assert {name for name in names if name.startswith("project/")} == {
        "project/helper.py",
        "project/train.py",
    }
