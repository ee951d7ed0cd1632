"""What a run trains on: a corpus, or a mix of several."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from lehr_trainer.configs.base import Config


class StdlibCorpus(Config):
    """The Python standard library's sources: real text that every machine has."""

    kind: Literal["stdlib"] = "stdlib"


class PathsCorpus(Config):
    """Local files, UTF-8."""

    kind: str
    paths: Annotated[list[str], Field(min_length=1)]
    """Files, folders or globs."""


class FilesCorpus(PathsCorpus):
    """Local files, UTF-8; a document is a line (jsonl), a row (parquet) or a file (text)."""

    kind: Literal["text", "jsonl", "parquet"]
    text_field: str = "text"
    """The column or key that holds the document (jsonl, parquet)."""
    document: Literal["file", "paragraph", "line"] = "file"
    """What a document of a text file is: the whole file, a paragraph between blank lines, or a
    line. Documents are held out whole, so a single file needs one of the latter two."""


class ChatCorpus(PathsCorpus):
    """Conversations in JSON lines; a message of one is such as ``{role: user, content: Hi}``."""

    kind: Literal["chat"]
    template: Literal["chatml", "llama3"]
    """How a conversation is written as text: the markers around each message and its role."""
    messages_field: str = "messages"
    """The key that holds the list. Roles are system, user and assistant."""


class HubCorpus(Config):
    """A dataset of the Hugging Face hub, by ``datasets``."""

    kind: Literal["hub"] = "hub"
    id: str
    """E.g. ``HuggingFaceFW/fineweb-edu``."""
    name: str | None = None
    """The dataset's configuration, e.g. sample-10BT."""
    split: str = "train"
    """Which part of the dataset."""
    text_field: str = "text"
    """The column that holds the document."""
    revision: str | None = None
    """Commit or tag to pin; a branch may move on."""


SingleCorpus = StdlibCorpus | FilesCorpus | ChatCorpus | HubCorpus
PartName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$")]
"""Without dots and slashes: it is part of dotted paths and of names of metrics."""


class MixPart(Config):
    """One corpus of a mix, and its share."""

    corpus: Annotated[SingleCorpus, Field(discriminator="kind")]
    """As ``data.corpus``, but not a mix again."""
    weight: Annotated[float, Field(gt=0)]
    """Share of the training tokens, relative to the sum of all weights."""


class MixCorpus(Config):
    """Several corpora; each has its share of every batch, and epochs of its own."""

    kind: Literal["mix"] = "mix"
    parts: Annotated[dict[PartName, MixPart], Field(min_length=2, max_length=1000)]
    """The corpora by name, such as web and code; metrics such as ``data/epoch/web`` have these
    names. Letters, digits, dashes and underscores."""

    def shares(self) -> dict[str, float]:
        """Return the share of each corpus in the training tokens."""
        total = sum(part.weight for part in self.parts.values())
        return {name: part.weight / total for name, part in self.parts.items()}

    @model_validator(mode="after")
    def _parts_differ(self) -> Self:
        known: dict[str, str] = {}
        for name, part in self.parts.items():
            other = known.setdefault(part.corpus.model_dump_json(), name)
            if other != name:
                raise ValueError(
                    f"parts {other} and {name} are the same corpus, so a batch could hold a "
                    "sequence twice; give it one part with the sum of both weights"
                )
        return self


Corpus = Annotated[SingleCorpus | MixCorpus, Field(discriminator="kind")]


def weighed(corpus: SingleCorpus | MixCorpus) -> dict[str, tuple[SingleCorpus, float]]:
    """Return each corpus with its share of the training tokens; one that is no mix has no name."""
    if not isinstance(corpus, MixCorpus):
        return {"": (corpus, 1.0)}
    return {name: (corpus.parts[name].corpus, share) for name, share in corpus.shares().items()}


def corpora(corpus: SingleCorpus | MixCorpus, path: str) -> dict[str, SingleCorpus]:
    """Return the corpora of ``corpus``, one or several, each by its dotted path.

    ``path`` is the path of ``corpus`` itself.
    """
    if not isinstance(corpus, MixCorpus):
        return {path: corpus}
    return {f"{path}.parts.{name}.corpus": part.corpus for name, part in corpus.parts.items()}
