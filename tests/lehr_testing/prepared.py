"""What a prepared corpus says of itself, without a corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lehr_trainer.data import PreparedData


def prepared(**changes: Any) -> PreparedData:
    """Describe a corpus of bytes that does not exist."""
    facts: dict[str, Any] = {
        "directory": Path("nowhere"),
        "digest": "d",
        "tokens": 1_000_000,
        "documents": 100,
        "validation_tokens": 5_000,
        "validation_digest": "v",
        "bytes_per_token": 1.0,
        "dtype": "uint16",
        "vocab_size": 257,
        "eos_id": 256,
        "tokenizer": "byte",
        "held_out": None,
    }
    return PreparedData(**{**facts, **changes})
