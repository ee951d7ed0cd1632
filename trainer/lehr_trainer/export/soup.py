"""``python -m lehr_trainer average PATH PATH... --out DIR``: the mean of several checkpoints.

It becomes an export and no checkpoint: a checkpoint belongs to the attempt that trained it, whose
stream records it, and a run resumes from it; no run trained these weights, and they have no
optimizer, step or position in the data.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lehr_trainer.checkpointing import checkpoint
from lehr_trainer.checkpointing.state import model_tensors
from lehr_trainer.configs.execution import Fp8Config
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout
from lehr_trainer.data.prepare import prepare_dataset
from lehr_trainer.errors import BadConfig, BadData, TrainerError
from lehr_trainer.evaluate import ValidationSet, evaluate
from lehr_trainer.export.averages import mean_of
from lehr_trainer.export.command import (
    ExportSource,
    add_options,
    appearing,
    load_tokenizer_of,
    open_source,
    require_free,
    require_own_model,
    step_of,
    write_export,
)
from lehr_trainer.export.model_card import Mean
from lehr_trainer.models import build_model_of
from lehr_trainer.models.attention import attention_backend, require_operands
from lehr_trainer.models.documents import make_input_fn
from lehr_trainer.models.module_map import Decoder
from lehr_trainer.runtime import environment
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision

RECORD = "average.json"


def export_mean(
    places: Sequence[tuple[Path, int | str]],
    out_dir: Path,
    *,
    scored: bool = False,
    tokenizer: str | None = None,
    overwrite: bool = False,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write the mean of the weights of several checkpoints of one model to ``out_dir``.

    ``places`` are run directories or checkpoints' folders with a step each, ``facts`` what the
    platform knows: ``runs`` (their ids) and ``lehr_version``. With ``scored`` the mean is evaluated
    on the held-out set of the runs. The other arguments are those of ``export``.

    Raises:
        BadConfig: there are less than two, or they are not of one model.
        BadCheckpoint: one of them is missing or damaged.
        BadData: the tokenizer or the held-out set cannot be had.
    """
    facts, out_dir = facts or {}, out_dir.absolute()
    require_free(out_dir, overwrite=overwrite)
    if len(places) < 2:
        raise BadConfig("an average needs two checkpoints or more; `export` writes a single one")
    sources = [open_source(path, step) for path, step in places]
    runs = facts.get("runs") or [str(path) for path, _ in places]
    names = [f"{run}@{one.manifest.step}" for run, one in zip(runs, sources, strict=True)]
    parts = [checkpoint.read_tensors(one.directory, one.manifest, "model") for one in sources]
    _require_one_model(list(zip(sources, parts, names, strict=True)))
    used = load_tokenizer_of(sources[0], tokenizer)
    record: dict[str, Any] = {
        "ingredients": [
            {
                "run": run,
                "step": one.manifest.step,
                "tokens": one.manifest.tokens,
                "val_loss": one.manifest.val_loss,
                "digest": one.digest,
            }
            for run, one in zip(runs, sources, strict=True)
        ],
        **dict.fromkeys(("values", "validation_digest", "device")),
    }
    with appearing(out_dir) as draft, mean_of(parts, draft) as tensors:
        if scored:
            record |= _score(sources, names, tensors)
        (draft / RECORD).write_text(f"{json.dumps(record, indent=1)}\n", encoding="utf-8")
        described = {"lehr_version": facts.get("lehr_version"), "run": {"name": "Average"}}
        write_export(draft, sources[0], tensors, used, described, _mean(record))


def _mean(record: Mapping[str, Any]) -> Mean:
    rows = [
        (
            f"`{one['run']}`, step {one['step']:,}",
            f"{one['tokens']:,} tokens, val/loss {one['val_loss']}, manifest `{one['digest']}`",
        )
        for one in record["ingredients"]
    ]
    text = (
        f"Its weights are the mean of those of {len(rows)} checkpoints, which `{RECORD}` lists, "
        "too. All else on this page but val/loss is about the first of them."
    )
    return Mean(text, (record["values"] or {}).get("val/loss"), rows)


def _require_one_model(
    ingredients: Sequence[tuple[ExportSource, Mapping[str, Tensor], str]],
) -> None:
    """Raise BadConfig if two are the same checkpoint, or of different models."""
    known: dict[str, str] = {}
    for source, tensors, name in ingredients:
        if before := known.get(source.digest):
            raise BadConfig(f"{before} and {name} are the same checkpoint; name each once")
        known[source.digest] = name
        require_own_model(source)
        own, its = _computes(*ingredients[0][:2]), _computes(source, tensors)
        for key in sorted(own.keys() | its.keys()):
            if own.get(key) != its.get(key):
                raise BadConfig(
                    f"{ingredients[0][2]} and {name} cannot be averaged: not of one model: {key} "
                    f"is {own.get(key, 'missing')} in the one and {its.get(key, 'missing')} in the "
                    "other"
                )


def _computes(source: ExportSource, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the shapes of the weights, and what they compute: for example with other heads."""
    model = source.config.model.model_dump()
    return {
        **{name: tuple(tensor.shape) for name, tensor in tensors.items()},
        **{f"model.{field}": value for field, value in model.items()},
        "tokenizer": source.state.get("data", {}).get("tokenizer"),
    }


def _score(
    sources: Sequence[ExportSource], names: Sequence[str], tensors: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Evaluate the mean as the first run evaluates its weights; return its part of the record.

    Raises:
        BadData: the runs have different held-out sets, or this machine has another one.
    """
    digests = [source.state.get("data", {}).get("validation_digest") for source in sources]
    for name, digest in zip(names, digests, strict=True):
        if digest is None or digest != digests[0]:
            raise BadData(
                f"{names[0]} and {name} do not have one held-out set, so no val/loss of their mean "
                "compares with both; leave --evaluate out"
            )
    config = sources[0].scored
    environment.prepare_process(config)
    ranks = Ranks.join("auto")
    data = prepare_dataset(
        config.data,
        config.validation,
        config.model.vocab_size,
        layout.data_root(),
        lambda phase, message, _done: print(f"{phase}: {message}"),
        trained_on=[sources[0].state["data"].get("digest", "")],
    )
    data.require_same(validation_digest=digests[0])
    model, precision = model_of(config, tensors, ranks)
    batch, scoring = config.batch, config.validation
    held_out = ValidationSet(
        data,
        batch.sequence_length,
        scoring.tokens,
        micro_batch=scoring.micro_batch or batch.micro_batch or 1,
        device=ranks.device,
    )
    with attention_backend(config.attention, ranks.device):
        values = evaluate(
            model,
            held_out,
            make_input=make_input_fn(data.eos_id if config.attention.document_masking else None),
            ranks=ranks,
            precision=precision,
        )
    return {
        "values": values,
        "validation_digest": digests[0],
        "device": environment.device_name(ranks.device),
    }


def model_of(
    config: TrainConfig, tensors: Mapping[str, Tensor], ranks: Ranks
) -> tuple[Decoder, Precision]:
    """Build the model of weights that are evaluated: never computed in FP8, not compiled."""
    plain = config.precision.model_copy(update={"fp8": Fp8Config()})
    config = config.model_copy(update={"precision": plain})
    precision = Precision.choose(plain, ranks.device)
    windows = any(config.model.windows)
    require_operands(config.attention, precision.operands, ranks.device, windows=windows)
    model = build_model_of(config, device=ranks.device)
    with torch.no_grad():
        for name, own in model_tensors(model).items():
            own.copy_(tensors[name])
    return model, precision


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m lehr_trainer average",
        description="Write the mean of several models as a folder that transformers loads.",
    )
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH[@STEP]",
        help="run directories or checkpoints' folders; a step, last or best, last if not given",
    )
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument(
        "--evaluate", action="store_true", help="compute val/loss of the mean, on this machine"
    )
    add_options(parser)
    options = parser.parse_args(arguments)
    try:
        export_mean(
            [_place(text) for text in options.paths],
            options.out,
            scored=options.evaluate,
            tokenizer=options.tokenizer,
            overwrite=options.overwrite,
            facts=json.loads(options.facts.read_text("utf-8")) if options.facts else None,
        )
    except TrainerError as error:
        print(f"average: {error}", file=sys.stderr)
        return 2
    print(f"mean of {len(options.paths)} -> {options.out}")
    return 0


def _place(text: str) -> tuple[Path, int | str]:
    path, at, step = text.rpartition("@")
    if not at or Path(text).exists():
        return Path(text), "last"
    try:
        return Path(path), step_of(step)
    except ValueError:
        raise BadConfig(f"{text}: {step!r} is not a step; give a number, best or last") from None
