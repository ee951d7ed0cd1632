"""A corpus whose disk or file server is away is no wrong path: trying again helps."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from lehr_testing.assembled import begin
from lehr_testing.corpora import documents, jsonl_data, silent, write_jsonl
from lehr_testing.specs import text_corpus
from lehr_trainer.configs.train import DataConfig, ValidationConfig
from lehr_trainer.data import files
from lehr_trainer.data.prepare import prepare_dataset
from lehr_trainer.data.token_dataset import PreparedData
from lehr_trainer.errors import BadData, DataUnreachable

QUIET = {"validation": {"tokens": 512, "share": 0.1, "every": 0}, "checkpoint": {"every": 0}}


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    """A corpus of one file, in a folder that a test can take away."""
    (tmp_path / "server").mkdir()
    return jsonl_data(write_jsonl(tmp_path / "server" / "c.jsonl", documents(50)))


def prepare(tmp_path: Path, data: DataConfig, **options: Any) -> PreparedData:
    return prepare_dataset(
        data, ValidationConfig(share=0.1), 512, tmp_path / "root", silent, **options
    )


def take_away(tmp_path: Path) -> None:
    """Leave the empty folder on which the disk was mounted."""
    (tmp_path / "server").rename(tmp_path / "away")
    (tmp_path / "server").mkdir()


def test_corpus_that_nobody_has_seen_is_a_wrong_path(tmp_path: Path, data: DataConfig) -> None:
    prepare(tmp_path, data)
    other = jsonl_data(tmp_path / "server" / "d.jsonl")
    with pytest.raises(BadData, match=r"d\.jsonl does not exist; did you mean") as raised:
        prepare(tmp_path, other)
    assert type(raised.value) is BadData
    with pytest.raises(DataUnreachable):  # The server found it when the run was submitted.
        prepare(tmp_path, other, seen=True)


@pytest.mark.parametrize("kind", ["file", "folder", "glob"])
def test_corpus_that_was_prepared_before_is_away_and_comes_back(
    tmp_path: Path, data: DataConfig, kind: str
) -> None:
    prepare(tmp_path, data)
    paths = {"file": "server/c.jsonl", "folder": "server", "glob": "server/*.jsonl"}
    same = jsonl_data(tmp_path / paths[kind], max_tokens=100)
    take_away(tmp_path)
    with pytest.raises(DataUnreachable, match="is its disk or file server there"):
        prepare(tmp_path, same)
    (tmp_path / "server").rmdir()
    (tmp_path / "away").rename(tmp_path / "server")
    assert prepare(tmp_path, same).tokens == 100


def test_corpus_that_goes_away_while_it_is_read_can_be_tried_again(
    tmp_path: Path, data: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = files.text_rows

    def read(*arguments: object, **options: object) -> object:
        take_away(tmp_path)
        return rows(*arguments, **options)

    monkeypatch.setattr(files, "text_rows", read)
    with pytest.raises(DataUnreachable):
        prepare(tmp_path, data)


def test_shards_are_found_by_their_digest_without_the_corpus(
    tmp_path: Path, data: DataConfig
) -> None:
    before = prepare(tmp_path, data)
    take_away(tmp_path)
    assert prepare(tmp_path, data, trained_on={before.digest}).directory == before.directory
    with pytest.raises(DataUnreachable):
        prepare(tmp_path, data, trained_on={hashlib.sha256().hexdigest()})


def test_run_resumes_without_its_corpus(tmp_path: Path) -> None:
    corpus = text_corpus(tmp_path / "corpus", documents=60)
    training = begin(tmp_path / "run", corpus, **QUIET)
    with training.loader:
        training.metrics_logger.start_at(0, 0)
        training.take_step()
    training.save("order", None, final=True)
    training.checkpointer.end()
    corpus.rename(tmp_path / "away")
    again = begin(tmp_path / "run", corpus, **QUIET)
    again.loader.close()
    assert again.progress.step == 1
    assert again.stage.data.digest == training.stage.data.digest
