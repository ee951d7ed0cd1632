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
from lehr_trainer.errors import BadCheckpoint, BadConfig, TrainerError
from lehr_trainer.export.command import load_tokenizer_of, open_source, step_of
from lehr_trainer.export.soup import model_of
from lehr_trainer.models.attention import attention_backend
from lehr_trainer.runtime import environment
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.tasks.scoring import Tasks


def evaluate_checkpoint(
    path: Path, step: int | str, tasks: Sequence[TaskConfig], tokenizer: str | None = None
) -> Evaluation:
    """Evaluate a checkpoint on tasks; if there are none, on those of its own training.

    The arguments are those of ``export``. Under torchrun the ranks share the items.

    Raises:
        BadConfig: there is no such run, or it names no tasks.
        BadCheckpoint: there is no such checkpoint, it is damaged, or its logits are NaN.
        BadData: a task's file or the tokenizer is wrong.
    """
    source = open_source(path, step)
    config, manifest = source.scored, source.manifest
    tasks = tasks or config.evals
    if not tasks:
        raise BadConfig(f"{path} has no train.evals; name files of tasks")
    used = load_tokenizer_of(source, tokenizer)
    environment.prepare_process(config)
    ranks = Ranks.join("auto")
    tensors = checkpoint.read_tensors(source.directory, manifest, "model")
    model, precision = model_of(config, tensors, ranks)
    own = Tasks(tasks, config, model, ranks, precision, print, used)
    with attention_backend(config.attention, ranks.device):
        progress = TrainProgress(step=manifest.step, tokens=manifest.tokens)
        evaluation = own.evaluate([task.name for task in tasks], progress)
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
    parser.add_argument("--tasks", nargs="+", default=[], metavar="FILE", help="if not of the run")
    parser.add_argument("--tokenizer", help="where the run's tokenizer is on this machine")
    parser.add_argument("--out", type=Path, required=True, help="file of the record")
    options = parser.parse_args(arguments)
    try:
        tasks = [TaskConfig(name=Path(one).stem, path=one, limit=None) for one in options.tasks]
        made = evaluate_checkpoint(options.path, options.step, distinct(tasks), options.tokenizer)
    except (TrainerError, ValueError) as error:
        print(f"eval: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if os.environ.get("RANK", "0") == "0":
        options.out.write_text(f"{made.model_dump_json()}\n", encoding="utf-8")
    return 0
