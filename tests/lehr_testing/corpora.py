"""Small corpora to prepare, and a silent notify."""

import json
import random
from pathlib import Path
from typing import Any

from lehr_trainer.configs.corpus import FilesCorpus
from lehr_trainer.configs.train import DataConfig, ValidationConfig
from lehr_trainer.data.prepare import prepare_dataset
from lehr_trainer.data.token_dataset import PreparedData, PreparedMix

WORDS = [
    "glass",
    "kiln",
    "anneal",
    "slow",
    "cool",
    "even",
    "light",
    "lehr",
    "furnace",
    "belt",
    "sand",
    "batch",
    "melt",
    "draw",
]


def documents(count: int, *, seed: int = 0, words: int = 60) -> list[str]:
    """Distinct texts of varying length, with line breaks and characters outside ASCII."""
    rng = random.Random(seed)
    return [
        f"{number} " + " ".join(rng.choices(WORDS, k=rng.randint(1, words))) + "\nπ ≠ 3\n"
        for number in range(count)
    ]


def write_jsonl(path: Path, texts: list[str], **extra: Any) -> Path:
    lines = [json.dumps({"text": text, **extra}) for text in texts]
    content = "\n".join(lines) + "\n"
    # A file that was not written again is the same corpus.
    if not path.exists() or path.read_text(encoding="utf-8") != content:
        path.write_text(content, encoding="utf-8")
    return path


def silent(phase: str, message: str, done: float | None) -> None:
    """Ignore progress."""


def jsonl_data(path: Path, **options: Any) -> DataConfig:
    corpus = FilesCorpus(kind="jsonl", paths=[str(path)])
    return DataConfig(corpus=corpus, **{"tokenizer": "byte", **options})


def prepare_texts(
    folder: Path, texts: list[str], *, share: float = 0.1, tokens: int = 10**9, **options: Any
) -> PreparedData:
    """The texts as byte shards under ``folder``."""
    path = write_jsonl(folder / "corpus.jsonl", texts)
    held_out = ValidationConfig(share=share, tokens=tokens)
    return prepare_dataset(jsonl_data(path, **options), held_out, 512, folder / "root", silent)


def mix_data(folder: Path, parts: dict[str, dict[str, Any]], **options: Any) -> DataConfig:
    """A mix of texts: each part has its ``weight`` and its ``texts``, written under ``folder``."""
    corpus = {
        "kind": "mix",
        "parts": {
            name: {
                "weight": part["weight"],
                "corpus": {
                    "kind": "jsonl",
                    "paths": [str(write_jsonl(folder / f"{name}.jsonl", part["texts"]))],
                },
            }
            for name, part in parts.items()
        },
    }
    return DataConfig.model_validate({"corpus": corpus, "tokenizer": "byte", **options})


def prepare_mix(
    folder: Path,
    parts: dict[str, dict[str, Any]],
    *,
    share: float = 0.1,
    tokens: int = 10**9,
    **options: Any,
) -> PreparedMix:
    """The texts of each part as byte shards under ``folder``."""
    held_out = ValidationConfig(share=share, tokens=tokens)
    made = prepare_dataset(
        mix_data(folder, parts, **options), held_out, 512, folder / "root", silent
    )
    assert isinstance(made, PreparedMix)
    return made
