"""What changed from one capsule to another, however large and odd its files are."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lehr.code import archive, changes
from lehr.code.archive import SourceFile
from lehr.code.changes import changes_between


def packed(folder: Path, **files: bytes) -> Path:
    folder.mkdir()
    sources = []
    for name, content in files.items():
        (folder / name).write_bytes(content)
        sources.append(SourceFile(f"project/{name}", str(folder / name), False))
    path = folder.with_suffix(".tar")
    with path.open("wb") as output:
        archive.write(sources, output)
    return path


def lines(seed: int, count: int) -> bytes:
    """Return lines of which many are equal, but none so many that difflib leaves it out."""
    chosen = random.Random(seed).choices(range(101), k=count)
    return b"".join(b"%d\n" % one for one in chosen)


def test_changes_have_a_kind_and_a_patch(tmp_path):
    one = packed(tmp_path / "1", a=b"x\ny\n", b=b"1", c=b"same")
    two = packed(tmp_path / "2", a=b"x\nz\n", c=b"same", d=b"\0")
    found = {c.name: c for c in changes_between(one, two)}
    kinds = {name: c.change for name, c in found.items()}
    assert kinds == {"project/a": "changed", "project/b": "removed", "project/d": "added"}
    assert "\n-y\n+z\n" in found["project/a"].patch
    assert found["project/d"].patch is None


def test_files_that_take_too_long_to_compare_have_no_patch(tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "_MOST_STEPS", 10_000)
    one = packed(tmp_path / "1", a=b"x", b=lines(1, 1500), c=b"1\n")
    two = packed(tmp_path / "2", a=b"y", b=lines(2, 1500), c=b"2\n")
    patches = {c.name: c.patch for c in changes_between(one, two)}
    assert patches["project/b"] is None
    assert patches["project/a"] is not None
    assert patches["project/c"] is not None


def test_content_of_large_files_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "_LONGEST_TEXT", 10)
    asked = []
    read_files = archive.read_files
    monkeypatch.setattr(
        archive, "read_files", lambda path, names: asked.extend(names) or read_files(path, names)
    )
    one = packed(tmp_path / "1", a=b"x", b=b"x" * 5)
    two = packed(tmp_path / "2", a=b"y", b=b"x" * 11)
    assert [c.name for c in changes_between(one, two) if c.patch is None] == ["project/b"]
    assert set(asked) == {"project/a"}


@pytest.mark.parametrize("spent", [0, 1])
def test_no_patch_is_made_once_the_answer_is_full(tmp_path, monkeypatch, spent):
    monkeypatch.setattr(changes, "_LONGEST_PATCH", spent)
    one, two = packed(tmp_path / "1", a=b"x"), packed(tmp_path / "2", a=b"y")
    assert [c.patch for c in changes_between(one, two)] == [None]
