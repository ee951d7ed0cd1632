"""Chats: read from JSON lines, written by a template, tokenized with a mask of their prompts.

Only the template makes special tokens. Text inside a message that looks like one stays text, so a
message cannot end its turn or begin another. That is why templates are names and not Jinja files:
in what Jinja renders, the template's own text cannot be told from that of a message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from lehr_trainer.configs.corpus import ChatCorpus
from lehr_trainer.configs.train import DataConfig
from lehr_trainer.data.checks import counted
from lehr_trainer.data.files import PathsReader, text_rows
from lehr_trainer.data.lines import MESSAGES_EXAMPLE, Message, json_values, messages_of
from lehr_trainer.data.token_dataset import PreparedData, read_manifest
from lehr_trainer.data.tokenizers import MASKED, TokenArray, Tokenizer, token_ids
from lehr_trainer.errors import BadData

_MARKER = re.compile(r"(<\|\w+\|>)")
_PROBE: list[Message] = [("user", " Why?"), ("assistant", "So.\n"), ("user", "a  b")]


@dataclass(frozen=True)
class Template:
    """How a conversation is written. ``<|...|>`` are markers: special tokens, if there are such."""

    begin: str
    before: str
    """Before the content of a message, with ``{role}``."""
    end: str
    """What ends a turn: the model learns it after its own messages."""
    after: str
    strips: bool
    """Whether white space around a content is left out."""

    @property
    def markers(self) -> list[str]:
        return list(dict.fromkeys(_MARKER.findall(self.begin + self.before + self.end)))

    @property
    def jinja(self) -> str:
        """The template as transformers applies it, with the prompt for an answer."""
        head, tail = map(json.dumps, self.before.split("{role}"))
        content = "m['content'] | trim" if self.strips else "m['content']"
        begin, end = json.dumps(self.begin), json.dumps(self.end + self.after)
        return (
            f"{{{{ {begin} }}}}{{% for m in messages %}}"
            f"{{{{ {head} + m['role'] + {tail} + ({content}) + {end} }}}}{{% endfor %}}"
            f"{{% if add_generation_prompt %}}{{{{ {head} + 'assistant' + {tail} }}}}{{% endif %}}"
        )

    def write(self, messages: Sequence[Message]) -> Iterator[tuple[str, bool, bool]]:
        """Yield texts of a conversation: text, whether it is markup, whether the assistant's."""
        yield self.begin, True, False
        for role, content in messages:
            answers = role == "assistant"
            yield self.before.replace("{role}", role), True, False
            yield content.strip() if self.strips else content, False, answers
            yield self.end, True, answers
            yield self.after, True, False


TEMPLATES = {
    "chatml": Template("", "<|im_start|>{role}\n", "<|im_end|>", "\n", strips=False),
    "llama3": Template(
        "<|begin_of_text|>",
        "<|start_header_id|>{role}<|end_header_id|>\n\n",
        "<|eot_id|>",
        "",
        strips=True,
    ),
}


class ChatReader(PathsReader):
    """A document is a conversation, as JSON: ``[["user", "Hi"], ["assistant", "Hello"]]``."""

    def __init__(self, corpus: ChatCorpus, files: list[Path]) -> None:
        super().__init__(corpus, files)
        self._field = corpus.messages_field

    def documents(self, source: int, skip: int) -> Iterator[str]:
        [path], field = self._sources[source], self._field
        lines = text_rows([path], skip, sample_by="line")
        example = MESSAGES_EXAMPLE
        for line, value in json_values(lines, path, skip, field, "messages_field", example):
            messages = messages_of(value, field, line) if line else None
            yield json.dumps(messages, ensure_ascii=False) if messages else ""


class ChatEncoder:
    """Tokens of conversations, by a template. Thread-safe."""

    def __init__(self, data: DataConfig, corpus: ChatCorpus, tokenizer: Tokenizer) -> None:
        """Raise BadData if the template cannot be written exactly with this tokenizer."""
        self._template = TEMPLATES[corpus.template]
        self._tokenizer = tokenizer
        self._masks = data.masks_prompts
        known = ((marker, tokenizer.special_id(marker)) for marker in self._template.markers)
        self._special = {marker: token for marker, token in known if token is not None}
        lacking = ", ".join(m for m in self._template.markers if m not in self._special)
        self.note = lacking and (
            f"data.tokenizer {tokenizer.name} has no token {lacking} of the template "
            f"{corpus.template}: encoded as text, which a message can hold as well"
        )
        """What a user should know of it; may be empty."""
        self._refuse(corpus.template)

    def encode(self, conversation: str) -> tuple[TokenArray, int]:
        """Return the tokens of a conversation, and the UTF-8 bytes of the content that counts."""
        messages = json.loads(conversation)
        encoded = []
        for special, group in groupby(self._pieces(messages), key=lambda p: isinstance(p[0], int)):
            pieces, counts = zip(*group, strict=True)
            encoded.append(
                (np.array(pieces), np.array(counts))
                if special
                else self._tokenizer.encode_run(pieces, counts)
            )
        tokens = np.concatenate([ids for ids, _ in encoded]).astype(np.uint32)
        if self._masks:
            tokens[~np.concatenate([counts for _, counts in encoded])] |= MASKED
        written = self._template.write(messages)
        counting = (t for t, markup, own in written if not markup and (own or not self._masks))
        return tokens, sum(len(content.encode()) for content in counting)

    def _pieces(self, messages: Sequence[Message]) -> Iterator[tuple[str | int, bool]]:
        """Yield texts and special tokens, each with whether it is the assistant's."""
        for text, is_markup, answers in self._template.write(messages):
            for piece in _MARKER.split(text) if is_markup else [text]:
                if piece:
                    yield self._special.get(piece, piece) if is_markup else piece, answers

    def _refuse(self, template: str) -> None:
        name, tokenizer = f"data.tokenizer {self._tokenizer.name!r}", self._tokenizer
        for marker, token in self._special.items():
            if token == tokenizer.eos_id:
                raise BadData(
                    f"{name} ends documents by {marker}, a marker of the template {template}; set "
                    "eos_token in its tokenizer_config.json to another, such as its base model's"
                )
            if token in tokenizer.encode_run([marker], [False])[0]:
                raise BadData(
                    f"{name} makes the token {marker} also of text that a message holds; mark it "
                    "as special in its tokenizer.json"
                )
        whole = "".join(text for text, *_ in self._template.write(_PROBE))
        tokens, _ = self.encode(json.dumps(_PROBE))
        if self._special and not np.array_equal(token_ids(tokens), tokenizer.encode(whole)):
            raise BadData(
                f"{name} encodes text after a special token in another way than text that stands "
                f"alone, so the template {template} cannot be written with it; use one that is "
                "byte-level, without a blank before the first word"
            )


def describe_chats(prepared: PreparedData, sequence_length: int) -> str:
    """Return a line for each corpus of chats: which share counts, how many exceed a sequence."""
    lines = ""
    for name, part in prepared.corpora.items():
        manifest = read_manifest(part.directory)
        if manifest.corpus["kind"] != "chat":
            continue
        learned = longer = 0
        for shard in manifest.train:
            stored = np.memmap(part.directory / shard.name, dtype=manifest.dtype, mode="r")
            tokens = token_ids(stored) if manifest.masked else stored
            ends = np.flatnonzero(tokens == manifest.eos_id)
            longer += int(np.count_nonzero(np.diff(ends, prepend=-1) > sequence_length))
            learned += int(np.count_nonzero(stored == tokens))
        lines += (
            f"{name + ': ' if name else ''}{learned / part.tokens:.1%} of the tokens of "
            f"{counted(part.documents, 'conversation')} count in the loss; {longer:,} of them are "
            f"longer than a sequence of {sequence_length:,} tokens, and are cut\n"
        )
        lines += f"{manifest.corpus['note']}\n" if manifest.corpus["note"] else ""
    return lines
