"""The server's capsules: kept by digest, removed when no run needs them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lehr.capsules import collect
from lehr.capsules.archive import BadArchive, SourceFile
from lehr.capsules.shelf import InstalledTrainer, Shelf


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "home")


def source(folder: Path, text: str) -> list[SourceFile]:
    folder.mkdir(exist_ok=True)
    (folder / "a.py").write_text(text)
    return [SourceFile("project/a.py", str(folder / "a.py"), False)]


def test_same_files_are_kept_once(shelf, tmp_path):
    one = shelf.make(source(tmp_path / "a", "1"))
    assert shelf.make(source(tmp_path / "b", "1")) == one
    other = shelf.make(source(tmp_path / "b", "2"))
    assert shelf.digests() == sorted([one, other])
    assert {path.suffix for path in (tmp_path / "home/capsules").iterdir()} == {".tar"}


def test_archive_with_another_digest_is_not_kept(shelf, tmp_path):
    made = shelf.make(source(tmp_path / "a", "1"))
    with shelf.draft() as draft:
        draft.write_bytes(shelf.path(made).read_bytes())
        with pytest.raises(BadArchive, match="its SHA-256 is"):
            shelf.adopt(draft, "0" * 64)
    assert shelf.digests() == [made]
    assert len(list((tmp_path / "home/capsules").iterdir())) == 1


def test_garbage_is_what_no_run_needs_and_nobody_has_just_sent(shelf, tmp_path):
    used, new, old = (shelf.make(source(tmp_path / "a", text)) for text in "123")
    with shelf.draft() as draft:
        killed = draft.with_name(".draft-1-x")
        killed.write_bytes(b"half")
        for path in (shelf.path(used), shelf.path(old), killed):
            os.utime(path, (0, 0))
        assert shelf.collect_garbage({used}) == [old]
    assert shelf.digests() == sorted([used, new])
    assert not killed.exists()


def test_asking_for_a_capsule_keeps_it_for_a_submission(shelf, tmp_path):
    made = shelf.make(source(tmp_path / "a", "1"))
    os.utime(shelf.path(made), (0, 0))
    assert shelf.has(made)
    assert shelf.collect_garbage(set()) == []
    assert not shelf.has("0" * 64)


def test_installed_trainer_is_packed_again_when_a_file_changes(shelf, tmp_path, monkeypatch):
    files = source(tmp_path / "trainer", "1")
    monkeypatch.setattr("lehr.capsules.shelf.trainer_sources", lambda: files)
    installed = InstalledTrainer(shelf)
    first = installed.digest()
    assert installed.digest() == first
    (tmp_path / "trainer/a.py").write_text("22")
    assert installed.digest() != first
    assert collect.PACKAGES[0] == "lehr_trainer"


def test_capsule_that_a_submission_has_just_found_is_not_removed(shelf, tmp_path, monkeypatch):
    digest = shelf.make(source(tmp_path / "a", "1"))
    os.utime(shelf.path(digest), (0, 0))
    found = []
    submission = threading.Thread(target=lambda: found.append(shelf.has(digest)))
    stat = Path.stat

    def slow_stat(path: Path, **options: bool) -> os.stat_result:
        status = stat(path, **options)
        if path == shelf.path(digest) and submission.ident is None:
            submission.start()
            submission.join(0.3)
        return status

    monkeypatch.setattr(Path, "stat", slow_stat)
    removed = shelf.collect_garbage(set())
    submission.join()
    assert found == [digest not in removed]
    assert shelf.has(digest) == (digest not in removed)
