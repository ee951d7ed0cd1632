"""``python -m lehr_trainer.data prepare CONFIG.yaml``: prepare token shards without a GPU."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from lehr_trainer.configs.corpus import Corpus, weighed
from lehr_trainer.configs.stages import CourseStage, corpus_tokens, with_same_data
from lehr_trainer.contract import layout
from lehr_trainer.contract.records import Notice
from lehr_trainer.data.chats import describe_chats
from lehr_trainer.data.checks import counted, files_read
from lehr_trainer.data.prepare import prepare_dataset
from lehr_trainer.data.token_dataset import PreparedData, read_manifest
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
        course = config.course
        summaries = [
            _summary(
                group,
                corpus_tokens(course),
                prepare_dataset(
                    group[0].config.data,
                    config.validation,
                    config.model.vocab_size,
                    given.root or layout.data_root(),
                    _notice if given.notices else _progress,
                    started_by="lehr_trainer.data prepare",
                    hash_everything=given.verify,
                ),
            )
            for group in with_same_data(course)
        ]
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; finished shards are reused next time", file=sys.stderr)
        return 130
    # If a program reads standard output, it must hold records only.
    print("\n".join(summaries), file=sys.stderr if given.notices else sys.stdout)
    return 0


def _summary(
    stages: Sequence[CourseStage], taken: Mapping[str, float], prepared: PreparedData
) -> str:
    corpus = stages[0].config.data.corpus
    names = ", ".join(span.name for span, _ in stages)
    return (
        f"{names and f'stage {names}: '}"
        f"{prepared.tokens:,} training tokens of {counted(prepared.documents, 'document')}, "
        f"digest {prepared.digest[:12]}\n"
        f"{_files(corpus, prepared)}"
        f"{_corpora(corpus, prepared, taken, staged=bool(names))}"
        f"{describe_chats(prepared, max(own.batch.longest_sequence for _, own in stages))}"
        f"an evaluation scores {prepared.held_out.describe(prepared.validation_tokens)}, "
        f"digest {prepared.validation_digest[:12]}\n"
        f"{prepared.directory}"
    )


def _files(corpus: Corpus, prepared: PreparedData) -> str:
    """Return a line: what was read of files, and how many documents are not trained on."""
    read = files_read(corpus)
    if read is None:
        return ""
    parts = prepared.corpora.values()
    repeats = sum(read_manifest(part.directory).duplicates_removed for part in parts)
    held_out = prepared.held_out.all_documents
    left_out = f"{counted(repeats, 'repeat')} of these left out"
    return f"{read}; {counted(held_out, 'document')} held out, {left_out}\n"


def _corpora(
    corpus: Corpus, prepared: PreparedData, taken: Mapping[str, float], *, staged: bool
) -> str:
    """Return a line for each corpus of a mix: its share, its size, its epochs in the whole run."""
    lines = []
    for name, (one, share) in weighed(corpus).items():
        tokens = prepared.corpora[name].tokens
        epochs = f"{taken[one.model_dump_json()] / tokens:.3g} epochs in this run\n"
        if name:
            lines.append(f"  {name}: {share:.1%} of training, {tokens:,} tokens, {epochs}")
        elif staged:
            lines.append(f"  {epochs}")
    return "".join(lines)


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
