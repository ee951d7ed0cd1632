"""Text, JSON lines and Parquet on this machine, streamed by ``datasets``.

JSON lines are read as lines and parsed here: ``datasets`` would infer one schema for all
fields of all lines and stop at the first line whose metadata differs, where only the text
counts. Compressed files (.gz, .zst, ...) are extracted as they are read.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from lehr_trainer.configs.corpus import FilesCorpus, HubCorpus, PathsCorpus
from lehr_trainer.data.checks import OFFLINE_TOKENIZERS
from lehr_trainer.data.corpora import CorpusReader
from lehr_trainer.data.lines import json_values, no_field
from lehr_trainer.errors import BadData, DataUnreachable

_FILES_A_SOURCE = 512
"""Most bytes of small text files that form one source: opening a stream costs more than a small
file."""

_MOST_SOURCES = 16
"""Beyond so many files or folders, held-out documents have no source: each is a metric."""

_LARGEST_DOCUMENT = 256 * 2**20


class PathsReader(CorpusReader):
    """Files of this machine; ``step`` of them form one source."""

    def __init__(self, corpus: PathsCorpus, files: list[Path], step: int = 1) -> None:
        self._described = corpus.model_dump(mode="json", exclude={"paths"})
        self._files = files
        self._sources = [files[at : at + step] for at in range(0, len(files), step)]
        self._step = step
        self._names = source_names(files)

    def identity(self) -> dict[str, Any]:
        found = [(path, path.stat()) for path in self._files]
        return {
            **self._described,
            "files": [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in found],
        }

    def description(self) -> dict[str, Any]:
        return {"kind": self._described["kind"], "files": [str(path) for path in self._files]}

    def sources(self) -> int:
        return len(self._sources)

    def size(self, source: int) -> int | None:
        return sum(path.stat().st_size for path in self._sources[source])

    def source_name(self, source: int, document: int) -> str:
        # If several files are a source, each is one document.
        number = source * self._step + (document if self._step > 1 else 0)
        return self._names[number] if number < len(self._names) else ""


class FilesReader(PathsReader):
    def __init__(self, corpus: FilesCorpus, files: list[Path]) -> None:
        whole_files = corpus.kind == "text" and corpus.document == "file"
        super().__init__(corpus, files, _FILES_A_SOURCE if whole_files else 1)
        self._corpus = corpus
        self._read: Callable[[list[Path], int], Iterator[str]] = {
            "text": self._text,
            "jsonl": self._json_lines,
            "parquet": self._parquet,
        }[corpus.kind]

    def documents(self, source: int, skip: int) -> Iterator[str]:
        yield from self._read(self._sources[source], skip)

    def _text(self, files: list[Path], skip: int) -> Iterator[str]:
        if self._corpus.document == "file":
            for path in files:
                if path.stat().st_size > _LARGEST_DOCUMENT:
                    raise BadData(
                        f"{path} would be one document of {path.stat().st_size / 2**20:,.0f} MiB; "
                        "set data.corpus.document to paragraph or line"
                    )
            yield from text_rows(files, skip, sample_by="document")
        else:
            yield from text_rows(files, skip, sample_by=self._corpus.document, keep_linebreaks=True)

    def _json_lines(self, files: list[Path], skip: int) -> Iterator[str]:
        (path,) = files
        field = self._corpus.text_field
        lines = text_rows(files, skip, sample_by="line")
        for line, text in json_values(lines, path, skip, field, "text_field", '"..."'):
            if text is not None and not isinstance(text, str):
                raise BadData(f"{line}: field {field!r} holds {type(text).__name__}, not text")
            yield text or ""

    def _parquet(self, files: list[Path], skip: int) -> Iterator[str]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        (path,) = files
        field = self._corpus.text_field
        try:
            schema = pq.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            raise BadData(f"{path} is not a Parquet file: {_first_line(error)}") from None
        if field not in schema.names:
            raise BadData(f"{path} {no_field(field, schema.names)}")
        kind = schema.field(field).type
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise BadData(f"{path}: column {field!r} holds {kind}, not text")
        yield from text_rows(files, skip, builder="parquet", field=field, columns=[field])


def source_names(files: list[Path]) -> list[str]:
    """Name the source of each file: the file if there are few, else its folder, else nothing.

    Files and folders count from the folder that holds all files.
    """
    root = Path(os.path.commonpath([path.parent for path in files]))
    inside = [path.relative_to(root) for path in files]
    folders = [Path(path.parts[0]) if len(path.parts) > 1 else Path(root.name) for path in inside]
    for names in (inside, folders):
        if len(set(names)) <= _MOST_SOURCES:
            # A metric's name has at most 200 characters.
            return [re.sub(r"[^\w./]", "_", name.as_posix())[-100:] for name in names]
    return [""] * len(files)


def text_rows(
    files: list[Path], skip: int, *, builder: str = "text", field: str = "text", **options: Any
) -> Iterator[str]:
    """Yield the column ``field`` of the files, row by row, after the first ``skip`` rows."""
    import datasets

    datasets.disable_progress_bars()
    try:
        stream = datasets.load_dataset(
            builder,
            # As a URL, since a plain path would be taken for a glob pattern.
            data_files=[
                "".join(f"[{c}]" if c in "*?[" else c for c in str(path)) for path in files
            ],
            split="train",
            streaming=True,
            **options,
        )
        yield from islice(column(stream, field), skip, None)
    except UnicodeDecodeError as error:
        raise BadData(
            f"{_named(files)} is not UTF-8: {error.reason} at byte {error.start}; convert it first"
        ) from None
    except (OSError, ValueError) as error:
        raise BadData(f"{_named(files)} cannot be read: {_first_line(error)}") from None


def column(stream: Any, field: str) -> Iterator[str]:
    """Yield one text column of a streamed dataset, a batch of rows at a time."""
    for table in stream.with_format("arrow").iter(batch_size=256):
        for text in table[field].to_pylist():
            yield text or ""


def _named(files: list[Path]) -> str:
    return str(files[0]) if len(files) == 1 else f"one of {files[0]} ... {files[-1]}"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


class HubReader(CorpusReader):
    """A streamed dataset: only the shard being read is fetched. A source is a shard."""

    def __init__(self, corpus: HubCorpus) -> None:
        self._corpus = corpus

    def identity(self) -> dict[str, Any]:
        # Known without the network, so that prepared data can be used without it. A branch may
        # move: pin `revision` to a commit to distinguish its states.
        return self._corpus.model_dump(mode="json")

    def sources(self) -> int:
        return int(self._stream.n_shards)

    def documents(self, source: int, skip: int) -> Iterator[str]:
        shard = self._stream.shard(num_shards=self.sources(), index=source)
        try:
            yield from islice(column(shard, self._corpus.text_field), skip, None)
        except Exception as error:  # noqa: BLE001 - many libraries raise here
            raise self._explained(error) from None

    @cached_property
    def _stream(self) -> Any:
        import datasets

        datasets.disable_progress_bars()
        corpus = self._corpus
        try:
            stream = datasets.load_dataset(
                corpus.id,
                name=corpus.name,
                split=corpus.split,
                revision=corpus.revision,
                streaming=True,
            )
        except Exception as error:  # noqa: BLE001 - many libraries raise here
            raise self._explained(error) from None
        names = stream.column_names
        if names is not None:
            if corpus.text_field not in names:
                raise BadData(f"{corpus.id} {no_field(corpus.text_field, names)}")
            stream = stream.select_columns([corpus.text_field])
        return stream

    def _explained(self, error: Exception) -> Exception:
        """Turn any error into one that states a remedy; the trainer's own errors pass through."""
        if isinstance(error, BadData):
            return error
        return explain_hub_error(error, f"dataset {self._corpus.id}", "data.corpus.id")


FILES_INSTEAD = (
    "use files that are here (data.corpus.kind text, jsonl or parquet). What was prepared so far "
    "is kept"
)


def explain_hub_error(
    error: Exception, what: str, field: str, *, instead: str = FILES_INSTEAD
) -> BadData:
    """Tell a hub that is unreachable (retry; it resumes) from a wrong config.

    ``instead`` is what to do without the hub.
    """
    reason = (str(error).splitlines() or [type(error).__name__])[0]
    names = {kind.__name__ for kind in type(error).__mro__}
    wrong = {"DatasetNotFoundError", "RepositoryNotFoundError", "GatedRepoError", "ValueError"}
    if names & wrong and not names & {"ConnectionError", "LocalEntryNotFoundError"}:
        return BadData(
            f"{what} cannot be used: {reason}; check {field}, name, split and revision, and "
            "HF_TOKEN if it is private"
        )
    return DataUnreachable(
        f"{what} cannot be fetched from the Hugging Face hub: {reason}; check this machine's "
        f"network, HF_ENDPOINT and HF_HUB_OFFLINE, or {instead}"
    )


def unreachable_tokenizer(name: str, error: Exception) -> BadData:
    """Explain why a tokenizer cannot be fetched, and what to use without a network."""
    instead = f"set data.tokenizer to {OFFLINE_TOKENIZERS}"
    return explain_hub_error(error, f"tokenizer {name}", "data.tokenizer", instead=instead)


def fetch_tokenizer(name: str) -> Path:
    """Fetch ``tokenizer.json`` of a hub repository, and its config, into the hub's cache.

    Raises:
        DataUnreachable: it is not in the cache and the hub cannot be reached.
        BadData: there is no such tokenizer.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        path = Path(hf_hub_download(name, "tokenizer.json"))
    except Exception as error:  # noqa: BLE001 - many libraries raise here
        raise unreachable_tokenizer(name, error) from None
    # Not every tokenizer has a config; then the usual names of the last token are tried.
    with contextlib.suppress(EntryNotFoundError):
        hf_hub_download(name, "tokenizer_config.json")
    return path
