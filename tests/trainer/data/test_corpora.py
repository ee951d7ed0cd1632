"""Corpora: the same documents from every format, and clear errors for missing ones."""

from __future__ import annotations

import gzip
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lehr_testing.corpora import documents, write_jsonl
from lehr_trainer.configs.corpus import FilesCorpus, HubCorpus, StdlibCorpus
from lehr_trainer.configs.train import DataConfig, ValidationConfig
from lehr_trainer.data.checks import (
    check_corpus,
    check_data,
    check_small,
    check_tokenizer,
    document_hash,
    is_held_out,
)
from lehr_trainer.data.corpora import open_corpus
from lehr_trainer.data.files import HubReader, unreachable_tokenizer
from lehr_trainer.data.prepare import prepare_dataset
from lehr_trainer.data.tokenizers import load_tokenizer
from lehr_trainer.errors import BadConfig, BadData, DataUnreachable
from lehr_trainer.evaluate import ValidationSet

TEXTS = documents(40)


def files(kind, *paths, **options):
    return FilesCorpus(kind=kind, paths=[str(path) for path in paths], **options)


def everything(corpus, skip=0):
    reader = open_corpus(corpus)
    return [
        text
        for source in range(reader.sources())
        for text in reader.documents(source, skip if source == 0 else 0)
    ]


@pytest.fixture
def packed(tmp_path):
    """The same texts as text files, JSON lines (also gzipped) and Parquet."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number:03d}.txt").write_text(text, encoding="utf-8")
    lines = write_jsonl(tmp_path / "corpus.jsonl", TEXTS, meta={"n": 1})
    (tmp_path / "packed.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()))
    pq.write_table(
        pa.table({"text": TEXTS, "n": range(len(TEXTS))}),
        tmp_path / "corpus.parquet",
        row_group_size=7,
    )
    return {
        "text": files("text", folder),
        "jsonl": files("jsonl", lines),
        "gzip": files("jsonl", tmp_path / "packed.jsonl.gz"),
        "parquet": files("parquet", tmp_path / "corpus.parquet"),
    }


@pytest.mark.parametrize("kind", ["text", "jsonl", "gzip", "parquet"])
def test_every_kind_of_file_gives_the_same_documents(packed, kind):
    assert everything(packed[kind]) == TEXTS


@pytest.mark.parametrize("kind", ["text", "jsonl", "parquet"])
def test_reading_can_begin_at_any_document(packed, kind):
    assert everything(packed[kind], skip=13) == TEXTS[13:]


def test_globs_folders_and_files_are_taken_in_a_fixed_order(tmp_path):
    for name in ("b.jsonl", "a.jsonl", "c.jsonl"):
        write_jsonl(tmp_path / name, [name])
    (tmp_path / "README").write_text("not data")
    expected = ["a.jsonl", "b.jsonl", "c.jsonl"]
    assert everything(files("jsonl", tmp_path)) == expected
    assert everything(files("jsonl", tmp_path / "*.jsonl")) == expected
    # Named first, so first; and not a second time.
    assert everything(files("jsonl", tmp_path / "c.jsonl", tmp_path))[0] == "c.jsonl"
    assert len(everything(files("jsonl", tmp_path / "c.jsonl", tmp_path))) == 3


def test_the_standard_library_is_real_text_in_a_fixed_order():
    texts = everything(StdlibCorpus())
    joined = "\n".join(texts)
    assert len(joined) > 5_000_000
    assert "builtins.len\n\nReturn the number of items in a container." in joined
    assert "class JSONDecoder" in joined
    assert "site-packages" not in {text[:40] for text in texts}
    assert texts == everything(StdlibCorpus())
    assert everything(StdlibCorpus(), skip=5) == texts[5:]


# --- errors -------------------------------------------------------------------------------------


def test_missing_path_is_named_with_the_nearest_one(tmp_path):
    write_jsonl(tmp_path / "train.jsonl", TEXTS)
    with pytest.raises(BadData, match=r"trian.jsonl does not exist; did you mean .*train.jsonl\?"):
        check_corpus(files("jsonl", tmp_path / "trian.jsonl"))
    with pytest.raises(BadData, match="nearest folder that exists is"):
        check_corpus(files("jsonl", tmp_path / "zzz" / "deep" / "x.jsonl"))
    with pytest.raises(BadData, match="does not exist"):
        check_corpus(files("jsonl", tmp_path / "*.nothing"))


def test_a_corpus_is_checked_without_numpy_torch_or_datasets(tmp_path):
    code = (
        "import sys; from lehr_trainer.configs.corpus import FilesCorpus;"
        "from lehr_trainer.configs.train import DataConfig; from lehr_trainer.data.checks import check_data;"
        f"corpus = FilesCorpus(kind='text', paths=[{str(tmp_path)!r} + '/a.txt']);"
        "check_data(DataConfig(corpus=corpus, tokenizer='byte'), 512);"
        "print([m for m in ('numpy', 'torch', 'datasets') if m in sys.modules])"
    )
    (tmp_path / "a.txt").write_text("x")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_preparing_the_standard_library_loads_nothing_that_it_does_not_use(tmp_path):
    code = (
        "import sys; from pathlib import Path;"
        "from lehr_trainer.configs.corpus import StdlibCorpus; from lehr_trainer.configs.train import DataConfig, ValidationConfig;"
        "from lehr_trainer.data.prepare import prepare_dataset;"
        "d = DataConfig(corpus=StdlibCorpus(), tokenizer='byte');"
        f"prepare_dataset(d, ValidationConfig(), 512, Path({str(tmp_path)!r}), lambda *a: None);"
        "print([m for m in ('torch', 'datasets', 'tokenizers', 'mistral_common', 'tiktoken')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{broken", r"line 2 is not JSON"),
        ('["a"]', r"line 2 is not a JSON object"),
        ('{"txt": "a"}', r"line 2 has no field 'text'; it has txt; .*text_field to txt"),
        ('{"text": 3}', r"line 2: field 'text' holds int, not text"),
    ],
)
def test_a_bad_line_is_named_with_its_number(tmp_path, line, says):
    path = tmp_path / "corpus.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n')
    with pytest.raises(BadData, match=says) as caught:
        everything(files("jsonl", path))
    assert str(path) in str(caught.value)


# --- the hub, up to the network ------------------------------------------------------------------


def test_a_hub_dataset_streams_shard_by_shard(tmp_path):
    """A folder of Parquet files replaces a hub repository: `datasets` treats both alike."""
    for shard in range(3):
        part = TEXTS[shard * 10 : shard * 10 + 10]
        pq.write_table(
            pa.table({"text": part, "n": range(10)}), tmp_path / f"train-{shard}.parquet"
        )
    reader = HubReader(HubCorpus(id=str(tmp_path)))
    assert reader.sources() == 3
    assert [t for s in range(3) for t in reader.documents(s, 0)] == TEXTS[:30]
    assert list(reader.documents(1, 4)) == TEXTS[14:20]
    with pytest.raises(BadData, match=r"no field 'txt'; it has text, n.*to text"):
        list(HubReader(HubCorpus(id=str(tmp_path), text_field="txt")).documents(0, 0))


def test_unreachable_hub_is_an_error_with_a_remedy(monkeypatch):
    for offline in ("huggingface_hub.constants.HF_HUB_OFFLINE", "datasets.config.HF_HUB_OFFLINE"):
        monkeypatch.setattr(offline, True)
    corpus = HubCorpus(id="HuggingFaceFW/fineweb-edu", name="sample-10BT")
    with pytest.raises(
        DataUnreachable, match=r"HuggingFaceFW/fineweb-edu cannot be fetched.*network"
    ):
        open_corpus(corpus).sources()
    with pytest.raises(DataUnreachable, match="no-such-tokenizer cannot be fetched"):
        load_tokenizer("openai-community/no-such-tokenizer")


def test_a_damaged_or_foreign_parquet_file_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 nothing of the kind")
    with pytest.raises(BadData, match=r"a.parquet is not a Parquet file"):
        everything(files("parquet", path))
    pq.write_table(pa.table({"content": ["a"], "n": [1]}), path)
    with pytest.raises(BadData, match=r"no field 'text'; it has content, n"):
        everything(files("parquet", path))
    with pytest.raises(BadData, match=r"column 'n' holds int64, not text"):
        everything(files("parquet", path, text_field="n"))


def test_tokenizer_that_does_not_fit_is_refused_before_reading():
    data = DataConfig(corpus=StdlibCorpus(), tokenizer="tekken")
    check_data(data, 131_072)
    with pytest.raises(BadConfig, match=r"'tekken' has 131,072 tokens.*vocab_size is 512"):
        check_data(data, 512)
    with pytest.raises(BadData, match="did you mean byte"):
        check_data(data.model_copy(update={"tokenizer": "bytes"}), 512)


def test_tokenizer_that_needs_a_download_has_a_hint_for_machines_without_a_network():
    with pytest.raises(BadData, match=r"openai-community/gpt2 .*tekken or byte"):
        check_tokenizer("gpt2")
    error = unreachable_tokenizer("openai-community/gpt2", ConnectionError("no route"))
    assert isinstance(error, DataUnreachable)
    assert "tekken or byte, or the path of a tokenizer.json" in str(error)
    assert "data.corpus" not in str(error)


LENGTH = 64


def config(folder, **corpus):
    corpus = {"kind": "text", "paths": [str(folder)], **corpus}
    return DataConfig.model_validate({"corpus": corpus, "tokenizer": "byte"})


@pytest.mark.parametrize("document", ["file", "paragraph"])
def test_share_is_refused_where_the_preparation_refuses_it(tmp_path, document):
    for number in range(4):
        text = "".join(f"Part {n} of {number} has these words.\n\n" for n in range(9))
        (tmp_path / f"{number}.txt").write_text(text)
    (tmp_path / "same.txt").write_text((tmp_path / "0.txt").read_text())
    data = config(tmp_path, document=document)

    def sequences(share):
        validation = ValidationConfig(share=share)
        prepared = prepare_dataset(data, validation, 257, tmp_path / "data", lambda *_: None)
        return ValidationSet(prepared, LENGTH, validation.tokens).sequences

    refused = []
    for share in (0.001, 0.1, 0.2, 0.3, 0.4, 0.49):
        try:
            check_small(data, ValidationConfig(share=share), LENGTH)
        except BadData as error:
            refused.append(str(error))
            with pytest.raises(BadData):
                sequences(share)
        else:
            assert sequences(share) >= 1
    assert 0 < len(refused) < 6
    count = {"file": 4, "paragraph": 36}[document]
    assert f"it has {count} different documents (each a {document}) in 5 files" in refused[0]
    finer = {"file": "document: paragraph or line,", "paragraph": "document: line,"}[document]
    assert finer in refused[0]
    assert "0 are held out, with at most 0 tokens to score" in refused[0]


def test_a_part_of_a_mix_that_is_too_small_is_named(tmp_path):
    (tmp_path / "a.txt").write_text("Few words.")
    few = config(tmp_path).corpus.model_dump()
    parts = {
        "few": {"weight": 1, "corpus": few},
        "own": {"weight": 1, "corpus": {"kind": "stdlib"}},
    }
    mix = DataConfig.model_validate(
        {"corpus": {"kind": "mix", "parts": parts}, "tokenizer": "byte"}
    )
    with pytest.raises(BadData, match=r"^data\.corpus\.parts\.few\.corpus is too small: .* 1 file"):
        check_small(mix, ValidationConfig(), LENGTH)


def test_repeats_of_a_document_are_trained_on(tmp_path):
    lines = [f"Line {number} has {'many ' * 20}words." for number in range(40)]
    short = next(x for x in map(str, range(99)) if not is_held_out(document_hash(x.encode()), 0.49))
    held_out = [line for line in lines if is_held_out(document_hash(line.encode()), 0.49)]
    (tmp_path / "a.txt").write_text("\n".join([*held_out, *[short] * LENGTH]))
    check_small(config(tmp_path, document="line"), ValidationConfig(share=0.49), LENGTH)
