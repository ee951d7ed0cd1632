"""The prepared corpora of a machine: finished ones, unfinished ones, and what is not one."""

from __future__ import annotations

import json
import os
from pathlib import Path

from lehr.faces.cli.data import prepared_corpora


def prepared(folder: Path, corpus: dict, *, at: float) -> None:
    folder.mkdir(parents=True)
    (folder / "train-00000.bin").write_bytes(b"12345678")
    train = [{"tokens": 3}, {"tokens": 1}]
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps({"corpus": corpus, "tokenizer": "byte", "train": train}))
    os.utime(manifest, (at, at))


def test_corpora_are_listed_newest_first_with_what_they_hold(tmp_path):
    files = [f"/texts/{name}.txt" for name in "abcde"]
    prepared(tmp_path / "old", {"kind": "stdlib", "python": "cpython 3.11"}, at=100)
    prepared(tmp_path / "new", {"kind": "text", "files": files}, at=200)
    newest, oldest = prepared_corpora(tmp_path)
    assert (newest.folder, newest.corpus) == ("new", "text a.txt, b.txt, c.txt and 2 more")
    assert (newest.tokens, newest.tokenizer, newest.finished) == (4, "byte", True)
    assert newest.size_bytes == 8 + (tmp_path / "new/manifest.json").stat().st_size
    assert (oldest.corpus, oldest.written_at) == ("stdlib", 100)


def test_unfinished_folder_is_listed_and_others_are_left_out(tmp_path):
    (tmp_path / "digest.partial").mkdir()
    (tmp_path / "digest.partial/train-00000.bin").write_bytes(b"123")
    (tmp_path / "digest.lock").touch()
    (tmp_path / "mine").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/manifest.json").write_text("{}")
    [one] = prepared_corpora(tmp_path)
    assert (one.folder, one.tokens, one.size_bytes, one.finished) == (
        "digest.partial",
        None,
        3,
        False,
    )
    assert prepared_corpora(tmp_path / "nowhere") == []
