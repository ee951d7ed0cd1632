"""The cross entropy of the head, in fp32, without ever holding all logits.

Softmax, sum and scalar are always fp32, also while the model runs in autocast; the
head's product takes operands in the compute dtype and gives fp32 results. Logits live in
chunks of rows: [64, 2048] against 131,072 tokens would be 69 GB of fp32 at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORED = -100
"""A target that has weight 0, as in ``F.cross_entropy`` and in the data of ``transformers``."""


@dataclass(frozen=True)
class LossSum:
    """The loss of a batch, not yet divided: only the step knows how many tokens count in all."""

    total: Tensor
    """Sum of the tokens' losses by their weights, in nats, and of the z-loss: an fp32 scalar."""
    count: Tensor | int
    """Sum of the weights; 1 for a loss that gives only its mean, which is then the ``total``."""
    z_loss: Tensor | None = None
    """The part of ``total`` that is z-loss, without a gradient; None if there is none."""

    @property
    def mean(self) -> Tensor:
        """The mean cross entropy."""
        total = self.total if self.z_loss is None else self.total - self.z_loss
        return total / self.count


Pointwise = Callable[
    [Tensor, Tensor, float, torch.dtype, Tensor | None, float, float | None],
    tuple[Tensor, Tensor, Tensor | None],
]
"""What happens between the matrix products.

It is given the logits [R, V] in fp32, which may be overwritten, the targets [R, 1], a factor of the
gradient and its dtype, the weights [R, 1] of the rows in both sums (None weighs all alike), the
coefficient of the z-loss and the bound of ``soft_cap``. It returns the sum of the cross entropies,
the gradient [R, V], and the sum of z-losses, None with a coefficient of 0.

The gradient is the factor times d(losses of the rows)/d(logits), rounded to the dtype; the caller
applies weights to rows of the hidden states, which are fewer, and drops the logits. A chunk's
fp32 logits are 1 GB, so this is bound by memory. Operation by operation it moves about eight
times that; compiled, it reads the logits for the rows' sums and once more for the gradient,
which it writes already rounded.
"""


def weighted_sum(values: Tensor, weights: Tensor | None) -> Tensor:
    return values.sum() if weights is None else (values * weights).sum()


def usable(targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return targets that all are words, and weights that are 0 where they were ``IGNORED``.

    Without weights nothing is ignored, and both stay as they are.
    """
    if weights is None:
        return targets, None
    ignored = targets == IGNORED
    return targets.masked_fill(ignored, 0), weights.float().masked_fill(ignored, 0.0)


def soft_cap(logits: Tensor, cap: float | None) -> Tensor:
    """Bound logits by ``cap`` x tanh(logit / ``cap``) in place; None leaves them as they are."""
    return logits.div_(cap).tanh_().mul_(cap) if cap else logits


def pointwise_eager(
    logits: Tensor,
    targets: Tensor,
    lift: float,
    dtype: torch.dtype,
    weights: Tensor | None,
    z: float,
    cap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute operation by operation, the gradient in the log-softmax's place."""
    logits = soft_cap(logits, cap)
    log_probs = F.log_softmax(logits, dim=-1)
    target_log_prob = log_probs.gather(-1, targets)
    # d(sum of losses)/d(logits) = softmax - onehot(target)
    gradient, of_target = log_probs.exp_(), target_log_prob.exp()
    squares = None
    if z:
        log_sum = logits.gather(-1, targets) - target_log_prob
        # d(z log_sum^2)/d(logits) = 2 z log_sum softmax
        growth = 1.0 + 2.0 * z * log_sum
        gradient, of_target = gradient.mul_(growth), of_target * growth
        squares = z * weighted_sum(log_sum.square(), weights)
    gradient.scatter_(-1, targets, of_target - 1.0)
    if cap:  # d(cap tanh(l / cap))/dl = 1 - tanh^2
        gradient.mul_(logits.div_(cap).square_().neg_().add_(1.0))
    if lift != 1.0:
        gradient.mul_(lift)
    return -weighted_sum(target_log_prob, weights), gradient.to(dtype), squares


def pointwise_fusible(
    logits: Tensor,
    targets: Tensor,
    lift: float,
    dtype: torch.dtype,
    weights: Tensor | None,
    z: float,
    cap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Compute the same with no intermediate as large as the logits, once it is compiled.

    The logarithm of the sum stays apart from the maximum: added, it would lose the last digits of a
    confident prediction.
    """
    if cap:
        logits = cap * torch.tanh(logits / cap)
    largest = logits.amax(-1, keepdim=True)
    log_sum = (logits - largest).exp().sum(-1, keepdim=True).log()
    target_log_prob = logits.gather(-1, targets) - largest - log_sum
    words = torch.arange(logits.shape[-1], device=logits.device)
    onehot = (words == targets).to(logits.dtype)
    softmax, squares = (logits - largest - log_sum).exp(), None
    if z:
        whole = largest + log_sum
        softmax = softmax * (1.0 + 2.0 * z * whole)
        squares = z * weighted_sum(whole.square(), weights)
    gradient = softmax - onehot
    if cap:
        gradient = gradient * (1.0 - (logits / cap).square())
    return -weighted_sum(target_log_prob, weights), (gradient * lift).to(dtype), squares


@functools.cache
def pointwise_compiled() -> Pointwise:
    """Compile it, once a process; each shape of a chunk gets kernels of its own."""
    return torch.compile(pointwise_fusible, dynamic=False, fullgraph=True)


CHUNK_BYTES = 2**30
"""Most that the fp32 logits of one chunk take: 2,048 rows of 131,072 tokens."""

_LIFT = 2.0**15
"""Factor of the logits' gradient before it is rounded to fp16. Without it, most of the 131,072
words' probabilities are below fp16's smallest number (6e-8) and the gradients of their rows off by
up to 44 %. The gradient is at most 1, so nothing overflows, and a power of two rounds nothing."""


def summed_cross_entropy(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    *,
    operands: torch.dtype = torch.float32,
    chunk_bytes: int = CHUNK_BYTES,
    between: Pointwise = pointwise_eager,
    pad_to: int = 1,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> LossSum:
    """Compute the negative log-likelihood of ``targets``, as ``TokenLoss`` states it.

    Args:
        hidden: [..., H], the model's last states.
        head_weight: [V, H].
        targets: [...], token ids; with weights also ``IGNORED``.
        weights: [...], of each target's loss; None weighs all alike.
        operands: what the head's product rounds its operands to; its sums are fp32.
        chunk_bytes: bound on the fp32 logits that exist at once.
        between: what is done to the logits, eager or compiled.
        pad_to: with 16-bit operands the products have a multiple of so many words. Their fast
            kernels want rows that start at a multiple of 16 bytes, and GPT-2 has 50,257 words. The
            words added have probability 0.
        z_loss: coefficient of the squared logarithm of the softmax's denominator, which the total
            has where gradients are enabled.
        softcap: the bound of ``soft_cap``; with it nothing is padded for training.
    """
    rows = hidden.reshape(-1, hidden.shape[-1])
    flat, of_rows = usable(targets.reshape(-1), None if weights is None else weights.reshape(-1))
    count: Tensor | int = flat.numel() if of_rows is None else of_rows.sum()
    # In no_grad mode, as in a diagnostic, parameters still require gradients.
    if torch.is_grad_enabled() and (hidden.requires_grad or head_weight.requires_grad):
        total, of_z = _SummedCrossEntropy.apply(  # type: ignore[no-untyped-call]
            rows,
            head_weight,
            flat,
            of_rows,
            operands,
            chunk_bytes,
            between,
            1 if softcap else pad_to,  # A padded word would get a logit of -softcap.
            z_loss,
            softcap,
        )
        return LossSum(total, count, of_z)
    losses = token_losses(
        rows,
        head_weight,
        flat,
        operands=operands,
        chunk_bytes=chunk_bytes,
        pad_to=pad_to,
        softcap=softcap,
    )
    return LossSum(weighted_sum(losses, of_rows), count)


def cross_entropy(hidden: Tensor, head_weight: Tensor, targets: Tensor, **options: Any) -> Tensor:
    """Compute the mean of ``summed_cross_entropy``, with its arguments but ``z_loss``."""
    return summed_cross_entropy(hidden, head_weight, targets, **options).mean


@torch.no_grad()
def token_losses(
    hidden: Tensor,
    head_weight: Tensor,
    targets: Tensor,
    *,
    operands: torch.dtype = torch.float32,
    chunk_bytes: int = CHUNK_BYTES,
    pad_to: int = 1,
    greedy: Tensor | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Compute the loss of each target in nats, fp32 [...], without gradients.

    The arguments are those of ``summed_cross_entropy``; no target is ``IGNORED``. ``greedy``, bool
    [R], gets whether each target is the likeliest word.
    """
    rows, flat = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    losses = torch.empty(flat.shape, dtype=torch.float32, device=hidden.device)
    with torch.autocast(hidden.device.type, enabled=False):
        w = _operand(head_weight, operands, pad_to)
        for chunk in _chunks(rows.shape[0], w.shape[0], chunk_bytes):
            logits = soft_cap(fp32_product(rows[chunk].to(operands), w.t()), softcap)
            logits[:, head_weight.shape[0] :] = float("-inf")
            log_probabilities = F.log_softmax(logits, dim=-1)
            losses[chunk] = -log_probabilities.gather(-1, flat[chunk, None]).squeeze(-1)
            if greedy is not None:
                greedy[chunk] = log_probabilities.argmax(-1) == flat[chunk]
            # Otherwise they would live until the next chunk's logits exist beside them.
            del logits, log_probabilities
    return losses.view(targets.shape)


class _SummedCrossEntropy(torch.autograd.Function):
    """Sum of losses over rows; forward makes both gradients while a chunk's logits exist.

    Recomputing them in backward would cost one more matrix product out of four. The gradients are
    those of the sum, so backward only scales them by the incoming gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        operands: torch.dtype,
        chunk_bytes: int,
        between: Pointwise,
        pad_to: int,
        z: float,
        cap: float | None,
    ) -> tuple[Tensor, Tensor | None]:
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        with torch.autocast(hidden.device.type, enabled=False):
            vocabulary = weight.shape[0]
            w = _operand(weight, operands, pad_to)
            ctx.lift = _LIFT if operands == torch.float16 else 1.0
            ctx.hidden_kind = hidden.dtype
            # fp16's range holds this gradient only once it is scaled, which backward does.
            wide = torch.float32 if hidden.dtype == torch.float16 else hidden.dtype
            grad_hidden = torch.empty_like(hidden, dtype=wide) if needs_hidden else None
            grad_weight = torch.zeros_like(w, dtype=weight.dtype) if needs_weight else None
            total = torch.zeros((), dtype=torch.float32, device=hidden.device)
            of_z = torch.zeros_like(total) if z else None
            for rows in _chunks(hidden.shape[0], w.shape[0], chunk_bytes):
                x, target = hidden[rows].to(operands), targets[rows, None]
                of_rows = None if weights is None else weights[rows, None]
                logits = fp32_product(x, w.t())
                logits[:, vocabulary:] = float("-inf")
                loss, grad_logits, squares = between(
                    logits, target, ctx.lift, operands, of_rows, z, cap
                )
                # Otherwise they would live until the next chunk's logits exist beside them.
                del logits
                total += loss
                if of_z is not None and squares is not None:
                    of_z += squares
                if grad_hidden is not None:
                    of_hidden = fp32_product(grad_logits, w) / ctx.lift
                    grad_hidden[rows] = of_hidden if of_rows is None else of_hidden * of_rows
                    del of_hidden
                if of_rows is not None:
                    x = (x * of_rows).to(operands)
                if grad_weight is not None:
                    _add_product(grad_weight, grad_logits.t(), x)
                del grad_logits
            if grad_weight is not None:
                grad_weight = grad_weight[:vocabulary]
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.spent = False
        if of_z is None:
            return total, None
        ctx.mark_non_differentiable(of_z)
        return total + of_z, of_z

    @staticmethod
    def backward(ctx: Any, *from_above: Tensor) -> tuple[Tensor | None, ...]:
        scale = from_above[0]
        # Scaled in place, since a copy of the weight's gradient would take 1 GB just when memory is
        # scarcest; so it can be done only once.
        if ctx.spent:
            raise RuntimeError("the head's cross entropy cannot be differentiated twice")
        ctx.spent = True
        grad_hidden, grad_weight = ctx.saved_tensors
        if grad_hidden is not None:
            grad_hidden = grad_hidden.mul_(scale).to(ctx.hidden_kind)
        if grad_weight is not None:
            grad_weight.mul_(scale / ctx.lift)
        return grad_hidden, grad_weight, *[None] * 8


def _operand(weight: Tensor, operands: torch.dtype, pad_to: int) -> Tensor:
    w = weight.to(operands)
    padded = operands.itemsize == 2 and len(w) % pad_to
    return F.pad(w, (0, 0, 0, -len(w) % pad_to)) if padded else w


def _chunks(rows: int, vocabulary: int, chunk_bytes: int) -> list[slice]:
    """Split rows into equal slices, as few as the bound allows."""
    most = max(1, chunk_bytes // (4 * vocabulary))
    count = -(-rows // most)
    size = -(-rows // max(1, count))
    return [slice(first, min(first + size, rows)) for first in range(0, rows, max(1, size))]


def fp32_product(a: Tensor, b: Tensor) -> Tensor:
    """Compute ``a @ b`` with fp32 sums and an fp32 result."""
    if a.dtype == torch.float32:
        return a @ b
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    # No such kernel on a CPU; products of 16-bit numbers are exact in fp32, so this is the same.
    return a.float() @ b.float()


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add ``a @ b`` to ``total`` in fp32."""
    if a.dtype == torch.float32:
        total.addmm_(a, b)
    elif a.is_cuda:
        torch.addmm(total, a, b, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(a.float(), b.float())
