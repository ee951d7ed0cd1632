"""Several prepared corpora as one: the data of a mix."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from lehr_trainer.data.token_dataset import HeldOutSample, PreparedData, scored_fields


@dataclass(frozen=True)
class PreparedMix(PreparedData):
    """A mix: the sums over its corpora, and the corpora themselves.

    ``directory`` is the folder that holds those of the corpora. Held-out documents are chosen by
    their hash and one share. So a document that is held out of one corpus is trained on in none.
    """

    parts: Mapping[str, PreparedData]
    """By name, in the order of the names."""
    weights: Mapping[str, int]
    """Whole numbers, by name, in the same order."""

    @classmethod
    def of(
        cls,
        parts: Mapping[str, PreparedData],
        weights: Mapping[str, int],
        validation_tokens: int,
    ) -> PreparedMix:
        """Join corpora that were prepared with one tokenizer.

        Args:
            parts: by name, each opened with its share of the validation tokens.
            weights: whole numbers, by name.
            validation_tokens: how many tokens an evaluation scores, if so many are held out.
        """
        names = sorted(parts)
        parts = {name: parts[name] for name in names}
        weights = {name: weights[name] for name in names}
        first = parts[names[0]]
        sample = HeldOutSample.join({name: part.held_out for name, part in parts.items()})
        return cls(
            directory=first.directory.parent,
            digest=mix_digest({name: part.digest for name, part in parts.items()}, weights),
            tokens=sum(part.tokens for part in parts.values()),
            documents=sum(part.documents for part in parts.values()),
            dtype=first.dtype,
            vocab_size=first.vocab_size,
            eos_id=first.eos_id,
            tokenizer=first.tokenizer,
            parts=parts,
            weights=weights,
            **scored_fields(first.tokenizer, sample, validation_tokens),
        )

    def share(self, name: str) -> float:
        """Return the share of a corpus in the training tokens."""
        return self.weights[name] / sum(self.weights.values())


def mix_digest(digests: Mapping[str, str], weights: Mapping[str, int]) -> str:
    """Return the digest of a mix, from those of its corpora, by name, in the order of the names."""
    identity = [[name, weights[name], digest] for name, digest in digests.items()]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()
