"""Each attempt of a program has its own copy of the project, which it may write into."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lehr.code.project_copy import described
from lehr.node import attempt_code
from lehr_testing.program_attempts import Attempts

BESIDE = """
    import os, pathlib, helper
    here = pathlib.Path(__file__).parent
    for module in (here, pathlib.Path(helper.__file__).parent):
        marks = module / "marks.txt"
        print("found", marks.exists())
        marks.write_text("mine")
    pathlib.Path(helper.__file__).write_text("SCALE = 4")
    with open("data/table.csv", "a") as file:
        file.write("mine")
    os.chmod("tool.sh", 0o700)
"""


@pytest.fixture
def attempts(tmp_path: Path) -> Attempts:
    attempts = Attempts(tmp_path)
    project = attempts.capsule / "project"
    (project / "lib").mkdir()
    (project / "data").mkdir()
    attempts.write("import sys; sys.path.insert(0, 'lib')\n" + BESIDE.replace("\n    ", "\n"))
    attempts.write("SCALE = 3", "lib/helper.py")
    attempts.write("a,b", "data/table.csv")
    attempts.write("#!/bin/sh", "tool.sh")
    for path in project.rglob("*"):
        if path.is_file():
            path.chmod(0o555 if path.suffix == ".sh" else 0o444)
    return attempts


def content(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(path.relative_to(folder)): (path.read_text(errors="replace"), path.stat().st_mode)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_writing_beside_its_own_files_reaches_neither_the_capsule_nor_the_next_attempt(attempts):
    before = content(attempts.capsule / "project")
    for _ in range(2):
        assert attempts.train() == 0, attempts.output
        assert "found True" not in attempts.output
        assert (attempts.attempt / "work/marks.txt").read_text() == "mine"
    assert content(attempts.capsule / "project") == before
    assert not list((attempts.capsule / "project").rglob("__pycache__"))


def test_copy_may_be_written_and_keeps_its_permission_to_run(attempts):
    attempts.write("print('nothing')")
    assert attempts.train() == 0
    work = attempts.attempt / "work"
    assert stat.S_IMODE((work / "tool.sh").stat().st_mode) & 0o700 == 0o700
    assert stat.S_IMODE((work / "data/table.csv").stat().st_mode) & 0o700 == 0o600
    assert not [path for path in work.rglob("*") if path.is_symlink()]


READS = """
    import mmap, pathlib
    with open("data/set/train.bin", "rb") as file:
        print("found", bytes(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)))
    print("found", pathlib.Path("data/table.csv").read_text(), pathlib.Path("big/x").read_text())
"""


@pytest.fixture
def project(attempts) -> dict:
    """The root of the project, with data; return what the spec then has."""
    for name, text in {"data/set/train.bin": "1234", "data/table.csv": "new", "big/x": "5"}.items():
        (attempts.root / name).parent.mkdir(parents=True, exist_ok=True)
        (attempts.root / name).write_text(text)
    data, sent = ["data", "big"], {"data/table.csv"}
    return {
        "data": data,
        "data_files": {one: described(str(attempts.root), one, sent) for one in data},
    }


def test_data_are_linked_beside_files_of_the_capsule_and_outlive_the_attempt(attempts, project):
    attempts.write(READS)
    before = content(attempts.root)
    assert attempts.train(**project) == 0, attempts.output
    assert "found b'1234'\nfound a,b 5" in attempts.output
    assert attempts.codes == ["nothing_logged"]
    work = attempts.attempt / "work"
    links = sorted(str(p.relative_to(work)) for p in work.rglob("*") if p.is_symlink())
    assert links == ["big", "data/set"]
    where = {"program": True, "gang": {"nodes": 1}, "attempt_dir": str(attempts.attempt)}
    attempt_code.tidy(where)
    assert not work.exists()
    assert content(attempts.root) == before


def test_attempt_on_a_node_without_the_data_does_not_start(attempts, project):
    attempts.write("print('started')")
    (attempts.root / "big/x").unlink()
    (attempts.root / "big").rmdir()
    assert attempts.train(**project) == 1
    [finished] = attempts.records("finished")
    assert finished.cause == "data_unreachable"
    assert f"{attempts.root}/big: No such file or directory on" in finished.message
    assert not attempts.records("started")


@pytest.mark.parametrize("position", [0, 50 << 10, (10 << 20) - 9, 10 << 20])
def test_digest_of_a_large_file_covers_its_begin_its_end_and_its_size(tmp_path, position):
    with (tmp_path / "x").open("wb") as file:
        file.truncate((10 << 20) + 1)
    before = described(str(tmp_path), "x", ())
    with (tmp_path / "x").open("r+b") as file:
        file.seek(position)
        file.write(b"1")
    assert described(str(tmp_path), "x", ()) != before


@pytest.mark.parametrize(("nodes", "stays"), [(1, False), (2, True)])
def test_unchanged_copies_are_removed_when_the_attempt_has_ended(attempts, nodes, stays):
    assert attempts.train() == 0, attempts.output
    launch = {"program": True, "gang": {"nodes": nodes}, "attempt_dir": str(attempts.attempt)}
    attempt_code.tidy(launch)
    attempt_code.tidy(launch)
    left = content(attempts.attempt / "work")
    written = {"marks.txt", "lib/marks.txt", "lib/helper.py", "data/table.csv"}
    assert written <= left.keys()
    assert (left.keys() == written) is not stays
    assert ("train.py" in left) is stays
