"""Chains of forks and kills: no token twice within an epoch, and none lost without a word.

The witness knows only the batches: the token at place i of a corpus is i.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lehr_testing.corpora import documents, prepare_mix
from lehr_testing.properties import examples
from lehr_trainer.checkpointing.state import data_position
from lehr_trainer.configs.train import BatchConfig, TrainConfig
from lehr_trainer.data import prepare
from lehr_trainer.data.loader import Loader
from lehr_trainer.data.position import DataPosition, keys
from lehr_trainer.data.token_dataset import PreparedData, read_manifest
from lehr_trainer.data.tokens import position_after
from lehr_trainer.errors import BadCheckpoint

FIRST_OF_CODE = 10_000
"""Tokens of ``web`` are smaller."""
WEIGHTS = {"mix": (3, 1), "other mix": (1, 1)}
RANKS = st.sampled_from([1, 2, 4])


@dataclass(frozen=True)
class Setup:
    """What a fork may change."""

    corpus: str = "web"
    sequences: int = 8
    length: int = 8
    longest: int = 8
    seed: int = 1

    @property
    def batch(self) -> BatchConfig:
        stages = [{"after": 0.5, "sequence_length": self.longest}]
        return BatchConfig.model_validate(
            {
                "sequences": self.sequences,
                "sequence_length": self.length,
                "stages": stages if self.longest > self.length else [],
            }
        )

    @property
    def block(self) -> int:
        return self.batch.longest_sequence

    def cut(self, name: str) -> tuple[object, ...] | None:
        """How ``name`` is cut; None if it is not trained on."""
        if self.corpus in WEIGHTS:
            return ("part", self.seed, self.block)
        return ("alone", self.seed, self.block) if self.corpus == name else None


@dataclass
class Witness:
    """Which inputs of a corpus were read in this epoch."""

    inputs: NDArray[np.bool_]
    """False for the last token of a shard, which is a target only."""
    seen: NDArray[np.bool_]
    epoch: int = 0
    cut: tuple[object, ...] | None = None

    def unread(self) -> NDArray[np.int64]:
        """Lengths of the stretches that were not read."""
        edges = np.flatnonzero(np.diff(np.pad(self.inputs & ~self.seen, 1).astype(np.int8)))
        return edges[1::2] - edges[::2]

    def left_out(self, cut: tuple[object, ...]) -> int:
        """Tokens that a fork to ``cut`` leaves out of this epoch, or of the next if it is over."""
        if self.cut is None or self.cut == cut:
            return 0
        if not (self.unread() >= self.cut[2]).any():
            self.seen[:], self.epoch = False, self.epoch + 1
        return int((self.unread() % cut[2]).sum()) if self.seen.any() else 0

    def read(self, blocks: NDArray[np.int64], cut: tuple[object, ...]) -> None:
        """Take blocks as read; one that was read before is the next epoch's."""
        self.cut = cut
        pending = list(blocks)
        while pending:
            again = []
            for block in pending:
                assert np.array_equal(block, np.arange(block[0], block[0] + block.size))
                assert self.inputs[block].all()
                if self.seen[block].any():
                    again.append(block)
                self.seen[block] |= not self.seen[block].any()
            if again:
                assert (self.unread() < blocks.shape[1]).all(), "an epoch began too early"
                self.seen[:], self.epoch = False, self.epoch + 1
            pending = again

    def passes(self) -> float:
        unread, block = self.unread(), self.cut[2]
        read = int(self.seen.sum())
        return self.epoch + read / (read + int((unread // block).sum()) * block)


@dataclass
class Saved:
    """A checkpoint."""

    step: int
    position: str
    setup: Setup
    witnesses: dict[str, Witness]
    after: dict[Setup, tuple[NDArray[np.int64], Saved]] = field(default_factory=dict)
    """The next step, by what it was trained with."""


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, PreparedData]:
    """Two corpora of several shards, alone and as two mixes."""
    folder = tmp_path_factory.mktemp("corpora")
    texts = {"web": documents(40, words=8), "code": documents(16, seed=1, words=8)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "SHARD_TOKENS", 300)
        patch.setattr(prepare, "_BATCH_BYTES", 100)
        mixes = {
            mix: prepare_mix(
                folder,
                {
                    name: {"weight": weight, "texts": texts[name]}
                    for name, weight in zip(("web", "code"), weights, strict=True)
                },
            )
            for mix, weights in WEIGHTS.items()
        }
    parts = {}
    for name, part in mixes["mix"].parts.items():
        shards = read_manifest(part.directory).train
        assert len(shards) > 1
        place = FIRST_OF_CODE if name == "code" else 0
        for shard in shards:
            tokens = np.arange(place, place + shard.tokens, dtype=part.dtype)
            tokens.tofile(part.directory / shard.name)
            place += shard.tokens
        parts[name] = replace(part, vocab_size=2**16)
    return {**parts, **{name: replace(mix, parts=parts) for name, mix in mixes.items()}}


def witness(prepared: PreparedData) -> Witness:
    sizes = [shard.tokens for shard in read_manifest(prepared.directory).train]
    inputs = np.ones(sum(sizes), dtype=bool)
    inputs[np.cumsum(sizes) - 1] = False
    return Witness(inputs, np.zeros_like(inputs))


def train(
    corpora: dict[str, PreparedData], point: Saved, setup: Setup, steps: int, ranks: int
) -> list[Saved]:
    """Train from a checkpoint; return the checkpoints of the steps."""
    start = DataPosition.model_validate_json(point.position)
    loaders = [
        Loader(
            corpora[setup.corpus],
            setup.batch,
            seed=setup.seed,
            rank=rank,
            world_size=ranks,
            workers=0,
            steps=16,
            first_step=point.step,
            position=start,
        )
        for rank in range(ranks)
    ]
    cuts = {name: cut for name in point.witnesses if (cut := setup.cut(name)) is not None}
    expected = [point.witnesses[name].left_out(cut) for name, cut in cuts.items()]
    said = [
        int(re.search(r"([\d,]+) of the", note)[1].replace(",", ""))
        for note in loaders[0].stream.notes
    ]
    assert sorted(said) == sorted(count for count in expected if count)
    made = []
    for step in range(point.step, point.step + steps):
        batches = [
            loader.batch(step, micro_step)
            for loader in loaders
            for micro_step in range(loader.micro_steps(step))
        ]
        for inputs, targets in batches:
            assert (targets - inputs == 1).all()
        tokens = np.concatenate([inputs.numpy().ravel() for inputs, _ in batches])
        assert tokens.size == setup.batch.tokens_per_step
        if setup in point.after:
            rows, point = point.after[setup]
            assert np.array_equal(tokens, rows), "a resumed run trains on other data"
        else:
            witnesses = copy.deepcopy(point.witnesses)
            blocks = tokens.reshape(-1, setup.block)
            is_code = blocks[:, 0] >= FIRST_OF_CODE
            for name, read in (("web", blocks[~is_code]), ("code", blocks[is_code])):
                if name in cuts:
                    witnesses[name].read(read - FIRST_OF_CODE * (name == "code"), cuts[name])
                assert name in cuts or not read.size
            position = loaders[0].position(step + 1).model_dump_json()
            child = Saved(step + 1, position, setup, witnesses)
            point.after[setup] = tokens, child
            point = child
        epochs = loaders[0].epochs(step + 1)
        passes = {name: point.witnesses[name].passes() for name in cuts}
        assert epochs["data/epoch"] == pytest.approx(max(passes.values()))
        for name in cuts if len(cuts) > 1 else ():
            assert epochs[f"data/epoch/{name}"] == pytest.approx(passes[name])
        made.append(point)
    # A rewind skips the data of the same steps.
    skipped = position_after(corpora[setup.corpus], setup.batch, setup.seed, start, steps)
    assert skipped == loaders[0].position(made[-1].step)
    trained = [
        sum(cut.tokens for corpus in position.corpora.values() for cut in corpus.cuts)
        for position in (loaders[0].position(made[0].step), loaders[0].position(made[-1].step))
    ]
    assert trained[1] - trained[0] == (steps - 1) * setup.batch.tokens_per_step
    return made


@dataclass(frozen=True)
class OfStage(Setup):
    """What a stage of a config trains with."""

    @property
    def batch(self) -> BatchConfig:
        return BatchConfig(
            sequences=self.sequences, sequence_length=self.length, block=self.longest
        )


def of_stages(stages: list[tuple[str, int, int, int]]) -> list[tuple[int, OfStage]]:
    """The last step of each stage, and its setup; a stage is corpus, tokens a step, length, steps."""
    alone = {name: {"kind": "text", "paths": [name]} for name in ("web", "code")}
    mixes = {
        mix: {
            "kind": "mix",
            "parts": {
                name: {"corpus": alone[name], "weight": weight}
                for name, weight in zip(alone, weights, strict=True)
            },
        }
        for mix, weights in WEIGHTS.items()
    }
    config = TrainConfig.model_validate(
        {
            "model": "tiny",
            "data": {"corpus": alone["web"], "tokenizer": "byte"},
            "batch": {"sequences": 8, "sequence_length": 8},
            "seed": 1,
            "stages": [
                {
                    "tokens": tokens * steps,
                    "data": {"corpus": (alone | mixes)[corpus]},
                    "batch": {"sequences": tokens // length, "sequence_length": length},
                }
                for corpus, tokens, length, steps in stages
            ],
        }
    )
    assert config.total_tokens == sum(tokens * steps for _, tokens, _, steps in stages)
    return [
        (
            span.last,
            OfStage(corpus, one.batch.sequences, length, one.batch.longest_sequence, one.seed),
        )
        for (corpus, _, length, _), (span, one) in zip(stages, config.course, strict=True)
    ]


stage = st.tuples(
    st.sampled_from(["web", "code", *WEIGHTS]),
    st.sampled_from([128, 256]),
    st.sampled_from([8, 16, 32]),
    st.integers(1, 3),
)


@settings(max_examples=examples(12), deadline=None)
@given(
    stages=st.lists(stage, min_size=2, max_size=4),
    chain=st.lists(
        st.tuples(st.integers(0, 3), st.lists(stage, max_size=2), st.integers(1, 6), RANKS),
        min_size=1,
        max_size=6,
    ),
)
def test_stages_lose_and_repeat_no_token_whatever_forks_and_kills_come(corpora, stages, chain):
    """A fork keeps the stages that have begun, and takes others for the rest."""
    first = {name: witness(corpora[name]) for name in ("web", "code")}
    history = [Saved(0, DataPosition().model_dump_json(), Setup(), first)]
    for lost, rest, steps, ranks in chain:
        del history[max(1, len(history) - lost) :]
        step = history[-1].step
        if rest:
            begun = [number for number, (last, _) in enumerate(of_stages(stages)) if last < step]
            stages = [*stages[: len(begun) + 1], *rest]
        end = step + steps
        for last, setup in of_stages(stages):
            count = min(last, end) - step
            if count > 0:
                history += train(corpora, history[-1], setup, count, ranks)
                step += count


changes = st.one_of(
    st.just({}),
    st.just({}),
    st.sampled_from([8, 16, 32]).map(lambda count: {"sequences": count}),
    st.sampled_from([(8, 8), (16, 16), (32, 32), (8, 16), (16, 32), (24, 24)]).map(
        lambda lengths: {"length": lengths[0], "longest": lengths[1]}
    ),
    st.sampled_from(["web", "code", *WEIGHTS]).map(lambda corpus: {"corpus": corpus}),
    st.integers(1, 2).map(lambda seed: {"seed": seed}),
)
events = st.tuples(changes, st.integers(0, 3), st.integers(1, 6), RANKS)


@settings(max_examples=examples(12), deadline=None)
@given(chain=st.lists(events, min_size=2, max_size=8))
def test_no_token_comes_twice_and_none_is_lost_whatever_forks_and_kills_change(corpora, chain):
    setup = Setup()
    history = [
        Saved(
            0,
            DataPosition().model_dump_json(),
            setup,
            {n: witness(corpora[n]) for n in ("web", "code")},
        )
    ]
    for change, lost, steps, ranks in chain:
        # A kill loses steps; a fork may begin at a checkpoint before the last.
        del history[max(1, len(history) - lost) :]
        setup = replace(setup, **change)
        history += train(corpora, history[-1], setup, steps, ranks)


@pytest.mark.parametrize("saved", [{"corpora": {"d": 3}}, ["d"], None])
def test_position_that_is_damaged_is_refused(saved):
    with pytest.raises(BadCheckpoint, match="no valid position in the data"):
        data_position({"data": {"position": saved}})


def test_a_corpus_that_is_part_of_a_mix_twice_has_two_positions():
    assert keys(["a", "b", "a", "a"]) == ["a", "b", "a/1", "a/2"]
