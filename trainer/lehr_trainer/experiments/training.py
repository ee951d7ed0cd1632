"""What a row measures: the trainer's own ``TrainStep``, without a run around it."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.diagnostics.diagnostics_logger import Batch
from lehr_trainer.diagnostics.profiling import Profiler
from lehr_trainer.experiments import memory
from lehr_trainer.models.attention import attention_backend
from lehr_trainer.models.documents import make_input_fn
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.step_parts import build_parts, prepare_model
from lehr_trainer.train import TrainStep

WARM_UP_STEPS = 2
_EOS = 0
"""The token that ends a document, where documents are masked."""
_DOCUMENT = 512
"""Mean length of these documents."""


class RandomBatches:
    """Random tokens of a rank, drawn on its device: the same for every row of a batch's shape.

    The micro-batches of a step are drawn together, so accumulation does not change the tokens.
    """

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        batch = config.batch
        sequences = batch.sequences // ranks.world_size
        self._shape = (sequences, batch.sequence_length)
        self._micro_batch = batch.micro_batch or sequences
        self._vocab_size = config.model.vocab_size
        self._masked = config.attention.document_masking
        self._generator = torch.Generator(ranks.device).manual_seed(config.seed + ranks.rank)
        self._step: list[Batch] = []

    def micro_steps(self, _step: int) -> int:
        return self._shape[0] // self._micro_batch

    def batch(self, _step: int, micro_step: int) -> Batch:
        if micro_step == 0:
            parts = torch.split(self._draw(), self._micro_batch)
            self._step = [(part, part) for part in parts]
        return self._step[micro_step]

    def _draw(self) -> Tensor:
        where: dict[str, Any] = {"generator": self._generator, "device": self._generator.device}
        tokens = torch.randint(0, self._vocab_size, self._shape, **where)
        if self._masked:
            tokens.masked_fill_(torch.rand(self._shape, **where) < 1 / _DOCUMENT, _EOS)
        return tokens


class BenchTraining:
    """A ``TrainStep`` over random tokens: no loggers, no checkpoints, no validation."""

    def __init__(self, values: dict[str, Any]) -> None:
        config = TrainConfig.model_validate(values)
        ranks = Ranks.join(config.device)
        config = config.on(ranks.device.type)
        self.device = ranks.device
        precision = Precision.choose(config.precision, self.device)
        self._batches = RandomBatches(config, ranks)
        parts = build_parts(config, ranks, precision)
        model = parts.model
        accumulation = prepare_model(model, config, ranks)
        self._step = TrainStep(
            config=config,
            ranks=ranks,
            precision=precision,
            model=model,
            wrapped=ranks.wrap_ddp(model, config.parallel, already_scaled=precision.scales_loss),
            make_input=make_input_fn(_EOS if config.attention.document_masking else None),
            loss=parts.loss,
            optimizer=parts.optimizer,
            update_step=parts.update_step,
            accumulation=accumulation,
            profiler=Profiler(config.profile, Path(), rank=0, device=self.device, log=print),
        )
        model.train()
        self._open = ExitStack()
        self._open.enter_context(attention_backend(config.attention, self.device))
        self._losses: list[Tensor] = []
        # These compile, allocate and fill caches.
        self.steps(WARM_UP_STEPS)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def steps(self, count: int) -> None:
        for _ in range(count):
            loss, _ = self._step.backward(len(self._losses), self._batches)
            self._step.update(loss)
            self._losses.append(loss)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def turn(self, steps: int) -> dict[str, float]:
        """Return the seconds a step: by the clock, and of processor time over all threads."""
        began = time.perf_counter(), time.process_time()
        self.steps(steps)
        return {
            "seconds": (time.perf_counter() - began[0]) / steps,
            "cpu_seconds": (time.process_time() - began[1]) / steps,
        }

    def facts(self) -> dict[str, Any]:
        """Return the losses so far and the number of ranks, and the memory of one more step."""
        losses = torch.stack(self._losses).tolist()
        graphs = self._step.config.compile.cuda_graphs
        taken = memory.measure(lambda: self.steps(1), self._held(), self.device, cuda_graphs=graphs)
        return {"losses": losses, "world_size": self._step.ranks.world_size, **taken}

    def _held(self) -> list[Tensor]:
        """Return all tensors that exist between steps."""
        parameters = list(self._step.model.parameters())
        held = [*parameters, *self._step.model.buffers()]
        held += [p.grad for p in parameters if p.grad is not None]
        for state in self._step.optimizer.state.values():
            for value in filter(torch.is_tensor, state.values()):
                parts = [getattr(value, name, None) for name in ("codes", "scale", "qmap")]
                held += [part for part in parts if isinstance(part, Tensor)] or [value]
        return held
