"""``python -m lehr_trainer.data prepare CONFIG.yaml``: prepare token shards without a GPU."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from lehr_trainer.configs.corpus import Corpus
from lehr_trainer.contract import layout
from lehr_trainer.contract.records import Notice
from lehr_trainer.data.chats import describe_chats
from lehr_trainer.data.checks import counted, files_read
from lehr_trainer.data.prepare import prepare_dataset
from lehr_trainer.data.token_dataset import PreparedData, PreparedMix, read_manifest
from lehr_trainer.errors import TrainerError
from lehr_trainer.runtime.launch import read_config


def main(argv: list[str] | None = None) -> int:
    """Prepare and print the shards' folder. On bad input, print the reason and return 1."""
    parser = argparse.ArgumentParser(prog="python -m lehr_trainer.data", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="prepare")
    verb = verbs.add_parser("prepare", help="make (or check) the token shards of a config")
    verb.add_argument("config", type=Path, help="a training config, or a run spec with `train`")
    verb.add_argument("--root", type=Path, help="folder of prepared data (default: LEHR_DATA)")
    verb.add_argument(
        "--notices", action="store_true", help="progress on stdout as Notice records, for programs"
    )
    verb.add_argument("--verify", action="store_true", help="check every digest, however large")
    given = parser.parse_args(argv)
    try:
        config = read_config(given.config, or_spec=True)
        prepared = prepare_dataset(
            config.data,
            config.validation,
            config.model.vocab_size,
            given.root or layout.data_root(),
            _notice if given.notices else _progress,
            started_by="lehr_trainer.data prepare",
            hash_everything=given.verify,
        )
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; finished shards are reused next time", file=sys.stderr)
        return 130
    # If a program reads standard output, it must hold records only.
    print(
        f"{prepared.tokens:,} training tokens of {counted(prepared.documents, 'document')}, "
        f"digest {prepared.digest[:12]}\n"
        f"{_files(config.data.corpus, prepared)}"
        f"{_corpora(prepared, config.total_tokens)}"
        f"{describe_chats(prepared, config.batch.longest_sequence)}"
        f"an evaluation scores {prepared.held_out.describe(prepared.validation_tokens)}, "
        f"digest {prepared.validation_digest[:12]}\n"
        f"{prepared.directory}",
        file=sys.stderr if given.notices else sys.stdout,
    )
    return 0


def _files(corpus: Corpus, prepared: PreparedData) -> str:
    """Return a line: what was read of files, and how many documents are not trained on."""
    read = files_read(corpus)
    if read is None:
        return ""
    parts = prepared.parts.values() if isinstance(prepared, PreparedMix) else [prepared]
    repeats = sum(read_manifest(part.directory).duplicates_removed for part in parts)
    held_out = prepared.held_out.all_documents
    left_out = f"{counted(repeats, 'repeat')} of these left out"
    return f"{read}; {counted(held_out, 'document')} held out, {left_out}\n"


def _corpora(prepared: PreparedData, total_tokens: int) -> str:
    """Return a line for each corpus of a mix: its share, its size, its epochs in the whole run."""
    if not isinstance(prepared, PreparedMix):
        return ""
    return "".join(
        f"  {name}: {prepared.share(name):.1%} of training, {part.tokens:,} tokens, "
        f"{prepared.share(name) * total_tokens / part.tokens:.3g} epochs in this run\n"
        for name, part in prepared.parts.items()
    )


def _progress(phase: str, message: str, done: float | None) -> None:
    share = "" if done is None else f"{done:4.0%} "
    if sys.stderr.isatty():
        end = "\n" if done == 1.0 else ""
        print(f"\r\033[K{phase}: {share}{message}", end=end, file=sys.stderr, flush=True)
    else:
        print(f"{phase}: {share}{message}", file=sys.stderr, flush=True)


def _notice(phase: str, message: str, done: float | None) -> None:
    notice = Notice(time=time.time(), phase=phase, message=message, done=done)
    print(notice.model_dump_json(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
