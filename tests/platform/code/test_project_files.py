"""What a submission says of the files that it does not send."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from lehr.code.collect import project_sources
from lehr.code.project_files import data_files, left_out, notice
from lehr.errors import SpecError
from lehr.specs.program import Code


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """As nanoGPT: of data, git tracks the scripts alone."""
    texts = {
        "train.py": "import model",
        "model.py": "",
        "run.yaml": "kind: run",
        ".env": "KEY=1",
        "data/prepare.py": "",
        "data/train.bin": "x" * 3000,
        "data/set/val.bin": "x" * 500,
        "notes.txt": "x" * 20,
        "venv/lib/a.py": "",
        ".gitignore": "*.bin\n.env\nvenv\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "linked").symlink_to(tmp_path / "data/set")
    (tmp_path / "data/set/nothing").symlink_to("gone")
    return tmp_path


def track(project: Path) -> None:
    for command in (["init", "-q"], ["add", "train.py", "model.py", "data/prepare.py"]):
        subprocess.run(["git", *command], cwd=project, check=True)


def said(project: Path, data: tuple[str, ...] = (), **code) -> str:
    spec = Code(**code)
    found = project_sources(spec, project, "train.py")
    there = {source.name.partition("/")[2] for source in found.sources}
    return notice(left_out(spec, project, {*there, *data}, found.taken), found.taken)


def test_what_git_does_not_track_is_named_largest_first(project):
    track(project)
    (project / "crash.py").write_text("a script of its own")
    rest = "linked/ (500 B, 1 file), notes.txt (20 B, 1 file). To use it: trainer.data:"
    data = "data/ (3.5 kB, 2 files)"
    why = "left out, because git does not track them"
    assert said(project) == f"{why}: {data}, {rest} [data]"
    assert said(project, ("data",)) == f"{why}: {rest} [linked]"
    assert said(project, ("data/train.bin", "linked")).startswith(f"{why}: data/ (500 B, 1 file)")


def test_without_git_it_is_what_the_script_does_not_import(project):
    whole = said(project)
    assert whole.startswith(
        "left out, because the script does not import them: data/ (3.5 kB, 2 files), linked/"
    )
    assert whole.endswith("trainer.data: [data] links it, or code.include: [.] sends all")


def test_data_have_number_size_and_digest_of_what_is_not_sent(project):
    sent = {"data/prepare.py"}
    (project / "data/set/nothing").unlink()
    [(name, before)] = data_files(project, ["data"], sent).items()
    assert name == "data"
    assert re.fullmatch(r"sha256 [0-9a-f]{16}, 2 files, 3,500 bytes", before)
    (project / "data/prepare.py").write_text("edited")
    assert data_files(project, ["data"], sent)["data"] == before
    (project / "data/train.bin").write_text("y" * 3000)
    assert data_files(project, ["data"], sent)["data"] != before
    with pytest.raises(SpecError, match=r"trainer.data: .*/dat cannot be read: No such file"):
        data_files(project, ["dat"], sent)
