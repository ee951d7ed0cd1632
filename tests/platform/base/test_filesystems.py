"""Folders of any depth have a size and can be removed; nothing outside them is touched."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from lehr.base.filesystems import remove_tree, tree_bytes

DEEPER_THAN_PATHS = 3_000
"""Folders of two letters each: 9,000 characters, where Linux allows 4,096."""


def nest(folder: Path, levels: int) -> None:
    """Make folders one in the other, each with a file of ten bytes and a link to outside."""
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("ab", dir_fd=here)
        inner = os.open("ab", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
        file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=here)
        os.write(file, b"x" * 10)
        os.close(file)
        os.symlink("/etc", "link", dir_fd=here)
    os.close(here)


@pytest.mark.parametrize("levels", [0, 3, 1_500, DEEPER_THAN_PATHS])
def test_tree_is_removed_whatever_its_depth(tmp_path: Path, levels: int) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("kept")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "outside").symlink_to(kept)
    nest(tree, levels)
    remove_tree(tree)
    assert not tree.exists()
    assert (kept / "file").read_text() == "kept"
    assert Path("/etc").is_dir()


def test_removal_needs_few_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    nest(tree, 50)
    sound = shutil.rmtree
    asked = []

    def first_without(path, **options):
        asked.append(path)
        if len(asked) == 1:
            raise OSError(24, "Too many open files")
        sound(path, **options)

    monkeypatch.setattr(shutil, "rmtree", first_without)
    remove_tree(tree)
    assert not tree.exists()


def test_part_that_cannot_be_removed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        remove_tree(tmp_path / "none")


def test_size_counts_files_and_links_at_any_depth(tmp_path: Path) -> None:
    nest(tmp_path, 1_200)
    assert tree_bytes(tmp_path) == 1_200 * (10 + len("/etc"))
    (tmp_path / "away").symlink_to("/usr")
    assert tree_bytes(tmp_path) == 1_200 * 14 + len("/usr")
    assert tree_bytes(tmp_path / "none") == 0
    remove_tree(tmp_path / "ab")
