"""Evaluation of a model on its tasks, in a training or by hand."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from functools import partial

from lehr_trainer.checkpointing.state import TrainProgress
from lehr_trainer.configs.tasks import TaskConfig
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract.records import Evaluation, LogFn
from lehr_trainer.data.tokenizers import Tokenizer, load_tokenizer
from lehr_trainer.models.attention import without_compiling
from lehr_trainer.models.module_map import Decoder
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.tasks.scoring import log_likelihoods, mean_of_tasks, prepare_task, values_of
from lehr_trainer.weight_average import WeightAverage


class Tasks:
    """A model and the tasks that it is evaluated on."""

    def __init__(
        self,
        tasks: Sequence[TaskConfig],
        config: TrainConfig,
        model: Decoder,
        ranks: Ranks,
        precision: Precision,
        log: LogFn,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        """Prepare the items; ``config`` is that of the whole training.

        Raises:
            BadData: a file or one of its rows is wrong, or the tokenizer cannot be had.
        """
        self._score = partial(log_likelihoods, model, ranks=ranks, precision=precision)
        self._log = log
        self._compiles = config.on(ranks.device.type).compile.compiles
        longest = config.course[0].config.batch.sequence_length
        used = tokenizer if tokenizer or not tasks else load_tokenizer(config.data.tokenizer)
        self._prepared = {task.name: prepare_task(task, used, longest) for task in tasks if used}
        self.digests = {name: one.digest for name, one in self._prepared.items()}
        self.summaries = [one.summary for one in self._prepared.values()]
        for summary in self.summaries:
            log(summary)

    def due(self, step: int, *, ends: bool) -> list[str]:
        """Return the tasks to evaluate after ``step`` steps; all where a stage ends."""
        every = {name: one.task.every for name, one in self._prepared.items()}
        return [name for name, steps in every.items() if ends or (steps and step % steps == 0)]

    def evaluate(
        self, names: Collection[str], progress: TrainProgress, average: WeightAverage | None = None
    ) -> Evaluation:
        """Evaluate the model, and the average of its weights, on these tasks.

        Every rank must call it. ``task/mean`` is given where all tasks are evaluated.
        """
        step, tokens = progress.step, progress.tokens
        values = self._values(names, "task")
        if average is not None and average.ready:
            with average.swapped_in():
                values |= self._values(names, "task/average")
        shown = [f"{name} {value:.4f}" for name, value in values.items() if "stderr" not in name]
        self._log(f"step {step}  {', '.join(shown)}")
        digests = {name: self.digests[name] for name in names}
        if "task/mean" in values:
            every = "".join(self.digests[name] for name in sorted(self.digests))
            digests["mean"] = hashlib.sha256(every.encode()).hexdigest()
        now = time.time()
        return Evaluation(time=now, step=step, tokens=tokens, values=values, tasks=digests)

    def _values(self, names: Collection[str], prefix: str) -> dict[str, float]:
        tasks = {name: self._prepared[name] for name in names}
        # Each batch has another shape: graphs of their own would take longer than they save.
        with without_compiling() if self._compiles else nullcontext():
            own = {name: values_of(task.items, *self._score(task)) for name, task in tasks.items()}
        found = {
            f"{name}/{which}": v for name, values in own.items() for which, v in values.items()
        }
        if len(names) == len(self._prepared):
            found |= mean_of_tasks(own.values())
        return {f"{prefix}/{name}": value for name, value in found.items()}
