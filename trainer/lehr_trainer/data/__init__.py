"""Corpora become token shards once; shards become batches by a pure function of the step.

``prepare_dataset`` -> ``PreparedData``; ``Loader`` and ``ValidationSet`` read it. Names load on
first use, so that checking a config imports neither numpy nor torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lehr_trainer.callbacks import Notify
    from lehr_trainer.data.checks import check_corpus, check_data
    from lehr_trainer.data.loader import Loader
    from lehr_trainer.data.prepare import prepare_dataset
    from lehr_trainer.data.prepared_mix import PreparedMix
    from lehr_trainer.data.token_dataset import PreparedData
    from lehr_trainer.data.tokenizers import Tokenizer, load_tokenizer
    from lehr_trainer.data.tokens import TrainTokens
    from lehr_trainer.data.validation import ValidationSet

__all__ = [
    "Loader",
    "Notify",
    "PreparedData",
    "PreparedMix",
    "Tokenizer",
    "TrainTokens",
    "ValidationSet",
    "check_corpus",
    "check_data",
    "load_tokenizer",
    "prepare_dataset",
]

_HOMES = {
    "Loader": "loader",
    "Notify": "progress",
    "PreparedData": "token_dataset",
    "PreparedMix": "prepared_mix",
    "Tokenizer": "tokenizers",
    "TrainTokens": "tokens",
    "ValidationSet": "validation",
    "check_corpus": "checks",
    "check_data": "checks",
    "load_tokenizer": "tokenizers",
    "prepare_dataset": "prepare",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
