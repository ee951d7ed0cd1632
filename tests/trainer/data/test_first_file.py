"""Whether a pattern or folder has a file: as Python's own glob finds, with a limit for looks."""

from __future__ import annotations

import contextlib
import glob
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lehr_trainer.data.first_file import GaveUp, Looks

NAMES = st.sampled_from(["a", "b", "ab", "a.txt", ".hidden", "[x]"])
PARTS = st.sampled_from(["a", "b", "*", "**", "?", "*.txt", "[ab]*", ".*", "[[]x]", "a.txt"])


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    return tmp_path_factory.mktemp("trees")


numbers = itertools.count()


@given(
    files=st.lists(st.lists(NAMES, min_size=1, max_size=4), max_size=6),
    parts=st.lists(PARTS, min_size=1, max_size=4),
    folder_only=st.booleans(),
)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pattern_matches_what_glob_matches(trees, files, parts, folder_only):
    base = trees / str(next(numbers))
    base.mkdir()
    for names in files:
        path = base.joinpath(*names)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue
    pattern = f"{base}/" + "/".join(parts) + ("/" if folder_only else "")
    # For "a/**" it also returns "a/", even if there is no a.
    found = [
        path
        for path in glob.glob(pattern, recursive=True)  # noqa: PTH207 - the witness
        if os.path.lexists(path)
    ]
    assert Looks().matches(pattern) == bool(found)
    assert Looks().matches_file(pattern) == any(map(os.path.isfile, found))
    suffixes = (".txt", "b")
    held = [p for p in base.rglob("*") if p.name.endswith(suffixes) and p.is_file()]
    assert Looks().holds(str(base), suffixes) == bool(held)


def test_relative_pattern_begins_in_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "shard-1.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    assert Looks().matches("shard-*.jsonl")
    assert not Looks().matches("shard-*.parquet")


def test_links_to_folders_are_followed_as_glob_does(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real/a.txt").touch()
    (tmp_path / "c").mkdir()
    (tmp_path / "c/link").symlink_to(tmp_path / "real")
    assert Looks().matches(f"{tmp_path}/c/**/a.txt")


def test_links_in_circles_are_followed_once(tmp_path):
    (tmp_path / "x").mkdir()
    for name in ("again", "once_more"):
        (tmp_path / "x" / name).symlink_to(tmp_path)
    looks = Looks()
    assert not looks.matches(f"{tmp_path}/**/no-file")
    assert not looks.matches(f"{tmp_path}/**/**/x/**/no-file")
    assert looks.left > Looks().left - 100


def test_looks_are_limited_over_all_checks(tmp_path):
    for number in range(30):
        (tmp_path / f"{number}.bin").touch()
    looks = Looks(left=70)
    assert not looks.holds(str(tmp_path), (".txt",))
    assert not looks.matches(f"{tmp_path}/*.txt")
    with pytest.raises(GaveUp):
        looks.holds(str(tmp_path), (".txt",))
    with pytest.raises(GaveUp):
        looks.matches_file(f"{tmp_path}/*.txt")


def test_deep_folders_are_given_up_without_an_error_of_python(tmp_path):
    home = os.open(tmp_path, os.O_RDONLY)
    folder = home
    opened = [home]
    for _ in range(1500):
        os.mkdir("d", dir_fd=folder)
        folder = os.open("d", os.O_RDONLY, dir_fd=folder)
        opened.append(folder)
        if len(opened) > 100:
            os.close(opened.pop(1))
    for one in opened:
        os.close(one)
    try:
        for look in (
            lambda: Looks().holds(str(tmp_path), (".txt",)),
            lambda: Looks().matches(f"{tmp_path}/**/none"),
        ):
            with pytest.raises(GaveUp):
                look()
    finally:
        _remove_deep(tmp_path)


def _remove_deep(path: Path) -> None:
    """Remove it from the top: Python's own removal is recursive."""
    while (path / "d").exists():
        (path / "d").rename(path / "old")
        if (path / "old/d").exists():
            (path / "old/d").rename(path / "d")
        (path / "old").rmdir()


def test_a_folder_that_cannot_be_read_has_no_match(tmp_path):
    assert not Looks().matches(f"{tmp_path}/none/*")
    (tmp_path / "file").touch()
    assert not Looks().matches(f"{tmp_path}/file/*")
    assert not Looks().holds(f"{tmp_path}/file", ("",))


def test_folder_that_cannot_be_read_to_its_end_has_the_matches_before(tmp_path, monkeypatch):
    """As /proc/1/map_files, which the kernel shows to nobody without the capability."""
    for name in ("a", "b"):
        (tmp_path / name).touch()
    real = os.scandir

    @contextlib.contextmanager
    def cut_off(folder):
        def entries():
            with real(folder) as found:
                yield next(found)
            raise PermissionError

        yield entries()

    monkeypatch.setattr(os, "scandir", cut_off)
    [first] = glob.glob(f"{tmp_path}/*")  # noqa: PTH207 - the witness
    assert Looks().matches(f"{tmp_path}/{first[-1]}*")
    assert not Looks().matches(f"{tmp_path}/[!{first[-1]}]*")


def test_files_of_a_folder_are_looked_for_until_the_first(tmp_path):
    for number in range(100):
        (tmp_path / f"{number}.txt").touch()
    looks = Looks()
    assert looks.holds(str(tmp_path), (".txt",))
    assert looks.left == Looks().left - 1
