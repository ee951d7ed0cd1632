"""Whether a pattern or folder has a file: as Python's own glob finds, with a limit for looks."""

from __future__ import annotations

import glob
import itertools
import os

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


def test_a_folder_that_cannot_be_read_has_no_match(tmp_path):
    assert not Looks().matches(f"{tmp_path}/none/*")
    (tmp_path / "file").touch()
    assert not Looks().matches(f"{tmp_path}/file/*")
    assert not Looks().holds(f"{tmp_path}/file", ("",))
