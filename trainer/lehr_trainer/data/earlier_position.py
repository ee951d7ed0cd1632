"""The position in the data of checkpoints that earlier versions saved, which hold none.

They counted ``tokens_per_step`` tokens a step from the start of training, in one order.
"""

from __future__ import annotations

from typing import Any

from lehr_trainer.configs.train import BatchConfig
from lehr_trainer.data.mix import Interleave, part_seed, whole_weights
from lehr_trainer.data.position import CorpusProgress, Cut, DataPosition, MixProgress, keys
from lehr_trainer.data.prepared_mix import PreparedMix, mix_digest
from lehr_trainer.data.token_dataset import PreparedData


def earlier_position(document: dict[str, Any], data: PreparedData) -> DataPosition:
    """Return the position of a checkpoint of an earlier version.

    Of a mix it held one digest. So where a fork has other corpora than its mix, these begin at
    their start.

    Args:
        document: its JSON part.
        data: what the run trains on from here.
    """
    digest, config = document["data"]["digest"], document["config"]
    batch, seed = BatchConfig.model_validate(config["batch"]), int(config["seed"])
    corpus = config["data"]["corpus"]
    block, tokens = batch.longest_sequence, int(document["step"]) * batch.tokens_per_step
    if corpus["kind"] != "mix":
        return DataPosition(corpora={digest: CorpusProgress(cuts=(Cut(seed, block, tokens),))})
    parts = dict(sorted(corpus["parts"].items()))
    weights = whole_weights({name: part["weight"] for name, part in parts.items()})
    if not isinstance(data, PreparedMix) or weights.keys() != data.parts.keys():
        return DataPosition()
    digests = {name: part.digest for name, part in data.parts.items()}
    if mix_digest(digests, weights) != digest:
        return DataPosition()
    blocks = Interleave(list(weights.values())).counts(tokens // block)
    return DataPosition(
        corpora={
            key: CorpusProgress(cuts=(Cut(part_seed(seed, name), block, count * block),))
            for key, name, count in zip(keys([*digests.values()]), weights, blocks, strict=True)
        },
        mix=MixProgress(digest=digest, block=block, tokens=tokens),
    )
