"""The score of task items: log-likelihoods of continuations, in batches by length.

A pair is split into tokens as lm-eval splits it: the tokens of the whole text, without those of the
context alone, whose trailing blanks belong to the continuation. No token comes before it; where the
context is empty, the token that ends a document does. What is too long loses its beginning.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import accumulate
from statistics import fmean
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from lehr_trainer.checkpointing.state import TrainProgress
from lehr_trainer.configs.tasks import TaskConfig, TaskKind
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract.records import Evaluation, LogFn
from lehr_trainer.data.tokenizers import Tokenizer, load_tokenizer
from lehr_trainer.errors import BadConfig, BadData
from lehr_trainer.evaluate import held_out_loss
from lehr_trainer.models.attention import without_compiling
from lehr_trainer.models.module_map import Decoder
from lehr_trainer.runtime import sharding
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.tasks.items import Item, digest, read_items
from lehr_trainer.weight_average import WeightAverage

BATCH_TOKENS = 8192
"""Of a forward pass, padding included: the same for any number of ranks, and so are the values."""
_ROUNDED = 64
"""Lengths are padded to multiples of this, so that a GPU's kernels see few shapes."""
Floats = NDArray[np.float64]


class Window(NamedTuple):
    """A sequence to compute, of which the last tokens are scored."""

    pair: int
    """Number of the pair that it belongs to; long texts have several windows."""
    tokens: NDArray[np.int64]
    scored: int


class PreparedTask(NamedTuple):
    """A task's items as tokens, in batches."""

    task: TaskConfig
    kind: TaskKind
    items: list[Item]
    digest: str
    """Of what is asked, and of the tokens if some are cut: equal ones make values comparable."""
    batches: list[list[Window]]
    summary: str
    """What is scored, in words."""
    longest: int
    """The longest sequence that the model takes."""


def prepare_task(task: TaskConfig, tokenizer: Tokenizer, longest: int) -> PreparedTask:
    """Read the items of a task, and make their tokens: of a sequence at most ``longest``.

    Raises:
        BadData: the file or a row is wrong, or a continuation has no token of its own.
    """
    kind, items, total = read_items(task)
    pairs = [pair for item in items for pair in item.pairs]
    before = tokenizer.encode_all([context.rstrip() for context, _ in pairs])
    wholes = tokenizer.encode_all(["".join(pair) for pair in pairs])
    windows: list[Window] = []
    merged = cut = 0
    for number, (own, whole) in enumerate(zip(before, wholes, strict=True)):
        scored = len(whole) - len(own)
        if scored < 1:
            raise BadData(
                f"evals.{task.name}: the tokenizer makes {pairs[number][1][:40]!r} one token with "
                f"the end of {pairs[number][0][-40:]!r}, so nothing can be scored; change the text "
                "or the delimiter"
            )
        merged += not np.array_equal(whole[: len(own)], own)
        start = [] if len(own) else [tokenizer.eos_id]
        tokens = np.concatenate([start, whole]).astype(np.int64)
        if kind == "perplexity":
            windows += _rolling(number, tokens, longest)
        else:
            cut += len(tokens) > longest + 1
            tokens = tokens[-(longest + 1) :]
            windows.append(Window(number, tokens, min(scored, len(tokens) - 1)))
    asked, of_all = digest([kind, items]), f"of {len(pairs):,} continuations"
    summary = f"task {task.name}: {len(items):,} of {total:,} {kind} items"
    if merged:
        summary += f"; {merged:,} {of_all} share a token with their context"
    if cut:
        summary += f"; {cut:,} {of_all} are longer with their context than {longest:,} tokens and "
        summary += "lose its beginning"
        # Which beginning depends on the tokenizer.
        asked = digest([asked, [window.tokens.tolist() for window in windows]])
    batches: list[list[Window]] = []
    for window in sorted(windows, key=lambda window: -len(window.tokens)):
        if not batches or (len(batches[-1]) + 1) * _padded(batches[-1][0]) > BATCH_TOKENS:
            batches.append([])
        batches[-1].append(window)
    summary += f"; digest {asked[:12]}"
    return PreparedTask(task, kind, items, asked, batches, summary, longest)


def _rolling(number: int, tokens: NDArray[np.int64], longest: int) -> Iterable[Window]:
    """Split a text into windows that score each token but the first once, as lm-eval does."""
    for first in range(1, len(tokens), longest):
        end = min(first + longest, len(tokens))
        yield Window(number, tokens[max(0, end - longest - 1) : end], end - first)


def _padded(window: Window) -> int:
    return -(-(len(window.tokens) - 1) // _ROUNDED) * _ROUNDED


@torch.no_grad()
def log_likelihoods(
    model: Decoder, task: PreparedTask, *, ranks: Ranks, precision: Precision
) -> tuple[Floats, NDArray[np.bool_], Floats]:
    """Return of each pair: its log-likelihood in nats, whether each of its tokens is the likeliest,
    and how many tokens are scored. Every rank must call it; each computes its share of the batches.
    """
    device = model.head_weight.device
    loss = held_out_loss(precision.operands, device, model.config.logit_softcap)
    pairs = sum(len(item.pairs) for item in task.items)
    sums = np.zeros((3, pairs))
    was_training = model.training
    model.eval()
    for first in range(0, len(task.batches), ranks.world_size):
        own = first + ranks.rank
        # A rank without a batch takes part in what the ranks of a sharded model do together.
        batch = task.batches[own if own < len(task.batches) else 0]
        length = min(_padded(batch[0]), task.longest)
        tokens = np.zeros((len(batch), length + 1), np.int64)
        scored = np.zeros((len(batch), length), np.bool_)
        for row, window in enumerate(batch):
            end = len(window.tokens)
            tokens[row, :end] = window.tokens
            scored[row, end - 1 - window.scored : end - 1] = True
        inputs, mask = (torch.from_numpy(one).to(device) for one in (tokens[:, :-1], scored))
        targets = torch.from_numpy(tokens[:, 1:][scored]).to(device)
        with precision.autocast():
            hidden = model(inputs)
        greedy = torch.empty_like(targets, dtype=torch.bool)
        # Only what is scored meets the head.
        rows = hidden.reshape(*mask.shape, hidden.shape[-1])[mask]
        losses = loss(rows, model.head_weight, targets, greedy=greedy)
        if own < len(task.batches):
            owner = np.repeat([one.pair for one in batch], [one.scored for one in batch])
            of_token = losses.cpu().numpy().astype(np.float64)
            of_pairs = (-of_token, ~greedy.cpu().numpy(), None)
            sums += np.stack([np.bincount(owner, values, pairs) for values in of_pairs])
    model.train(was_training)
    sharding.give_up_whole(model)
    summed = ranks.sum(torch.from_numpy(sums).to(device)).cpu().numpy()
    return summed[0], summed[1] == 0, summed[2]


def values_of(
    task: PreparedTask, likelihoods: Floats, likeliest: NDArray[np.bool_], tokens: Floats
) -> dict[str, float]:
    """Return the values of a task by the last part of their names.

    A log-likelihood that is no number makes all of them NaN: no choice would be the likeliest.
    """
    kind, items = task.kind, task.items
    ends = accumulate(len(item.pairs) for item in items)
    own = [likelihoods[end - len(i.pairs) : end] for end, i in zip(ends, items, strict=True)]
    golds = np.array([item.gold for item in items])
    bits = np.array([-one[gold] for one, gold in zip(own, golds, strict=True)]) / math.log(2)
    sizes = np.array([float(len(item.pairs[item.gold][1].encode())) for item in items])
    rate = float(bits.sum() / sizes.sum())
    # The error of a ratio of two sums, by its derivative.
    error = _stderr((bits - rate * sizes) / sizes.mean())
    values = {"bits_per_byte": rate, "bits_per_byte_stderr": error}
    if kind == "perplexity":
        values["loss"] = float(-likelihoods.sum() / tokens.sum())
    else:
        chance, right = 0.0, likeliest
        if kind != "continuation":
            chance = float(np.mean([1 / len(one) for one in own]))
            right = golds == [one.argmax() for one in own]
        accuracy, error = float(right.mean()), _stderr(right.astype(np.float64))
        values |= {"accuracy": accuracy, "accuracy_stderr": error}
        values["accuracy_centred"] = (accuracy - chance) / (1 - chance)
        values["accuracy_centred_stderr"] = error / (1 - chance)
    return values if np.isfinite(likelihoods).all() else dict.fromkeys(values, math.nan)


def _stderr(values: Floats) -> float:
    """Return the standard error of the mean of one value for each item."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def _check_value(metric: bool | str, tasks: Mapping[str, PreparedTask]) -> None:
    """Raise BadConfig if ``keep_best`` is a value that its task, by its kind, does not have."""
    if not isinstance(metric, str):
        return
    *_, name, value = metric.split("/")
    judged = tasks.values() if value == "mean" else [tasks[name]] if name in tasks else []
    kinds = {task.kind for task in judged}
    rate = value == "bits_per_byte"
    if not rate and kinds and (kinds == {"perplexity"}) is not (value == "loss"):
        has = "bits_per_byte and loss" if kinds == {"perplexity"} else "accuracy and bits_per_byte"
        raise BadConfig(
            f"checkpoint.keep_best is {metric}, but a task of kind {', '.join(kinds)} has {has}"
        )


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
        """Prepare the items, or raise BadData; ``config`` is that of the whole training."""
        self._score = partial(log_likelihoods, model, ranks=ranks, precision=precision)
        self._log = log
        self._compiles = config.on(ranks.device.type).compile.compiles
        longest = config.course[0].config.batch.sequence_length
        used = tokenizer if tokenizer or not tasks else load_tokenizer(config.data.tokenizer)
        self._prepared = {task.name: prepare_task(task, used, longest) for task in tasks if used}
        self.digests = {name: one.digest for name, one in self._prepared.items()}
        _check_value(config.checkpoint.keep_best, self._prepared)
        for one in self._prepared.values():
            log(one.summary)

    def due(self, step: int, *, ends: bool) -> list[str]:
        """Return the tasks to evaluate after ``step`` steps; all of training where a stage ends."""
        own = [one.task for one in self._prepared.values() if one.task.where == "training"]
        return [one.name for one in own if ends or (one.every and step % one.every == 0)]

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
            digests["mean"] = digest(sorted(self.digests.items()))
        now = time.time()
        return Evaluation(time=now, step=step, tokens=tokens, values=values, tasks=digests)

    def _values(self, names: Collection[str], prefix: str) -> dict[str, float]:
        own: dict[str, dict[str, float]] = {}
        # Each batch has another shape: graphs of their own would take longer than they save.
        with without_compiling() if self._compiles else nullcontext():
            for name in names:
                task = self._prepared[name]
                own[name] = values_of(task, *self._score(task))
        found = {f"{name}/{n}": v for name, values in own.items() for n, v in values.items()}
        centred = [one for one in own.values() if "accuracy_centred" in one]
        if centred and len(names) == len(self._prepared):
            found["mean"] = fmean(one["accuracy_centred"] for one in centred)
            errors = [one["accuracy_centred_stderr"] for one in centred]
            found["mean_stderr"] = math.hypot(*errors) / len(centred)
        return {f"{prefix}/{name}": value for name, value in found.items()}
