"""The held-out set: fixed tokens in a fixed order, for any world size and micro-batch."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr_testing.corpora import documents, prepare_texts, silent
from lehr_testing.properties import examples
from lehr_trainer.configs.corpus import FilesCorpus
from lehr_trainer.configs.train import DataConfig, ValidationConfig
from lehr_trainer.data.checks import document_hash, is_held_out
from lehr_trainer.data.prepare import prepare_dataset
from lehr_trainer.data.prepared_sample import prepared_sample, prepared_tokens
from lehr_trainer.errors import BadData
from lehr_trainer.evaluate import ValidationSet


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return prepare_texts(tmp_path_factory.mktemp("corpus"), documents(300), share=0.2)


def rows(prepared, world_size=1, micro_batch=8, length=16, tokens=10**9):
    found = []
    for rank in range(world_size):
        part = ValidationSet(prepared, length, tokens, rank, world_size, micro_batch=micro_batch)
        found += [
            tuple(both)
            for inputs, targets in part.batches()
            for both in torch.cat([inputs, targets], dim=1).tolist()
        ]
    return found


@settings(max_examples=examples(30), deadline=None)
@given(world_size=st.integers(1, 9), micro_batch=st.integers(1, 40), length=st.integers(1, 100))
def test_every_world_size_scores_the_same_tokens_once(prepared, world_size, micro_batch, length):
    alone = rows(prepared, length=length)
    assert sorted(rows(prepared, world_size, micro_batch, length)) == sorted(alone)
    assert len(alone) == ValidationSet(prepared, length, 10**9, 0, world_size).sequences


@settings(max_examples=examples(30), deadline=None)
@given(world_size=st.integers(1, 9), micro_batch=st.integers(1, 40), tokens=st.integers(400, 4000))
def test_padded_batches_of_all_ranks_have_one_shape_and_score_the_same_tokens(
    prepared, world_size, micro_batch, tokens
):
    shapes, counts = set(), set()
    found = []
    for rank in range(world_size):
        given = (prepared, 16, tokens, rank, world_size)
        plain = list(ValidationSet(*given, micro_batch=micro_batch).batches())
        padded = list(ValidationSet(*given, micro_batch=micro_batch, padded=True).batches())
        # A rank with fewer batches than another has one without targets: their number is equal.
        counts.add(len(padded))
        assert all(len(scored) == 0 for _, scored in padded[len(plain) :])
        for (inputs, targets), (more, scored) in zip(plain, padded, strict=False):
            shapes.add(tuple(more.shape))
            assert torch.equal(more[: len(inputs)], inputs)
            assert torch.equal(scored, targets)
            found.append(len(targets))
    assert len(shapes) == len(counts) == 1
    # No more rows than a rank has, where it has fewer than a micro-batch.
    [(rows_of_a_batch, _)] = shapes
    assert rows_of_a_batch == max(found)


def by_hash(texts, share):
    """Bytes of the held-out texts, each ended by 256, in the order of their hashes."""
    kept = [
        raw for raw in (text.encode() for text in texts) if is_held_out(document_hash(raw), share)
    ]
    return [[*raw, 256] for raw in sorted(kept, key=document_hash)]


def test_the_sample_is_described(tmp_path):
    texts = documents(300)
    lengths = [len(one) for one in by_hash(texts, 0.2)]
    limit = sum(lengths[:9]) + 3
    made = prepare_texts(tmp_path, texts, share=0.2, tokens=limit)
    assert made.held_out.describe(limit) == (
        f"{limit:,} of {sum(lengths):,} held-out tokens, from 10 of {len(lengths)} documents"
    )
    # The token after the last scored one begins the tenth.
    assert "from 9 of" in made.held_out.describe(limit - 4)


def mixed_folder(folder, count=2):
    """A corpus of many small texts in folders, an empty one among them."""
    for name in [f"kind-{number}" for number in range(count)]:
        (folder / name).mkdir(parents=True)
        for number, text in enumerate(documents(40, seed=len(name))):
            (folder / name / f"{number:02}.txt").write_text(f"{name} {text}" if number else "")
    corpus = FilesCorpus(kind="text", paths=[str(folder)])
    return DataConfig(corpus=corpus, tokenizer="byte"), ValidationConfig(share=0.3, tokens=8000)


def test_each_document_has_the_folder_it_came_from(tmp_path):
    data, validation = mixed_folder(tmp_path / "texts", 3)
    assert prepared_sample(data, validation, tmp_path / "r") is None
    prepared = prepare_dataset(data, validation, 512, tmp_path / "r", silent)
    made = prepared.held_out
    texts = np.split(made.tokens, np.cumsum(made.lengths)[:-1])
    starts = [bytes(text[:6].tolist()).decode().replace("-", "_") for text in texts]
    assert list(made.sources) == starts
    assert set(starts) == {"kind_0", "kind_1", "kind_2"}
    found = prepared_sample(data, validation, tmp_path / "r")
    assert found.describe(8000) == made.describe(8000)
    assert prepared_tokens(data, validation, tmp_path / "r") == prepared.tokens


def test_shards_without_the_sources_of_documents_are_used_as_they_are(tmp_path):
    data, validation = mixed_folder(tmp_path / "texts")
    made = prepare_dataset(data, validation, 512, tmp_path / "r", silent)
    assert made.digest == "d8bb59aed4632fb8ad48b604f2e10d17063cde497ff5a31683b0cb38a08121cd"
    path = made.directory / "manifest.json"
    values = json.loads(path.read_text())
    del values["corpus"]["held_out"]
    path.write_text(json.dumps(values))
    old = prepare_dataset(data, validation, 512, tmp_path / "r", silent)
    assert old == made
    assert set(old.held_out.sources) == {""}


def test_the_order_is_fixed(prepared):
    part = ValidationSet(prepared, 16, 2000, 1, 2)
    once, twice = list(part.batches()), list(part.batches())
    assert all(torch.equal(a[0], b[0]) for a, b in zip(once, twice, strict=True))
    assert once[0][0].dtype == torch.int64


def test_digest_depends_on_the_scored_tokens(tmp_path, prepared):
    texts = documents(300)
    same = prepare_texts(tmp_path, texts, share=0.2)
    assert same.validation_digest == prepared.validation_digest
    fewer = prepare_texts(tmp_path, texts, share=0.2, tokens=1000)
    assert fewer.digest == same.digest
    assert fewer.validation_digest != same.validation_digest
    assert fewer.validation_tokens == 1000


def test_a_changed_set_is_an_error(prepared):
    prepared.require_same(digest=prepared.digest, validation_digest=prepared.validation_digest)
    prepared.require_same()
    with pytest.raises(BadData, match="validation set changed: 0123456789ab before"):
        prepared.require_same(validation_digest="0123456789abcdef")
    with pytest.raises(BadData, match="training data changed"):
        prepared.require_same(digest="0" * 64)


def test_bytes_per_token_counts_the_scored_text(tmp_path):
    """A token has one byte, but the end of a document has none."""
    texts = documents(200)
    whole = prepare_texts(tmp_path, texts, share=0.2)
    held_out = whole.held_out.tokens
    ends = int((held_out == whole.eos_id).sum())
    assert math.isclose(whole.bytes_per_token, 1 - ends / held_out.size)
    part = prepare_texts(tmp_path, texts, share=0.2, tokens=500)
    ends = int((held_out[:501] == part.eos_id).sum())
    assert math.isclose(part.bytes_per_token, 1 - ends / 501, abs_tol=0.003)
