"""Atomic writes: what a reader sees, and what a failure leaves."""

from __future__ import annotations

import pytest

from lehr_trainer.files import ensure_secret, fsync_folder, write_atomically


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
    assert ensure_secret(path, b"first") == b"first"
    assert ensure_secret(path, b"second") == b"first"
    assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("left", [b"", b"\n", b"\0" * 64])
def test_secret_that_a_power_cut_emptied_is_made_again(tmp_path, left):
    path = tmp_path / "token"
    path.write_bytes(left)
    assert ensure_secret(path, b"new") == b"new"
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_only_a_folder_is_synced(tmp_path):
    fsync_folder(tmp_path)
    (tmp_path / "a").write_text("")
    with pytest.raises(NotADirectoryError):
        fsync_folder(tmp_path / "a")
