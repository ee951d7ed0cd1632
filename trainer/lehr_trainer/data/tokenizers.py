"""Tokenizers by name: byte, tekken, a tokenizers JSON, or a hub id."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lehr_trainer.data.checks import TOKENIZER_SIZES, check_tokenizer
from lehr_trainer.errors import BadData
from lehr_trainer.extras import install

TokenArray = NDArray[Any]
MASKED = np.uint32(2**31)
"""Set in each stored token of a masked corpus (uint32) that is read but not predicted."""

_END_OF_TEXT = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]")
"""Usual names of the end-of-document token, if there is no tokenizer_config.json."""

_PIECE_CHARACTERS = 400_000
"""tekken's pattern overflows tiktoken's stack (a panic) at a million blanks in a row."""


def token_ids(tokens: TokenArray) -> TokenArray:
    """Return the tokens of a masked corpus without their mask."""
    return tokens & ~MASKED


class Tokenizer(ABC):
    """Interface of a tokenizer: thread-safe; encoding releases the interpreter lock."""

    name: str
    vocab_size: int
    """Size of the vocabulary; every token is smaller."""
    eos_id: int
    """Token that ends a document."""

    @abstractmethod
    def encode(self, text: str) -> TokenArray:
        """Return the tokens of ``text``, without special tokens."""

    def encode_all(self, texts: Sequence[str]) -> list[TokenArray]:
        """Return the tokens of each text."""
        return [self.encode(text) for text in texts]

    def special_id(self, text: str) -> int | None:
        """Return the special token that ``text`` names, if there is one."""
        del text
        return None

    def encode_run(
        self, texts: Sequence[str], counts: Sequence[bool]
    ) -> tuple[TokenArray, NDArray[np.bool_]]:
        """Return the tokens of texts in a row, and which of them have a part of one that counts.

        Nothing in the texts becomes a special token.
        """
        tokens = self.encode_all(texts)
        return np.concatenate(tokens), np.repeat(counts, [one.size for one in tokens])

    @abstractmethod
    def decode(self, tokens: Iterable[int]) -> str:
        """Return the text of ``tokens`` without document ends; broken UTF-8 becomes U+FFFD."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Return what determines the tokens, as part of the cache key."""


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes, and 256 for the end of a document."""

    name = "byte"
    vocab_size = TOKENIZER_SIZES["byte"]
    eos_id = 256

    def encode(self, text: str) -> TokenArray:
        return np.frombuffer(text.encode(), dtype=np.uint8)

    def decode(self, tokens: Iterable[int]) -> str:
        return bytes(token for token in tokens if token < 256).decode(errors="replace")

    def identity(self) -> dict[str, Any]:
        return {"name": self.name}


class TekkenTokenizer(Tokenizer):
    """Mistral's tekken, 131,072 tokens, from the file that mistral-common ships.

    Its own class takes three quarters of a second to load and returns lists; the file is plain data
    for tiktoken, which that class uses too (a test compares both). Special tokens come first: 1,000
    of them, of which 2 is the end of a document.
    """

    name = "tekken"
    eos_id = 2
    FILE = "tekken_240911.json"

    def __init__(self) -> None:
        from importlib.util import find_spec

        # Located, not imported: the package imports audio and image handling.
        spec = find_spec("mistral_common")
        if spec is None or not spec.submodule_search_locations:
            raise BadData(f"data.tokenizer tekken needs mistral-common: {install('lehr[trainer]')}")
        self._path = Path(spec.submodule_search_locations[0]) / "data" / self.FILE
        try:
            raw = self._path.read_bytes()
        except OSError as error:
            raise BadData(
                f"data.tokenizer tekken: {self._path} cannot be read ({error.strerror}); "
                "reinstall mistral-common"
            ) from None
        self._sha256 = hashlib.sha256(raw).hexdigest()
        read = json.loads(raw)
        config = read["config"]
        self._specials = int(config["default_num_special_tokens"])
        self.vocab_size = int(config["default_vocab_size"])
        self.pattern = str(config["pattern"])
        """The regular expression that cuts a text into pieces before the merges."""
        self._vocab = read["vocab"][: self.vocab_size - self._specials]
        # tiktoken's own batch method is faster (48 against 70 ms a MB), but holds the interpreter
        # lock for a fifth of the time, so that this way is faster with more than eight threads.
        self._many_cores = len(os.sched_getaffinity(0)) > 8

    @cached_property
    def _encoding(self) -> Any:
        import tiktoken

        ranks = {token: number - self._specials for token, number in self.token_ids.items()}
        return tiktoken.Encoding(
            self.FILE, pat_str=self.pattern, mergeable_ranks=ranks, special_tokens={}
        )

    @property
    def token_ids(self) -> dict[bytes, int]:
        """Return the id of each token that has text; the special tokens have none."""
        return {
            base64.b64decode(entry["token_bytes"]): int(entry["rank"]) + self._specials
            for entry in self._vocab
        }

    def encode(self, text: str) -> TokenArray:
        if len(text) > _PIECE_CHARACTERS:
            return np.concatenate([self.encode(piece) for piece in _pieces(text)])
        if self._many_cores:
            ranks = self._encoding.encode_to_numpy(text, disallowed_special=())
        else:
            ranks = np.frombuffer(array("I", self._encoding.encode_ordinary(text)), dtype=np.uint32)
        tokens: TokenArray = ranks + np.uint32(self._specials)
        return tokens

    def decode(self, tokens: Iterable[int]) -> str:
        ranks = [int(token) - self._specials for token in tokens if token >= self._specials]
        text: str = self._encoding.decode(ranks, errors="replace")
        return text

    def identity(self) -> dict[str, Any]:
        return {"name": self.name, "sha256": self._sha256}


class JsonTokenizer(Tokenizer):
    """A ``tokenizer.json`` of the ``tokenizers`` library."""

    def __init__(self, name: str, path: Path) -> None:
        from tokenizers import Tokenizer as Fast

        self.name = name
        raw = path.read_bytes()
        self._sha256 = hashlib.sha256(raw).hexdigest()
        try:
            self._fast = Fast.from_str(raw.decode())
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise BadData(
                f"data.tokenizer {name!r}: {path} is no tokenizers JSON ({error})"
            ) from None
        self._fast.no_padding()
        self._fast.no_truncation()
        self.vocab_size = max(self._fast.get_vocab(with_added_tokens=True).values()) + 1
        self._config = path.with_name("tokenizer_config.json")
        self.eos_id = self._find_eos()

    def special_token(self, kind: str) -> str | None:
        """Return the text of ``eos_token``, ``pad_token``, ... from the config beside the file."""
        if not self._config.is_file():
            return None
        token = json.loads(self._config.read_text(encoding="utf-8")).get(kind)
        token = token.get("content") if isinstance(token, dict) else token
        return None if token is None else str(token)

    def copy(self) -> Any:
        """Return a copy of the library's tokenizer, without padding and truncation."""
        from tokenizers import Tokenizer as Fast

        return Fast.from_str(self._fast.to_str())

    def _find_eos(self) -> int:
        eos_token = self.special_token("eos_token")
        for name in [eos_token, *_END_OF_TEXT] if eos_token else _END_OF_TEXT:
            if (token := self._fast.token_to_id(name)) is not None:
                return int(token)
        raise BadData(
            f"data.tokenizer {self.name!r} has no token that ends a document: looked for "
            f"eos_token in {self._config.name} beside it and for {', '.join(_END_OF_TEXT)}"
        )

    def encode(self, text: str) -> TokenArray:
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[str]) -> list[TokenArray]:
        encoded = self._fast.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.asarray(one.ids, dtype=np.uint32) for one in encoded]

    def special_id(self, text: str) -> int | None:
        added = self._fast.get_added_tokens_decoder()
        return next((int(token) for token, one in added.items() if one.content == text), None)

    @cached_property
    def _ordinary(self) -> Any:
        """A copy that makes no special tokens; without what would trim the places of its tokens."""
        from tokenizers import Tokenizer as Fast

        described = json.loads(self._fast.to_str())
        ordinary = Fast.from_str(json.dumps({**described, "post_processor": None}))
        ordinary.encode_special_tokens = True
        return ordinary

    def encode_run(
        self, texts: Sequence[str], counts: Sequence[bool]
    ) -> tuple[TokenArray, NDArray[np.bool_]]:
        # As one text, as transformers does. Unlike ``encode``, this releases the interpreter lock.
        (encoded,) = self._ordinary.encode_batch(["".join(texts)], add_special_tokens=False)
        before = np.concatenate([[0], np.cumsum(np.repeat(counts, list(map(len, texts))))])
        starts, ends = np.asarray(encoded.offsets, dtype=np.int64).reshape(-1, 2).T
        return np.asarray(encoded.ids, dtype=np.uint32), before[ends] > before[starts]

    def decode(self, tokens: Iterable[int]) -> str:
        text: str = self._fast.decode(
            [int(token) for token in tokens if token != self.eos_id], skip_special_tokens=True
        )
        return text

    def identity(self) -> dict[str, Any]:
        # Without the name: the same file elsewhere gives the same tokens.
        return {"name": "json", "sha256": self._sha256, "eos": self.eos_id}


def _pieces(text: str) -> list[str]:
    """Split a very long text, at line ends where possible."""
    pieces = []
    start = 0
    while start < len(text):
        end = min(start + _PIECE_CHARACTERS, len(text))
        if end < len(text):
            line = text.rfind("\n", start + _PIECE_CHARACTERS // 2, end)
            end = end if line < 0 else line + 1
        pieces.append(text[start:end])
        start = end
    return pieces


def load_tokenizer(name: str) -> Tokenizer:
    """Load the tokenizer that ``data.tokenizer`` names.

    Raises:
        BadData: there is none of that name, or it cannot be had.
    """
    path = check_tokenizer(name)
    if name == "byte":
        return ByteTokenizer()
    if name == "tekken":
        return TekkenTokenizer()
    if path is None:
        from lehr_trainer.data.files import fetch_tokenizer

        path = fetch_tokenizer(name)
    return JsonTokenizer(name, path)
