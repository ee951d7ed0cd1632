"""Batches of a mix of corpora: the exact share of each, in a fixed order."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lehr_testing.batches import SHAPE, STAGED, load, step_rows
from lehr_testing.corpora import documents, prepare_mix, prepare_texts
from lehr_testing.properties import examples
from lehr_trainer.configs.train import BatchConfig
from lehr_trainer.data.token_dataset import read_manifest
from lehr_trainer.data.tokens import TrainTokens
from lehr_trainer.errors import BadData
from lehr_trainer.evaluate import ValidationSet


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A mix of 3 to 1, without equal blocks."""
    folder = tmp_path_factory.mktemp("mix")
    rng = random.Random(0)
    parts = {
        name: {"weight": weight, "texts": [rng.randbytes(50).hex() for _ in range(count)]}
        for name, weight, count in (("web", 0.75, 300), ("code", 0.25, 30))
    }
    return prepare_mix(folder, parts)


def corpus_blocks(prepared, length=16):
    tokens = TrainTokens.open(prepared, "preload", length)
    every = np.arange(tokens.blocks)
    return tokens.windows(every, np.zeros_like(every), length)


def test_each_step_has_its_exact_share_of_each_corpus_and_no_block_early(mixed):
    blocks = {name: corpus_blocks(part) for name, part in mixed.parts.items()}
    known = {}
    for name, rows in blocks.items():
        for number, row in enumerate(rows.astype(np.int64)):
            known.setdefault(row.tobytes(), (name, number))
    seen = {name: np.zeros(len(rows), int) for name, rows in blocks.items()}
    assert len(known) == sum(map(len, blocks.values())), "no two blocks are the same"
    with load(mixed) as loader:
        for step in range(120):
            inputs, targets = loader.batch(step)
            rows = torch.cat([inputs, targets[:, -1:]], dim=1).numpy()
            found = [known[row.tobytes()] for row in rows]
            assert sum(name == "web" for name, _ in found) == 9
            for name, number in found:
                seen[name][number] += 1
            assert all(times.max() - times.min() <= 1 for times in seen.values())
        metrics = loader.epochs(120)
    epochs = {name: times.sum() / len(times) for name, times in seen.items()}
    assert epochs["code"] > 1.5 > epochs["web"] > 0.5
    assert metrics == pytest.approx(
        {
            "data/epoch": epochs["code"],
            "data/epoch/web": epochs["web"],
            "data/epoch/code": epochs["code"],
            "data/share/web": 0.75,
            "data/share/code": 0.25,
        }
    )


@settings(max_examples=examples(20), deadline=None)
@given(
    step=st.integers(0, 10**7),
    world_size=st.sampled_from([1, 2, 3, 6]),
    micro_batch=st.sampled_from([None, 1]),
    workers=st.sampled_from([0, 2]),
)
def test_a_step_of_a_mix_has_the_same_sequences_however_it_is_shared(
    mixed, step, world_size, micro_batch, workers
):
    shape = SHAPE.model_copy(update={"micro_batch": micro_batch})
    expected = step_rows(mixed, step, 1)
    shared = step_rows(mixed, step, world_size, shape, workers=workers)
    assert torch.equal(shared[0], expected[0])
    assert torch.equal(shared[1], expected[1])


def test_sequences_of_a_mix_may_grow_without_a_repetition(mixed):
    long = BatchConfig(sequences=6, sequence_length=32)
    for step in (0, 5, 89):
        short, _ = step_rows(mixed, step, 1, STAGED, steps=100)
        whole, _ = step_rows(mixed, step, 1, long)
        assert torch.equal(short.reshape(6, 32), whole)


def test_batches_of_a_mix_stay_bitwise_the_same(mixed):
    digest = hashlib.sha256()
    for step in (0, 1, 19, 500):
        inputs, targets = step_rows(mixed, step, 2)
        digest.update(inputs.numpy().tobytes() + targets.numpy().tobytes())
    assert digest.hexdigest()[:16] == "bde898cd3c8fc712"


def test_a_corpus_of_a_mix_that_is_too_short_is_named(mixed):
    with pytest.raises(BadData, match=r"data\.corpus\.parts\.code: .* fewer than one sequence"):
        load(mixed, BatchConfig(sequences=1, sequence_length=8192))


WEB, CODE = documents(200, seed=1), documents(100, seed=2)


def parts(web=0.75, code=0.25, web_texts=WEB, code_texts=CODE):
    return {
        "web": {"weight": web, "texts": web_texts},
        "code": {"weight": code, "texts": code_texts},
    }


def decoded(tokens) -> set[str]:
    """The documents of byte tokens; each ends with token 256."""
    ends = np.flatnonzero(tokens == 256)
    return {bytes(one[one < 256].astype(np.uint8)).decode() for one in np.split(tokens, ends)}


def trained_on(prepared):
    return set().union(
        *(
            decoded(np.fromfile(prepared.directory / shard.name, dtype=prepared.dtype))
            for shard in read_manifest(prepared.directory).train
        )
    )


def test_each_corpus_of_a_mix_is_prepared_as_it_is_alone(tmp_path):
    mix = prepare_mix(tmp_path, parts())
    assert list(mix.parts) == ["code", "web"]
    assert mix.weights == {"code": 1, "web": 3}
    assert mix.share("web") == 0.75
    (tmp_path / "alone").mkdir()
    alone = prepare_texts(tmp_path / "alone", WEB)
    assert mix.parts["web"].digest == alone.digest
    assert mix.tokens == sum(part.tokens for part in mix.parts.values())
    assert mix.documents == sum(part.documents for part in mix.parts.values())


def test_no_held_out_document_of_any_corpus_is_trained_on(tmp_path):
    """Some documents are in both corpora."""
    shared = documents(150, seed=3)
    mix = prepare_mix(
        tmp_path, parts(web_texts=[*WEB, *shared], code_texts=[*CODE, *shared]), share=0.2
    )
    held_out = decoded(mix.held_out.tokens) - {""}
    assert len(held_out) > 50
    for name, part in mix.parts.items():
        assert len(held_out & set(WEB if name == "web" else CODE)) > 10
        assert trained_on(part) & set(shared)
        assert not trained_on(part) & held_out


def test_an_evaluation_scores_equally_many_tokens_of_each_corpus(tmp_path):
    mix = prepare_mix(tmp_path, parts(), share=0.2, tokens=1000)
    assert mix.validation_tokens == 1000
    assert {part.validation_tokens for part in mix.parts.values()} == {500}
    scored = ValidationSet(mix, 50, 1000)
    assert (scored.tokens, scored.sequences) == (1000, 20)
    inputs = np.concatenate([x.numpy() for x, _ in scored.batches()]).ravel()
    assert np.array_equal(inputs[:501], mix.parts["code"].held_out.tokens)
    assert np.array_equal(inputs[501:], mix.parts["web"].held_out.tokens[:499])


def test_set_of_an_evaluation_does_not_depend_on_the_weights(tmp_path):
    one, other = (prepare_mix(tmp_path, parts(web=web), tokens=1000) for web in (0.75, 5))
    assert one.validation_digest == other.validation_digest
    assert one.digest != other.digest, "the training data are others"
    again = prepare_mix(tmp_path, dict(reversed(parts().items())), tokens=1000)
    assert again == one, "the order of the parts in the config does not matter"
    fewer = prepare_mix(tmp_path, parts(), tokens=900)
    assert fewer.validation_digest != one.validation_digest


def test_a_changed_weight_is_changed_data_for_a_resume(tmp_path):
    one, other = (prepare_mix(tmp_path, parts(web=web), tokens=1000) for web in (0.75, 5))
    with pytest.raises(BadData, match="the training data changed"):
        other.require_same(digest=one.digest, validation_digest=one.validation_digest)
