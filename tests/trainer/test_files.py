"""Atomic writes: what a reader sees, and what a failure leaves."""

from __future__ import annotations

import pytest

from lehr_trainer.files import create_secret, fsync_folder, write_atomically


def test_file_is_replaced_and_no_temporary_file_stays(tmp_path):
    path = tmp_path / "a.json"
    write_atomically(path, "old")
    write_atomically(path, "größer")
    assert path.read_text("utf-8") == "größer"
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_keeps_the_old_content_and_no_temporary_file(tmp_path):
    path = tmp_path / "a.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_first_of_two_secrets_stays_and_only_its_owner_can_read_it(tmp_path):
    path = tmp_path / "token"
    create_secret(path, b"first")
    create_secret(path, b"second")
    assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_only_a_folder_is_synced(tmp_path):
    fsync_folder(tmp_path)
    (tmp_path / "a").write_text("")
    with pytest.raises(NotADirectoryError):
        fsync_folder(tmp_path / "a")
