"""``python -m lehr_trainer export RUN_DIR OUT_DIR``: a folder that ``transformers`` loads.

The folder appears by one rename, so it is never half-written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from lehr_trainer.checkpointing import checkpoint
from lehr_trainer.checkpointing.retention import Held, best_of
from lehr_trainer.configs.corpus import ChatCorpus, corpora
from lehr_trainer.configs.stages import with_all_positions
from lehr_trainer.configs.train import LlamaConfig, TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.data.chats import TEMPLATES
from lehr_trainer.data.tokenizers import Tokenizer, load_tokenizer
from lehr_trainer.errors import BadCheckpoint, BadConfig, BadData, TrainerError
from lehr_trainer.export.averages import mean_of, running_average
from lehr_trainer.export.model_card import Mean, model_card
from lehr_trainer.export.weights import SpecialIds, transformers_class, write_model, write_tokenizer
from lehr_trainer.files import fsync_folder
from lehr_trainer.runtime import launch

NEEDED = frozenset({"model", "state"})
"""Kinds of a checkpoint's files that an export reads; the optimizer's are not needed."""
WEIGHTS = "model.safetensors"
NO_TOKENIZER = "none"


@dataclass(frozen=True)
class ExportSource:
    """A checkpoint to export."""

    directory: Path
    manifest: checkpoint.Manifest
    config: TrainConfig
    state: dict[str, Any]
    """``state.json``; empty if the checkpoint has none."""

    @property
    def scored(self) -> TrainConfig:
        """What gave its val/loss: these weights on the held-out set of its run's first stage."""
        if "course" not in self.state:
            return self.config
        course = TrainConfig.model_validate(self.state["course"]).course
        first = course[0].config
        held_out = {"data": first.data, "validation": first.validation, "batch": first.batch}
        return with_all_positions(self.config.model_copy(update=held_out), course)

    @property
    def digest(self) -> str:
        return hashlib.sha256((self.directory / layout.MANIFEST).read_bytes()).hexdigest()


def export(
    path: Path,
    out_dir: Path,
    step: int | str = "last",
    *,
    average: bool = False,
    tokenizer: str | None = None,
    overwrite: bool = False,
    facts: dict[str, Any] | None = None,
) -> Path:
    """Write a checkpoint to ``out_dir``; return the checkpoint that it was taken from.

    ``path`` is a run directory or the folder of one checkpoint. The step ``last`` is the newest
    that verifies, ``best`` that of the run's ``keep_best``. ``average`` exports the running average
    of the weights (``train.average``), ``overwrite`` replaces an earlier export. ``tokenizer`` is
    where the run's tokenizer is on this machine, if not where the run found it; ``none``: none.
    ``facts`` are what the platform knows about the run, for the model card.

    Raises:
        BadConfig: there is no such run, or ``out_dir`` holds something already.
        BadCheckpoint: there is no such checkpoint, or it is damaged.
        BadData: the tokenizer cannot be had.
    """
    out_dir = out_dir.absolute()
    require_free(out_dir, overwrite=overwrite)
    source = open_source(path, step)
    require_own_model(source)
    used = load_tokenizer_of(source, tokenizer)
    tensors = checkpoint.read_tensors(source.directory, source.manifest, "model")
    with appearing(out_dir) as draft:
        if average:
            parts, mean = running_average(source.directory, source.manifest, source.state)
            with mean_of(parts, draft) as averaged:
                write_export(draft, source, {**tensors, **averaged}, used, facts, mean)
        else:
            write_export(draft, source, tensors, used, facts)
    return source.directory


def write_export(
    draft: Path,
    source: ExportSource,
    tensors: Mapping[str, Tensor],
    tokenizer: Tokenizer | None,
    facts: dict[str, Any] | None,
    mean: Mean | None = None,
) -> None:
    """Write the files of an export: ``tensors`` are the source's own, or the ``mean``."""
    ids = SpecialIds(None, None, None)
    if tokenizer is not None:
        every = corpora(source.config.data.corpus, "").values()
        chats = {corpus.template for corpus in every if isinstance(corpus, ChatCorpus)}
        ids = write_tokenizer(
            tokenizer,
            draft,
            longest=source.config.model.max_sequence_length,
            chat_template=TEMPLATES[chats.pop()].jinja if len(chats) == 1 else None,
        )
    write_model(source.config.model, tensors, draft, ids)
    card = model_card(
        source.config,
        source.manifest,
        source.state,
        digest=source.digest,
        has_tokenizer=tokenizer is not None,
        facts=facts or {},
        mean=mean,
    )
    (draft / "README.md").write_text(card, encoding="utf-8")


def require_own_model(source: ExportSource) -> None:
    """Raise BadConfig if transformers has no such model, as one of the project's own class."""
    parts = source.config.parts
    if parts is not None and parts.model is not None:
        raise BadConfig(
            f"export is not possible: model class {parts.model} is not Lehr's, and transformers "
            "has no class for it. Its checkpoints hold its weights as safetensors; `lehr code "
            "checkout` gives the class"
        )
    if isinstance(source.config.model, LlamaConfig):
        transformers_class(source.config.model)


# --- the checkpoint ------------------------------------------------------------------------


def open_source(path: Path, step: int | str) -> ExportSource:
    if (path / layout.MANIFEST).is_file():
        manifest = checkpoint.verify(path, NEEDED)
        if isinstance(step, int) and step != manifest.step:
            raise BadCheckpoint(f"{path} is of step {manifest.step}, not of step {step}")
        return _read(path, manifest, None)
    config_file = path / layout.CONFIG
    if not config_file.is_file():
        raise BadConfig(
            f"{path} is neither a run directory (it has no {layout.CONFIG}) nor a checkpoint (it "
            f"has no {layout.MANIFEST})"
        )
    directory, manifest = _choose(path, step)
    return _read(directory, manifest, config_file)


def _read(directory: Path, manifest: checkpoint.Manifest, config_file: Path | None) -> ExportSource:
    """Read the config that trained the weights; the run's own may have been edited since."""
    state = checkpoint.read_document(directory, "state") if "state.json" in manifest.files else {}
    if "config" not in state:
        if config_file is None:
            raise BadCheckpoint(f"{directory}/state.json has no config; export its run directory")
        return ExportSource(directory, manifest, launch.read_config(config_file), state)
    try:
        config = TrainConfig.model_validate(state["config"])
    except ValidationError as error:
        reason = " ".join(str(error).split())
        raise BadCheckpoint(
            f"{directory}/state.json has a config that is not valid: {reason}"
        ) from (error)
    return ExportSource(directory, manifest, config, state)


def _choose(run_dir: Path, step: int | str) -> tuple[Path, checkpoint.Manifest]:
    """Choose the checkpoint; where two attempts saved a step, the newer one's."""
    found = [
        directory
        for attempt in reversed(layout.attempts(run_dir))
        for directory in layout.checkpoints(attempt)
    ]
    found.sort(key=lambda directory: layout.checkpoint_step(directory) or 0, reverse=True)
    if isinstance(step, int):
        saved_steps = sorted({layout.checkpoint_step(d) or 0 for d in found})
        found = [d for d in found if layout.checkpoint_step(d) == step]
        if not found:
            steps = ", ".join(map(str, saved_steps)) or "none"
            raise BadCheckpoint(f"{run_dir} has no checkpoint of step {step}; there are: {steps}")
    if step == "best":
        policy = launch.read_config(run_dir / layout.CONFIG).checkpoint
        manifests = [(d, checkpoint.read_manifest(d)) for d in found]
        held = [Held(d, one.step, one.val_loss, score=one.score) for d, one in manifests]
        best = best_of(held, policy)
        if found and best is None:
            metric = policy.keep_best if isinstance(policy.keep_best, str) else "val/loss"
            raise BadCheckpoint(
                f"{run_dir} has no checkpoint with a {metric}, so none is the best; name a step, "
                "or last"
            )
        found = [best.path] if best else []
    damaged: list[str] = []
    for directory in found:
        try:
            return directory, checkpoint.verify(directory, NEEDED)
        except BadCheckpoint as error:
            damaged.append(str(error))
    raise BadCheckpoint("; ".join(damaged) or f"{run_dir} has no checkpoint yet")


def load_tokenizer_of(source: ExportSource, given: str | None) -> Tokenizer | None:
    """Load the run's tokenizer, and check that it is the one of the checkpoint."""
    if given == NO_TOKENIZER:
        return None
    name = given or source.config.data.tokenizer
    try:
        tokenizer = load_tokenizer(name)
    except BadData as error:
        raise type(error)(
            f"{error}. The run's tokenizer belongs to the export: name it where it is on this "
            f"machine (--tokenizer PATH), or leave it out (--tokenizer {NO_TOKENIZER})"
        ) from None
    trained = source.state.get("data", {}).get("tokenizer")
    own = {"vocab_size": tokenizer.vocab_size, "eos_id": tokenizer.eos_id}
    if trained is not None and trained != own:
        raise BadData(
            f"tokenizer {name!r} is not the one of the run: it has {own['vocab_size']:,} tokens "
            f"and ends documents with {own['eos_id']}; the run's has "
            f"{trained.get('vocab_size'):,} and {trained.get('eos_id')}"
        )
    return tokenizer


# --- the folder ----------------------------------------------------------------------------


def require_free(out_dir: Path, *, overwrite: bool) -> None:
    """Raise BadConfig if writing would replace something other than an earlier export."""
    if not out_dir.is_symlink() and not out_dir.exists():
        return
    if not out_dir.is_dir() or out_dir.is_symlink():
        raise BadConfig(f"{out_dir} is not a folder; choose a new one")
    if not any(out_dir.iterdir()):
        return
    if not overwrite:
        raise BadConfig(f"{out_dir} is not empty; choose a new folder, or add --overwrite")
    if not (out_dir / WEIGHTS).is_file() or not (out_dir / "config.json").is_file():
        raise BadConfig(
            f"{out_dir} is not an earlier export (it has no {WEIGHTS} with a config.json), so it "
            "is not replaced; choose a new folder"
        )


@contextmanager
def appearing(out_dir: Path) -> Iterator[Path]:
    """Yield a draft folder beside ``out_dir``, which takes its place if all goes well."""
    mark = secrets.token_hex(4)
    draft = out_dir.with_name(f".{out_dir.name}-{mark}")
    try:
        draft.mkdir(parents=True)
        yield draft
        _finish(draft)
        if out_dir.exists() and any(out_dir.iterdir()):
            old = out_dir.with_name(f".{out_dir.name}-{mark}-old")
            out_dir.rename(old)
            draft.rename(out_dir)
            shutil.rmtree(old)
        else:
            draft.rename(out_dir)
        fsync_folder(out_dir.parent)
    except OSError as error:
        raise BadConfig(f"{out_dir} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _finish(folder: Path) -> None:
    """Give each file the usual rights (safetensors writes for its owner alone), and fsync it."""
    usual = (folder / "config.json").stat().st_mode
    for path in folder.iterdir():
        path.chmod(usual)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    fsync_folder(folder)


# --- the command line ----------------------------------------------------------------------


def step_of(text: str) -> int | str:
    """Parse a step: a number, ``last`` or ``best``.

    Raises:
        ValueError: it is none of these.
    """
    return text if text in {"last", "best"} else int(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tokenizer", help="where the run's tokenizer is on this machine; none leaves it out"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier export")
    parser.add_argument("--facts", type=Path, help="JSON for the model card, from the platform")


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m lehr_trainer export",
        description="Write a trained model as a folder that transformers loads.",
    )
    parser.add_argument("path", type=Path, help="a run directory, or a checkpoint's folder")
    parser.add_argument("out_dir", type=Path, help="the folder to make")
    parser.add_argument(
        "--step", type=step_of, default="last", help="a step, last or best; last if not given"
    )
    parser.add_argument(
        "--average", action="store_true", help="the average of its weights (train.average)"
    )
    add_options(parser)
    given = parser.parse_args(arguments)
    try:
        facts = json.loads(given.facts.read_text("utf-8")) if given.facts else None
        source = export(
            given.path,
            given.out_dir,
            given.step,
            average=given.average,
            tokenizer=given.tokenizer,
            overwrite=given.overwrite,
            facts=facts,
        )
    except TrainerError as error:
        print(f"export: {error}", file=sys.stderr)
        return 2
    print(f"{source} -> {given.out_dir}")
    return 0
