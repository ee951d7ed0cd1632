"""What is known of data that are prepared here: what an evaluation scores, their size."""

from __future__ import annotations

from pathlib import Path

from lehr_trainer.configs.corpus import MixCorpus
from lehr_trainer.configs.train import DataConfig, ValidationConfig
from lehr_trainer.data.checks import TOKENIZER_SIZES, check_tokenizer
from lehr_trainer.data.corpora import open_corpus
from lehr_trainer.data.prepare import cache_key, of_each
from lehr_trainer.data.token_dataset import MANIFEST, HeldOutSample, read_manifest
from lehr_trainer.data.tokenizers import load_tokenizer


def prepared_sample(
    data: DataConfig, validation: ValidationConfig, root: Path
) -> HeldOutSample | None:
    """Return what an evaluation will score, if it is prepared under ``root``. Uses no network."""
    if isinstance(data.corpus, MixCorpus):
        samples = {
            name: prepared_sample(
                data.model_copy(update={"corpus": part.corpus}),
                of_each(validation, data.corpus),
                root,
            )
            for name, part in sorted(data.corpus.parts.items())
        }
        whole = {name: one for name, one in samples.items() if one is not None}
        return HeldOutSample.join(whole) if len(whole) == len(samples) else None
    directory = _prepared(data, validation, root)
    if directory is None:
        return None
    return HeldOutSample.read(directory, read_manifest(directory), validation.tokens)


def prepared_tokens(data: DataConfig, validation: ValidationConfig, root: Path) -> int | None:
    """Return the training tokens of one pass over a corpus, if it is prepared under ``root``."""
    directory = _prepared(data, validation, root)
    return sum(s.tokens for s in read_manifest(directory).train) if directory else None


def _prepared(data: DataConfig, validation: ValidationConfig, root: Path) -> Path | None:
    """Return the folder of a corpus that is prepared under ``root``."""
    offline = data.tokenizer in TOKENIZER_SIZES or check_tokenizer(data.tokenizer) is not None
    if isinstance(data.corpus, MixCorpus) or not offline or not any(root.glob(f"*/{MANIFEST}")):
        return None
    corpus, tokenizer = open_corpus(data.corpus), load_tokenizer(data.tokenizer)
    directory = root / cache_key(corpus, tokenizer, data, validation)
    return directory if (directory / MANIFEST).is_file() else None
