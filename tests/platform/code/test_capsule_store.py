"""The server's capsules: kept by digest, removed when no run needs them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from lehr.code import collect
from lehr.code.archive import BadArchive, SourceFile
from lehr.code.capsule_store import CapsuleStore, InstalledTrainer


@pytest.fixture
def capsules(tmp_path: Path) -> CapsuleStore:
    return CapsuleStore(tmp_path / "home")


def source(folder: Path, text: str) -> list[SourceFile]:
    folder.mkdir(exist_ok=True)
    (folder / "a.py").write_text(text)
    return [SourceFile("project/a.py", str(folder / "a.py"), False)]


def test_same_files_are_kept_once(capsules, tmp_path):
    one = capsules.make(source(tmp_path / "a", "1"))
    assert capsules.make(source(tmp_path / "b", "1")) == one
    other = capsules.make(source(tmp_path / "b", "2"))
    assert capsules.digests() == sorted([one, other])
    assert {path.suffix for path in (tmp_path / "home/capsules").iterdir()} == {".tar"}


def test_archive_with_another_digest_is_not_kept(capsules, tmp_path):
    made = capsules.make(source(tmp_path / "a", "1"))
    with capsules.draft() as draft:
        draft.write_bytes(capsules.path(made).read_bytes())
        with pytest.raises(BadArchive, match="its SHA-256 is"):
            capsules.adopt(draft, "0" * 64)
    assert capsules.digests() == [made]
    assert len(list((tmp_path / "home/capsules").iterdir())) == 1


def test_garbage_is_what_no_run_needs_and_nobody_has_just_sent(capsules, tmp_path):
    used, new, old = (capsules.make(source(tmp_path / "a", text)) for text in "123")
    with capsules.draft() as draft:
        killed = draft.with_name(".draft-1-x")
        killed.write_bytes(b"half")
        for path in (capsules.path(used), capsules.path(old), killed):
            os.utime(path, (0, 0))
        assert capsules.collect_garbage({used}) == [old]
    assert capsules.digests() == sorted([used, new])
    assert not killed.exists()


def test_installed_trainer_is_packed_again_when_a_file_changes(capsules, tmp_path, monkeypatch):
    files = source(tmp_path / "trainer", "1")
    monkeypatch.setattr("lehr.code.capsule_store.trainer_sources", lambda: files)
    installed = InstalledTrainer(capsules)
    first = installed.digest()
    assert installed.digest() == first
    (tmp_path / "trainer/a.py").write_text("22")
    assert installed.digest() != first
    assert collect.PACKAGES[0] == "lehr_trainer"


def test_capsule_that_a_submission_has_just_found_is_not_removed(capsules, tmp_path, monkeypatch):
    digest = capsules.make(source(tmp_path / "a", "1"))
    os.utime(capsules.path(digest), (0, 0))
    found = []
    submission = threading.Thread(target=lambda: found.append(capsules.has(digest)))
    stat = Path.stat

    def slow_stat(path: Path, **options: bool) -> os.stat_result:
        status = stat(path, **options)
        if path == capsules.path(digest) and submission.ident is None:
            submission.start()
            submission.join(0.3)
        return status

    monkeypatch.setattr(Path, "stat", slow_stat)
    removed = capsules.collect_garbage(set())
    submission.join()
    assert found == [digest not in removed]
    assert capsules.has(digest) == (digest not in removed)
