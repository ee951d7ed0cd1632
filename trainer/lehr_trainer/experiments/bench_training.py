"""A training without a run: the trainer's own parts, in the order of ``Training.take_step``."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.experiments import launches, memory
from lehr_trainer.experiments.batch_makers import step_batches
from lehr_trainer.experiments.case import Case
from lehr_trainer.losses.variants import build_loss
from lehr_trainer.models import build_model
from lehr_trainer.models.activation_checkpointing import recompute_activations
from lehr_trainer.models.attention import attention_backend
from lehr_trainer.models.fp8 import convert_to_fp8
from lehr_trainer.optim import build_optimizer
from lehr_trainer.runtime.compiling import Accumulation, compile_model
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.update_step import UpdateStep


class TrainingSubject:
    def __init__(self, case: Case) -> None:
        config = TrainConfig.model_validate(case.config)
        self.device = Ranks.join(config.device).device
        if self.device.type == "cpu" and config.compile.scope != "none":
            _name_generated_kernels()
        self.config = config
        self.precision = Precision.choose(config.precision, self.device)
        self._batches = step_batches(case.batches, config, self.device)
        self.model = build_model(config.model, device=self.device, seed=config.seed)
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self.updates = UpdateStep(
            self.device,
            loss_scale=config.precision.loss_scale if self.precision.scales_loss else None,
            skip_step=config.skip_step,
        )
        self.loss = build_loss(config.loss, self.precision.operands, self.device)
        convert_to_fp8(self.model, config.precision.fp8)
        recompute_activations(self.model, config.activation_checkpointing)
        compile_model(self.model, config.compile)
        self.accumulation = Accumulation(self.model, config.compile)
        self.model.train()
        self._open = ExitStack()
        self._open.enter_context(attention_backend(config.attention, self.device))
        self.losses: list[Tensor] = []

    def steps(self, count: int) -> None:
        for _ in range(count):
            self._step()

    def _step(self) -> None:
        micro_batches = self._batches(len(self.losses))
        total = torch.zeros((), device=self.device)
        for inputs, targets in micro_batches:
            self.accumulation.begin_micro_step()
            with self.precision.autocast():
                hidden = self.model(inputs)
            part = self.loss(hidden, self.model.head_weight, targets)
            torch.autograd.backward(self.updates.scaled(part / len(micro_batches)))
            total += part.detach() / len(micro_batches)
        grad_norm = self.updates.clip(self.model.parameters(), self.config.grad_clip)
        self.updates.step(self.optimizer, total, grad_norm)
        self.accumulation.clear(self.optimizer)
        self.losses.append(total)

    def facts(self, asked: dict[str, Any]) -> dict[str, Any]:
        """The losses so far; then memory and, if asked for, kernels, each in a further step."""
        losses = torch.stack(self.losses).tolist()
        found: dict[str, Any] = {"losses": losses, "state_bytes": self._state_bytes()}
        found |= memory.measure(self._step, self._held(), self.device)
        if asked.get("launches"):
            found |= launches.count(self._step, self.device)
        return found

    def _held(self) -> list[Tensor]:
        parameters = list(self.model.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        return [*parameters, *self.model.buffers(), *gradients, *self._state()]

    def _state(self) -> list[Tensor]:
        found: list[Tensor] = []
        for state in self.optimizer.state.values():
            for value in state.values():
                if not isinstance(value, Tensor):
                    continue
                parts = [getattr(value, name, None) for name in ("codes", "scale", "qmap")]
                inner = [part for part in parts if isinstance(part, Tensor)]
                found += inner or [value]
        return found

    def _state_bytes(self) -> int:
        return memory.held_bytes(self._state())


def _name_generated_kernels() -> None:
    """So that a profile shows each kernel that inductor wrote for the CPU."""
    from torch._inductor import config as inductor

    inductor.cpp.enable_kernel_profile = True
