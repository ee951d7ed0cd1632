"""Benchmark of one cross entropy: its error against float64, time and memory."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.experiments import memory
from lehr_trainer.experiments.case import Case
from lehr_trainer.losses.variants import build_loss
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision

_JUDGED_ROWS = 2048
"""Rows that are compared with float64: its logits would not fit for a whole batch."""


class LossSubject:
    """Rows of hidden states, a head and targets, the same for every loss."""

    def __init__(self, case: Case) -> None:
        config = TrainConfig.model_validate(case.config)
        self.device = Ranks.join(config.device).device
        config = config.on(self.device.type)
        precision = Precision.choose(config.precision, self.device)
        self.loss = build_loss(config.loss, precision.operands, self.device)
        model, rows = config.model, config.tokens_per_step
        draw = torch.Generator(self.device).manual_seed(config.seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=draw, device=self.device)

        # Values that the operands' dtype holds exactly, so that the loss is judged, not rounding.
        self.weight = 0.02 * normal(model.vocab_size, model.hidden_size)
        self.hidden = normal(rows, model.hidden_size)
        for tensor in (self.weight, self.hidden):
            tensor.copy_(tensor.to(precision.operands)).requires_grad_()
        self.targets = torch.randint(
            0, model.vocab_size, (rows,), generator=draw, device=self.device
        )

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.hidden.grad = self.weight.grad = None
            torch.autograd.backward(self.loss(self.hidden, self.weight, self.targets))

    def facts(self, _asked: dict[str, Any]) -> dict[str, Any]:
        self.hidden.grad = self.weight.grad = None
        held = [self.hidden, self.weight, self.targets]
        found: dict[str, Any] = memory.measure(lambda: self.steps(1), held, self.device)
        return found | self._errors()

    def _errors(self) -> dict[str, float]:
        """Compute the error of the value, in nats, and of both gradients, by norm, relative."""
        count = min(_JUDGED_ROWS, self.hidden.shape[0])
        hidden = self.hidden.detach()[:count].clone().requires_grad_()
        targets = self.targets[:count]
        wide = [t.detach().double().requires_grad_() for t in (hidden, self.weight)]
        exact = F.cross_entropy(wide[0] @ wide[1].T, targets)
        exact_grads = torch.autograd.grad(exact, wide)
        loss = self.loss(hidden, self.weight, targets)
        grads = torch.autograd.grad(loss, (hidden, self.weight))
        pairs = zip(grads, exact_grads, strict=True)
        errors = [float((g.double() - w).norm() / w.norm()) for g, w in pairs]
        return {
            "loss": float(loss),
            "value_error": abs(float(loss) - float(exact)),
            "hidden_error": errors[0],
            "weight_error": errors[1],
        }
