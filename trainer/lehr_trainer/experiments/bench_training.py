"""Benchmark of whole training steps, by the trainer's own ``TrainStep``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.diagnostics.profiling import Profiler
from lehr_trainer.experiments import launches, memory
from lehr_trainer.experiments.batch_makers import EOS, step_batches
from lehr_trainer.experiments.case import Case
from lehr_trainer.models.attention import attention_backend
from lehr_trainer.models.documents import make_input_fn
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.step_parts import build_parts, prepare_model
from lehr_trainer.train import TrainStep


class TrainingSubject:
    """A ``TrainStep`` without a run around it: no loggers, no checkpoints, no validation."""

    def __init__(self, case: Case) -> None:
        config = TrainConfig.model_validate(case.config)
        ranks = Ranks.join(config.device)
        config = config.on(ranks.device.type)
        self.device = ranks.device
        precision = Precision.choose(config.precision, self.device)
        self._batches = step_batches(case.batches, config, self.device, ranks)
        parts = build_parts(config, ranks, precision)
        model = parts.model
        accumulation = prepare_model(model, config, ranks)
        wrapped = ranks.wrap_ddp(model, config.parallel, already_scaled=precision.scales_loss)
        masked = config.attention.document_masking
        self._step = TrainStep(
            config=config,
            ranks=ranks,
            precision=precision,
            model=model,
            wrapped=wrapped,
            make_input=make_input_fn(EOS if masked else None),
            loss=parts.loss,
            optimizer=parts.optimizer,
            update_step=parts.update_step,
            accumulation=accumulation,
            profiler=Profiler(config.profile, Path(), rank=0, device=self.device, log=print),
        )
        model.train()
        self._open = ExitStack()
        self._open.enter_context(attention_backend(config.attention, self.device))
        self.losses: list[Tensor] = []

    def steps(self, count: int) -> None:
        for _ in range(count):
            self._take_step()

    def _take_step(self) -> None:
        loss, _ = self._step.backward(len(self.losses), self._batches)
        self._step.update(loss)
        self.losses.append(loss)

    def facts(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the losses so far, then memory and, if requested, kernels of further steps."""
        losses = torch.stack(self.losses).tolist()
        found: dict[str, Any] = {
            "losses": losses,
            "state_bytes": self._state_bytes(),
            "world_size": self._step.ranks.world_size,
        }
        graphs = self._step.config.compile.cuda_graphs
        found |= memory.measure(self._take_step, self._held(), self.device, cuda_graphs=graphs)
        if asked.get("launches"):
            found |= launches.count(self._take_step, self.device)
        return found

    def _held(self) -> list[Tensor]:
        parameters = list(self._step.model.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        return [*parameters, *self._step.model.buffers(), *gradients, *self._state()]

    def _state(self) -> list[Tensor]:
        found: list[Tensor] = []
        for state in self._step.optimizer.state.values():
            for value in state.values():
                if not isinstance(value, Tensor):
                    continue
                parts = [getattr(value, name, None) for name in ("codes", "scale", "qmap")]
                inner = [part for part in parts if isinstance(part, Tensor)]
                found += inner or [value]
        return found

    def _state_bytes(self) -> int:
        return memory.held_bytes(self._state())
