"""Muon for matrices, AdamW for the rest, in one optimizer.

``torch.optim.Muon`` orthogonalises one matrix at a time; a decoder has few
shapes and many matrices of each, so here a shape's matrices go through the
Newton-Schulz iteration together. The formulas are torch's (and Keller Jordan's,
https://kellerjordan.github.io/posts/muon/); tests hold the two to each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from lehr_trainer.configs.optimizer import MuonConfig
from lehr_trainer.optim.groups import by_role

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_EPS = 1e-7


def build_muon(model: nn.Module, config: MuonConfig) -> Muon:
    """Build one optimizer over the groups ``matrix``, ``embedding``, ``head`` and ``vector``."""
    lists = by_role(model)
    config.check_tied(tie_embeddings=not lists["head"])
    rates = {
        "embedding": config.embedding_lr,
        "head": config.head_lr or config.embedding_lr,
        "vector": config.norm_lr or config.embedding_lr,
    }
    muon = {
        "name": "matrix",
        "params": lists["matrix"],
        "lr": config.lr,
        "peak_lr": config.lr,
        "weight_decay": config.weight_decay,
        "momentum": config.momentum,
        "nesterov": config.nesterov,
        "newton_schulz_steps": config.newton_schulz_steps,
        "adjust_lr": config.adjust_lr,
        "batch_bytes": config.batch_mb * 2**20,
    }
    adamw = [
        {
            "name": name,
            "params": lists[name],  # type: ignore[index]
            "lr": rate,
            "peak_lr": rate,
            "weight_decay": 0.0,
            "betas": config.betas,
            "eps": config.eps,
            "fused": config.fused,
        }
        for name, rate in rates.items()
    ]
    return Muon([group for group in (muon, *adamw) if group["params"]])


class Muon(torch.optim.Optimizer):
    """Updates groups that have ``momentum`` by Muon, the others by AdamW.

    Like fused AdamW, it obeys ``found_inf`` if that is set: where it is 1, on the device, weights
    and state stay as they are.
    """

    def __init__(self, groups: Iterable[dict[str, Any]]) -> None:
        super().__init__(groups, {})
        fused = all(group.get("fused", True) for group in self.param_groups)
        self._step_supports_amp_scaling = fused

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            (self._muon if "momentum" in group else self._adamw)(group)
        return loss

    def _muon(self, group: dict[str, Any]) -> None:
        lr, momentum = group["lr"], group["momentum"]
        for parameters in _batches(group["params"], group["batch_bytes"]):
            gradients = [p.grad for p in parameters if p.grad is not None]
            momenta = [self._buffer(p) for p in parameters]
            found_inf: Tensor | None = getattr(self, "found_inf", None)
            if found_inf is not None:
                # A gradient that is not finite must not even be multiplied by 0.
                unmoved = found_inf.bool()
                gradients = [
                    torch.where(unmoved, m, g) for g, m in zip(gradients, momenta, strict=True)
                ]
            torch._foreach_lerp_(momenta, gradients, 1 - momentum)
            directions = momenta
            if group["nesterov"]:
                directions = [g.lerp(m, momentum) for g, m in zip(gradients, momenta, strict=True)]
            update = orthogonalise(torch.stack(directions), group["newton_schulz_steps"])
            scale = lr * shape_factor(parameters[0].shape, group["adjust_lr"])
            decay = lr * group["weight_decay"]
            if found_inf is None:
                torch._foreach_mul_(parameters, 1 - decay)
            else:
                torch._foreach_mul_(parameters, 1 - decay * (1 - found_inf))
                update *= 1 - found_inf
            torch._foreach_add_(parameters, list(update.to(parameters[0].dtype)), alpha=-scale)

    def _buffer(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer: Tensor = state["momentum_buffer"]
        return buffer

    def _adamw(self, group: dict[str, Any]) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        for parameter in parameters:
            state = self.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
        states = [self.state[p] for p in parameters]
        adam(
            parameters,
            [p.grad for p in parameters if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            foreach=not group["fused"],
            capturable=not group["fused"] and bool(parameters) and parameters[0].is_cuda,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
            decoupled_weight_decay=True,
            found_inf=getattr(self, "found_inf", None),
        )


def _batches(parameters: Iterable[nn.Parameter], most_bytes: int) -> list[list[Tensor]]:
    """Group matrices that have a gradient by shape, as many in a batch as the bound allows."""
    alike: dict[tuple[Any, ...], list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            key = (parameter.shape, parameter.dtype, parameter.device)
            alike.setdefault(key, []).append(parameter)
    batches = []
    for members in alike.values():
        most = max(1, most_bytes // (2 * members[0].numel()))
        batches += [members[i : i + most] for i in range(0, len(members), most)]
    return batches


def orthogonalise(matrices_NRC: Tensor, steps: int) -> Tensor:
    """Replace each of N matrices by a matrix near its nearest semi-orthogonal one, in bf16.

    A quintic Newton-Schulz iteration: it drives every singular value to about 1 (0.5 to 1.5, by
    design), and keeps the singular vectors.
    """
    a, b, c = _COEFFICIENTS
    tall = matrices_NRC.shape[1] > matrices_NRC.shape[2]
    x = matrices_NRC.bfloat16()
    if tall:
        x = x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_EPS)
    for _ in range(steps):
        gram = x @ x.mT
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x.mT if tall else x


def shape_factor(shape: torch.Size, adjust_lr: str) -> float:
    """Return the factor by which a matrix's shape changes its rate (see MuonConfig.adjust_lr)."""
    rows, columns = shape
    if adjust_lr == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1, rows / columns))
