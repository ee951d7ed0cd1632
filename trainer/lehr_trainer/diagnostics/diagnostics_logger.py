"""Logger of further metrics and samples, at the config's intervals.

The formulas are in parameter_stats.py. Values stay on the device until the metrics logger fetches
them, except for the sample, which is text.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor, nn

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract.records import Sample
from lehr_trainer.data import Tokenizer, load_tokenizer
from lehr_trainer.diagnostics.parameter_stats import ParameterStats, quality, sample
from lehr_trainer.models.attention import without_compiling
from lehr_trainer.models.documents import InputFn
from lehr_trainer.models.fp8 import unmoved_fp8_state
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.update_step import UpdateStep

Batch = tuple[Tensor, Tensor]
OwnLoss = Callable[[Tensor, Tensor], Tensor]


def every(interval: int, step: int) -> bool:
    return interval > 0 and step % interval == 0


class DiagnosticsLogger:
    """Rank 0's diagnostics; other ranks hold the same weights and log nothing."""

    def __init__(
        self,
        config: TrainConfig,
        model: nn.Module,
        *,
        make_input: InputFn,
        precision: Precision,
        is_rank0: bool,
        compression_overflows: Tensor | None = None,
    ) -> None:
        self._config, self._model, self._make_input = config, model, make_input
        self._precision, self._is_rank0 = precision, is_rank0
        self._parts = ParameterStats(model)
        self._watching = False
        self._overflows = compression_overflows
        self._tokenizer: Tokenizer | None = None

    def due(self, step: int) -> bool:
        """Whether parts or quality are measured in ``step`` (the first is 1)."""
        policy = self._config.diagnostics
        return self._is_rank0 and (
            every(policy.parts_every, step) or every(policy.quality_every, step)
        )

    def before_update(self, step: int, update_step: UpdateStep) -> None:
        """Prepare diagnostics between backward and clipping of ``step`` (the first is 1)."""
        self._watching = self._is_rank0 and every(self._config.diagnostics.parts_every, step)
        if self._watching:
            self._parts.before_update(update_step.loss_scale)

    def after_update(
        self, step: int, update_step: UpdateStep, batch: Batch, unwrapped_loss: OwnLoss
    ) -> dict[str, Tensor]:
        """Return the step's further metrics, as 0-d tensors on the device."""
        policy = self._config.diagnostics
        values: dict[str, Tensor] = {}
        if self._config.skip_step.enabled or update_step.loss_scale is not None:
            # A copy: the count may change before the metrics logger reads it.
            values["train/skipped_steps"] = update_step.skipped.clone()
        if update_step.loss_scale is not None:
            values["train/loss_scale"] = update_step.loss_scale.clone()
        if self._overflows is not None and every(policy.log_every, step):
            values["train/compression_overflows"] = self._overflows.sum()
        if self._watching:
            values |= self._parts.after_update()
        if self._is_rank0 and every(policy.quality_every, step):
            values |= quality(
                self._model,
                *batch,
                tokens=policy.quality_tokens,
                unwrapped_loss=self._at_no_cost(unwrapped_loss),
                make_input=self._make_input,
            )
        return values

    def _at_no_cost(self, unwrapped_loss: OwnLoss) -> OwnLoss:
        """Make a loss that runs eagerly: a few sequences now and then do not justify a graph.

        It leaves FP8's histories as they are; otherwise diagnostics would change the training.
        """

        def run(inputs: Tensor, targets: Tensor) -> Tensor:
            with without_compiling(), unmoved_fp8_state(self._model):
                return unwrapped_loss(inputs, targets)

        return run

    def write_sample(self, step: int) -> Sample | None:
        """Sample a text from the model if one is due."""
        policy = self._config.diagnostics.sample
        if not self._is_rank0 or not every(policy.every, step):
            return None
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._config.data.tokenizer)
        tokenizer = self._tokenizer
        with self._precision.autocast():
            tokens = sample(
                self._model,
                [int(token) for token in tokenizer.encode(policy.prompt)],
                tokens=policy.tokens,
                temperature=policy.temperature,
                seed=self._config.seed,
                longest=min(
                    self._config.model.max_sequence_length, self._config.batch.longest_sequence
                ),
            )
        # A model's vocabulary may be larger than its tokenizer's: such tokens have no text.
        known = [token for token in tokens.tolist() if token < tokenizer.vocab_size]
        return Sample(
            time=time.time(), step=step, prompt=policy.prompt, text=tokenizer.decode(known)
        )
