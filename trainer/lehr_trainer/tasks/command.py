"""``python -m lehr_trainer eval PATH``: evaluate a checkpoint on tasks.

The result is one ``evaluation`` record, as a training writes it to ``events.jsonl``.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lehr_trainer.checkpointing import checkpoint
from lehr_trainer.checkpointing.state import TrainProgress
from lehr_trainer.configs.tasks import TaskConfig, distinct
from lehr_trainer.contract.records import Evaluation
from lehr_trainer.errors import BadCheckpoint, BadConfig, BadData, TrainerError
from lehr_trainer.export.command import load_tokenizer_of, open_source, step_of
from lehr_trainer.export.soup import model_of
from lehr_trainer.models.attention import attention_backend
from lehr_trainer.runtime import environment
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.tasks.scoring import Tasks
from lehr_trainer.weight_average import WeightAverage


def evaluate_checkpoint(
    path: Path,
    step: int | str,
    tasks: Sequence[TaskConfig],
    tokenizer: str | None = None,
    *,
    beside: bool = False,
) -> Evaluation:
    """Evaluate a checkpoint on tasks; if there are none, on those of its own training.

    ``beside``: on those that it names so, as the training would: its average of the weights, too.
    The other arguments are those of ``export``. Under torchrun the ranks share the items.

    Raises:
        BadConfig: there is no such run, or it names no such tasks.
        BadCheckpoint: there is no such checkpoint, it is damaged, or its logits are NaN.
        BadData: a task's file or the tokenizer is wrong, or the items of its training changed.
    """
    source = open_source(path, step)
    config, manifest = source.scored, source.manifest
    known = {} if tasks else source.state.get("tasks", {})
    tasks = tasks or config.evals
    names = [task.name for task in tasks if task.where == "beside" or not beside]
    if not names:
        which = " with where: beside" if beside else ""
        raise BadConfig(f"{path} has no train.evals{which}; name files of tasks")
    used = load_tokenizer_of(source, tokenizer)
    environment.prepare_process(config)
    ranks = Ranks.join("auto")
    tensors = checkpoint.read_tensors(source.directory, manifest, "model")
    model, precision = model_of(config, tensors, ranks)
    own = Tasks(tasks, config, model, ranks, precision, print, used)
    for name, digest in own.digests.items():
        if known.get(name, digest) != digest:
            raise BadData(f"evals.{name}: its items are not those of the training; restore them")
    average = None
    if beside and config.average is not None:
        checkpoint.verify(source.directory, {"average"})
        average = WeightAverage(config.average, model, ranks)
        average.restore(source.directory, source.state)
    with attention_backend(config.attention, ranks.device):
        progress = TrainProgress(step=manifest.step, tokens=manifest.tokens)
        evaluation = own.evaluate(names, progress, average)
    ranks.destroy()
    for name, value in evaluation.values.items():
        if math.isnan(value) and not name.endswith("stderr"):
            raise BadCheckpoint(f"{source.directory}: {name} is NaN, because its logits are")
    return evaluation


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the exit code."""
    parser = argparse.ArgumentParser("python -m lehr_trainer eval", description=__doc__)
    parser.add_argument("path", type=Path, help="a run directory, or a checkpoint's folder")
    parser.add_argument("--step", type=step_of, default="last", help="a step, last or best")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--tasks", nargs="+", default=[], metavar="FILE", help="if not of the run")
    which.add_argument("--beside", action="store_true", help="those of the run with where: beside")
    parser.add_argument("--tokenizer", help="where the run's tokenizer is on this machine")
    parser.add_argument("--out", type=Path, required=True, help="file of the record")
    options = parser.parse_args(arguments)
    try:
        tasks = [TaskConfig(name=Path(one).stem, path=one, limit=None) for one in options.tasks]
        given = (options.path, options.step, distinct(tasks), options.tokenizer)
        made = evaluate_checkpoint(*given, beside=options.beside)
    except (TrainerError, ValueError) as error:
        print(f"eval: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if os.environ.get("RANK", "0") == "0":
        options.out.write_text(f"{made.model_dump_json()}\n", encoding="utf-8")
    return 0
