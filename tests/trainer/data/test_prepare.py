"""Preparation: the same shards every time, no training on held-out text, damage is found."""

import json
import os

import numpy as np
import pytest

from lehr_testing.corpora import documents, jsonl_data, prepare_texts, silent, write_jsonl
from lehr_trainer.configs.train import ValidationConfig
from lehr_trainer.data import prepare
from lehr_trainer.data.checks import document_hash, is_held_out
from lehr_trainer.data.prepare import prepare_dataset
from lehr_trainer.data.token_dataset import read_manifest
from lehr_trainer.errors import BadData, DiskFull

EOS = 256


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Settings that make several shards and batches, as a large corpus has."""
    monkeypatch.setattr(prepare, "SHARD_TOKENS", 4000)
    monkeypatch.setattr(prepare, "_BATCH_BYTES", 700)


def tokens_of(prepared, name):
    return np.fromfile(prepared.directory / name, dtype=prepared.dtype)


def texts_of(prepared, split):
    """Decode the documents of "train" or "validation" from the shards."""
    names = (
        [shard.name for shard in read_manifest(prepared.directory).train]
        if split == "train"
        else ["validation.bin"]
    )
    tokens = np.concatenate([tokens_of(prepared, name) for name in names])
    assert tokens[-1] == EOS
    ends = np.flatnonzero(tokens == EOS)
    starts = np.concatenate([[0], ends[:-1] + 1])
    return [
        tokens[start:end].astype(np.uint8).tobytes().decode()
        for start, end in zip(starts, ends, strict=True)
    ]


def test_preparing_twice_gives_the_same_bytes(tmp_path):
    texts = documents(400)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = prepare_texts(tmp_path / "a", texts), prepare_texts(tmp_path / "b", texts)
    assert first.digest == second.digest
    assert first.validation_digest == second.validation_digest
    names = {path.name for path in first.directory.iterdir()} - {"manifest.json", "verified.json"}
    assert len(names) > 4
    for name in names:
        assert (first.directory / name).read_bytes() == (second.directory / name).read_bytes()


@pytest.mark.parametrize("cores", [1, 5])
def test_the_shards_do_not_depend_on_the_number_of_cores(tmp_path, monkeypatch, cores):
    usual = prepare_texts(tmp_path, documents(300))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    (tmp_path / "other").mkdir()
    assert prepare_texts(tmp_path / "other", documents(300)).digest == usual.digest


def test_prepared_data_is_not_prepared_again(tmp_path):
    data = jsonl_data(write_jsonl(tmp_path / "c.jsonl", documents(100)))
    notices = []
    for _ in range(2):
        prepare_dataset(
            data, ValidationConfig(share=0.1), 512, tmp_path / "r", lambda *a: notices.append(a)
        )
    assert sum("prepared" in message for _, message, _ in notices) == 1
    prepare_dataset(data, ValidationConfig(share=0.1, tokens=100), 512, tmp_path / "r", silent)
    assert len(list((tmp_path / "r").glob("*/manifest.json"))) == 1


@pytest.mark.parametrize(
    "change", [{"max_tokens": 9000}, {"share": 0.2}, {"texts": documents(100, seed=1)}]
)
def test_another_corpus_or_split_gets_its_own_folder(tmp_path, change):
    first = prepare_texts(tmp_path, documents(100))
    options = {"texts": documents(100), **change}
    second = prepare_texts(tmp_path, options.pop("texts"), **options)
    assert first.digest != second.digest
    assert first.directory != second.directory


def test_every_document_is_in_one_split_whole_and_once(tmp_path):
    texts = documents(300)
    prepared = prepare_texts(tmp_path, texts)
    train, held_out = texts_of(prepared, "train"), texts_of(prepared, "validation")
    assert sorted(train + held_out) == sorted(texts)
    assert prepared.documents == len(train)
    assert prepared.tokens == sum(len(text.encode()) + 1 for text in train)
    # In reading order within each split.
    assert train == [text for text in texts if text in set(train)]


def test_no_held_out_document_is_ever_trained_on(tmp_path):
    texts = documents(300)
    held_out = [text for text in texts if is_held_out(document_hash(text.encode()), 0.1)]
    # Copies, some with other white space around them, before and after the originals.
    copied = [f"  {held_out[0]}\n\n", *texts, *held_out[:7], f"\n{held_out[1].strip()}"]
    prepared = prepare_texts(tmp_path, copied)
    train = {document_hash(text.encode()) for text in texts_of(prepared, "train")}
    scored = [document_hash(text.encode()) for text in texts_of(prepared, "validation")]
    assert not train & set(scored)
    assert len(scored) == len(set(scored)) == len(held_out)
    assert read_manifest(prepared.directory).duplicates_removed == 9


@pytest.mark.parametrize("limit", [1, 2, 777, 4000, 4001, 9999])
def test_max_tokens_is_exact(tmp_path, limit):
    prepared = prepare_texts(tmp_path, ["seed", *documents(400)], max_tokens=limit, share=0.4)
    assert prepared.tokens == limit
    assert tokens_of(prepared, read_manifest(prepared.directory).train[-1].name)[-1] == EOS


def test_interrupted_preparation_resumes_where_it_stopped(tmp_path, monkeypatch):
    """A preparation that is stopped after each shard in turn ends with the same bytes."""
    monkeypatch.setattr("lehr_trainer.data.lock._REPORT_EVERY_S", 0.0)
    texts = documents(400)
    (tmp_path / "whole").mkdir()
    whole = prepare_texts(tmp_path / "whole", texts)
    shards = len(read_manifest(whole.directory).train)
    data = jsonl_data(write_jsonl(tmp_path / "c.jsonl", texts))

    class Stopped(Exception):
        pass

    reused = []

    def stop_later(phase, message, done):
        if "resuming after" in message:
            reused.append(int(message.split()[2]))
        finished = len(list((tmp_path / "r").glob("*.partial/train-*.bin")))
        if finished > len(stops):
            stops.append(finished)
            raise Stopped

    stops = []
    for _ in range(shards + 1):
        try:
            prepared = prepare_dataset(
                data, ValidationConfig(share=0.1, tokens=10**9), 512, tmp_path / "r", stop_later
            )
            break
        except Stopped:
            continue
    assert reused == list(range(1, shards))
    assert prepared.digest == whole.digest
    assert prepared.validation_digest == whole.validation_digest


# --- damage and bad input ----------------------------------------------------------------------


def flip(path, at=100):
    """Change one bit, and leave size and time as they were."""
    stat = path.stat()
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def truncate(path):
    path.write_bytes(path.read_bytes()[:-2])


@pytest.mark.parametrize("name", ["train-00001.bin", "validation.bin", "validation.documents"])
@pytest.mark.parametrize(
    ("harm", "says"),
    [(flip, "is damaged"), (truncate, "truncated"), (lambda path: path.unlink(), "cannot be read")],
)
def test_damaged_shard_is_named_with_the_remedy(tmp_path, name, harm, says):
    prepared = prepare_texts(tmp_path, documents(300))
    harm(prepared.directory / name)
    with pytest.raises(BadData, match=says) as caught:
        prepare_texts(tmp_path, documents(300))
    assert str(prepared.directory / name) in str(caught.value)
    assert f"delete {prepared.directory}" in str(caught.value)


def test_shard_with_tokens_outside_the_vocabulary_is_rejected(tmp_path):
    prepared = prepare_texts(tmp_path, documents(100))
    path = prepared.directory / "manifest.json"
    values = json.loads(path.read_text())
    values["train"][0]["max_token"] = 999
    path.write_text(json.dumps(values))
    with pytest.raises(BadData, match="holds token 999, outside the vocabulary of 257"):
        prepare_texts(tmp_path, documents(100))


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["", "  \n"], r"holds no text: .* blank.* field text .*corpus.jsonl; .*text_field"),
        (["only one"], "no document was held out|every document of the corpus was held out"),
    ],
)
def test_too_small_corpus_is_an_error_with_a_remedy(tmp_path, texts, says):
    with pytest.raises(BadData, match=says):
        prepare_texts(tmp_path, texts)
    assert not list((tmp_path / "root").glob("*.partial"))


def test_a_root_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    data = jsonl_data(write_jsonl(tmp_path / "c.jsonl", documents(10)))
    with pytest.raises(BadData, match=r"cannot be written to .*file.*LEHR_DATA"):
        prepare_dataset(data, ValidationConfig(), 512, tmp_path / "file" / "root", silent)


def test_full_disk_is_reported_as_such(tmp_path):
    """/dev/full fails every write as a full disk does."""
    data = jsonl_data(write_jsonl(tmp_path / "c.jsonl", documents(100)))
    (tmp_path / "r").mkdir()
    whole = prepare_dataset(data, ValidationConfig(share=0.1), 512, tmp_path / "whole", silent)
    partial = tmp_path / "r" / f"{whole.directory.name}.partial"
    partial.mkdir()
    (partial / "state.json").write_text(
        json.dumps(
            {
                "source": 0,
                "document": 0,
                "train": [],
                "validation_tokens": 0,
                "validation_documents": 0,
                "duplicates": 0,
            }
        )
    )
    for name in ("validation.bin", "validation.documents"):
        (partial / name).touch()
    (partial / "train-00000.bin.tmp").symlink_to("/dev/full")
    with pytest.raises(DiskFull, match="no space left for the token shards"):
        prepare_dataset(data, ValidationConfig(share=0.1), 512, tmp_path / "r", silent)


def test_progress_is_reported_with_speed_and_share(tmp_path, monkeypatch):
    monkeypatch.setattr("lehr_trainer.data.lock._REPORT_EVERY_S", 0.0)
    data = jsonl_data(write_jsonl(tmp_path / "c.jsonl", documents(200)))
    notices = []
    prepare_dataset(
        data, ValidationConfig(share=0.1), 512, tmp_path / "r", lambda *a: notices.append(a)
    )
    shares = [done for _, _, done in notices]
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.5
    assert shares[-1] == 1.0
    assert "tokens/s" in notices[0][1]
    assert {phase for phase, _, _ in notices} == {"data"}
