"""What the chunked loss does between its matrix products: softmax, loss, gradient of the logits.

A chunk's fp32 logits are 1 GB, so this part is bound by memory. Run operation by operation it moves
about eight times that; compiled, it reads the logits for the rows' sums and once more for the
gradient, which it writes already rounded. The operations are the oracle of the compiled form.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Pointwise = Callable[[Tensor, Tensor, float, torch.dtype], tuple[Tensor, Tensor]]
"""(logits [R, V] in fp32, targets [R, 1], lift, dtype) -> (sum of losses, gradient [R, V]).

The gradient is ``lift`` times d(sum)/d(logits), rounded to the dtype. The caller
drops the logits."""


def eager(
    logits: Tensor, targets: Tensor, lift: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute operation by operation, the gradient in the log-softmax's place."""
    log_probs = F.log_softmax(logits, dim=-1)
    target_log_prob = log_probs.gather(-1, targets)
    # d(sum of losses)/d(logits) = softmax - onehot(target)
    gradient = log_probs.exp_().scatter_(-1, targets, target_log_prob.exp() - 1.0)
    if lift != 1.0:
        gradient.mul_(lift)
    return -target_log_prob.sum(), gradient.to(dtype)


def fusible(
    logits: Tensor, targets: Tensor, lift: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Compute the same with no intermediate as large as the logits, once it is compiled.

    The logarithm of the sum stays apart from the maximum: added, it would lose the last digits of a
    confident prediction.
    """
    largest = logits.amax(-1, keepdim=True)
    log_sum = (logits - largest).exp().sum(-1, keepdim=True).log()
    target_log_prob = logits.gather(-1, targets) - largest - log_sum
    words = torch.arange(logits.shape[-1], device=logits.device)
    onehot = (words == targets).to(logits.dtype)
    gradient = (logits - largest - log_sum).exp() - onehot
    return -target_log_prob.sum(), (gradient * lift).to(dtype)


@functools.cache
def compiled() -> Pointwise:
    """Compile ``fusible``, once a process; each shape of a chunk gets kernels of its own."""
    return torch.compile(fusible, dynamic=False, fullgraph=True)
