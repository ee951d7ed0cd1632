"""The run's tokenizer as ``tokenizer.json``, which ``AutoTokenizer`` loads.

It gives the same tokens as the training did: no token is put before or after a text. Documents
were separated by the end-of-document token alone, so the model saw that token before each document,
and it is the first token (bos) too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lehr_trainer.data.tokenizers import (
    ByteTokenizer,
    JsonTokenizer,
    TekkenTokenizer,
    Tokenizer,
)

END_OF_BYTES = "<|endoftext|>"
"""Name of the byte tokenizer's token 256."""
_TEKKEN_NAMES = {0: "<unk>", 1: "<s>", 2: "</s>", 11: "<pad>"}
"""Names of tekken's special tokens; the others get a number, since no training uses them."""


@dataclass(frozen=True)
class SpecialIds:
    """Ids of the tokens before and after a document, and of the one that fills a batch."""

    bos: int | None
    eos: int | None
    pad: int | None


def write_tokenizer(tokenizer: Tokenizer, out_dir: Path, *, longest: int) -> SpecialIds:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``.

    Args:
        tokenizer: as the run loaded it.
        out_dir: a folder that exists.
        longest: tokens of the longest sequence that the model can read.
    """
    if isinstance(tokenizer, ByteTokenizer):
        fast, eos, pad = _of_bytes(), END_OF_BYTES, END_OF_BYTES
    elif isinstance(tokenizer, TekkenTokenizer):
        fast, eos, pad = _of_tekken(tokenizer), _TEKKEN_NAMES[tokenizer.eos_id], "<pad>"
    else:
        assert isinstance(tokenizer, JsonTokenizer)
        fast, eos, pad = _of_json(tokenizer)
    fast.save(str(out_dir / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": eos,
        "eos_token": eos,
        "pad_token": pad,
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
    }
    text = json.dumps(described, indent=2, ensure_ascii=False)
    (out_dir / "tokenizer_config.json").write_text(f"{text}\n", encoding="utf-8")
    return SpecialIds(tokenizer.eos_id, tokenizer.eos_id, int(fast.token_to_id(pad)))


def _of_bytes() -> Any:
    from tokenizers import Tokenizer as Fast
    from tokenizers import models, pre_tokenizers

    vocab = {character: byte for byte, character in enumerate(_characters())}
    fast = Fast(models.BPE(vocab=vocab, merges=[]))
    return _on_bytes(fast, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), [
        END_OF_BYTES
    ])  # fmt: skip


def _of_tekken(tokenizer: TekkenTokenizer) -> Any:
    """Convert tiktoken's ranks to merges: each pair of tokens that makes a token, by its rank.

    Transformers' own converter does the same, but needs ``transformers``.
    """
    from tokenizers import Regex, models, pre_tokenizers
    from tokenizers import Tokenizer as Fast

    characters = _characters()
    ids = tokenizer.token_ids
    names = {token: "".join(characters[byte] for byte in token) for token in ids}
    merges: list[tuple[str, str]] = []
    for token in ids:
        splits = ((token[:at], token[at:]) for at in range(1, len(token)))
        merges += [
            (names[left], names[right]) for left, right in splits if left in ids and right in ids
        ]
    special = {
        _TEKKEN_NAMES.get(number, f"<SPECIAL_{number}>"): number
        for number in range(tokenizer.vocab_size - len(ids))
    }
    vocab = {**special, **{names[token]: number for token, number in ids.items()}}
    # A piece that is a token itself is not merged, as in tiktoken.
    fast = Fast(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    pieces = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(tokenizer.pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return _on_bytes(fast, pieces, [_TEKKEN_NAMES[tokenizer.eos_id], "<pad>"])


def _on_bytes(fast: Any, pieces: Any, special: list[str]) -> Any:
    from tokenizers import AddedToken, decoders

    fast.pre_tokenizer = pieces
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return fast


def _of_json(tokenizer: JsonTokenizer) -> tuple[Any, str, str]:
    """Return the same tokenizer without what puts tokens around a text, and its eos and pad."""
    fast = tokenizer.copy()
    sample = "a b"
    if fast.encode(sample).ids != fast.encode(sample, add_special_tokens=False).ids:
        # For example Llama's, which puts a first token before each text: training had none.
        from tokenizers import processors

        fast.post_processor = processors.Sequence([])
    eos = str(fast.id_to_token(tokenizer.eos_id))
    pad = tokenizer.special_token("pad_token")
    return fast, eos, pad if pad and fast.token_to_id(pad) is not None else eos


def _characters() -> list[str]:
    """Return GPT-2's character for each byte: printable ones are themselves, the others follow 255.

    ``tokenizers`` has the same table, but only as a set without an order.
    """
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
