"""Datasets and tokenizers of the Hugging Face hub: the only place that needs a network."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from lehr_trainer.configs.train import HubCorpus
from lehr_trainer.data.checks import OFFLINE_TOKENIZERS
from lehr_trainer.data.corpora import CorpusReader
from lehr_trainer.data.files import column
from lehr_trainer.errors import BadData, DataUnreachable


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
                near = difflib.get_close_matches(corpus.text_field, names, n=1)
                raise BadData(
                    f"{corpus.id} has no field {corpus.text_field!r}; it has {', '.join(names)}; "
                    "set data.corpus.text_field" + (f" to {near[0]}" if near else "")
                )
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
