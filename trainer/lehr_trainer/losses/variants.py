"""The other cross entropies, each with the meaning of ``TokenLoss``.

``operands`` is the type to which the head's product rounds its operands. All but the two known-bad
variants return an fp32 scalar with fp32 softmax and sums. A package is imported only by the loss
that needs it.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from lehr_trainer.configs.loss import LossConfig
from lehr_trainer.errors import BadConfig
from lehr_trainer.extras import install
from lehr_trainer.losses.chunked import (
    IGNORED,
    LossSum,
    fp32_product,
    pointwise_compiled,
    pointwise_eager,
    summed_cross_entropy,
    usable,
    weighted_sum,
)


class TokenLoss(Protocol):
    """A loss of a batch: the negative log-likelihood of its targets in nats, and their number."""

    def __call__(
        self, hidden: Tensor, weight: Tensor, targets: Tensor, weights: Tensor | None = None, /
    ) -> LossSum:
        """Compute it, outside of autocast, of hidden states [..., H], the head's weight [V, H], and
        targets and weights [...], as ``summed_cross_entropy`` states them.
        """


MeanLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(hidden [..., H], head weight [V, H], targets [...]) -> mean loss, a scalar."""


def of_mean(mean: MeanLoss) -> TokenLoss:
    """Take a mean for the loss of one token: right where all batches have equally many.

    Such a loss cannot weigh tokens; a config that needs it is refused before.
    """
    return lambda hidden, weight, targets, _weights=None: LossSum(mean(hidden, weight, targets), 1)


def of_targets(loss: TokenLoss) -> TokenLoss:
    """Return the loss with a weight of 0 for each ``IGNORED`` target and 1 for the others."""
    return lambda hidden, weight, targets, _weights=None: loss(
        hidden, weight, targets, (targets != IGNORED).float()
    )


FAST_ROWS = 64
"""Words to a multiple of which a GPU's products are padded: 128 bytes of bf16."""


def build_loss(
    config: LossConfig, operands: torch.dtype, device: torch.device, softcap: float | None = None
) -> TokenLoss:
    """Build the config's loss; a ``pointwise`` that is not resolved is eager.

    ``softcap`` is the model's, for losses that take one.

    Raises:
        BadConfig: it cannot run on this device or in this precision, or its package is missing.
    """
    match config.name:
        case "chunked":
            return partial(
                summed_cross_entropy,
                operands=operands,
                chunk_bytes=config.chunk_mb * 2**20,
                between=(
                    pointwise_compiled() if config.pointwise == "compiled" else pointwise_eager
                ),
                pad_to=FAST_ROWS if device.type == "cuda" else 1,
                z_loss=config.z_loss,
                softcap=softcap,
            )
        case "standard":
            return partial(standard, operands=operands, z_loss=config.z_loss, softcap=softcap)
        case "torch_chunked":
            _torch_options()
            return of_mean(torch_chunked)
        case "liger":
            return of_mean(partial(_liger_loss(device), operands=operands))
        case "cce" | "cce_fp32" | "cce_kahan":
            if operands == torch.float32:
                raise BadConfig(
                    f"loss.name: {config.name} has no backward pass for fp32 operands; set "
                    "precision.compute to bf16 or fp16, or use chunked"
                )
            return partial(_cut_loss(config.name, device), operands=operands)
        case "in_autocast":
            return partial(in_autocast, operands=operands)
        case "bf16_softmax":
            return of_mean(bf16_softmax)


def _rows(hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)


# --- standard ------------------------------------------------------------------------------


def standard(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    *,
    operands: torch.dtype = torch.float32,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> LossSum:
    """Compute all logits at once, in fp32: the plain formula, and the most memory."""
    rows, flat = _rows(hidden, targets)
    with torch.autocast(hidden.device.type, enabled=False):
        logits: Tensor = _HeadProduct.apply(rows, weight, operands)  # type: ignore[no-untyped-call]
        if softcap:
            logits = softcap * torch.tanh(logits / softcap)
        return _sum_of(logits, flat, weights, z_loss)


def _sum_of(logits: Tensor, targets: Tensor, weights: Tensor | None, z: float = 0.0) -> LossSum:
    """Sum the losses of logits, [R, V]; ``weights`` has any shape of R values."""
    if weights is None and not z:
        return LossSum(F.cross_entropy(logits, targets, reduction="sum"), targets.numel())
    flat, of_rows = usable(targets, None if weights is None else weights.reshape(-1))
    losses = F.cross_entropy(logits, flat, reduction="none")
    total = weighted_sum(losses, of_rows)
    count: Tensor | int = flat.numel() if of_rows is None else of_rows.sum()
    if not z or not torch.is_grad_enabled():
        return LossSum(total, count)
    # By way of the loss: a logsumexp of its own would keep the logits, and has two gradients.
    log_sum = logits.gather(-1, flat[:, None]).squeeze(-1) + losses
    of_z = z * weighted_sum(log_sum.square(), of_rows)
    return LossSum(total + of_z, count, of_z.detach())


class _HeadProduct(torch.autograd.Function):
    """``hidden @ weight.T`` with rounded operands, fp32 sums and an fp32 result."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, operands: torch.dtype) -> Tensor:
        ctx.kinds = hidden.dtype, weight.dtype
        x, w = hidden.to(operands), weight.to(operands)
        ctx.save_for_backward(x, w)
        return fp32_product(x, w.t())

    @staticmethod
    def backward(ctx: Any, *from_above: Tensor) -> tuple[Tensor, Tensor, None]:
        x, w = ctx.saved_tensors
        grad_logits = from_above[0].to(x.dtype)
        hidden_kind, weight_kind = ctx.kinds
        return (
            fp32_product(grad_logits, w).to(hidden_kind),
            fp32_product(grad_logits.t(), x).to(weight_kind),
            None,
        )


# --- PyTorch's own chunked loss ------------------------------------------------------------


def torch_chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Call ``F.linear_cross_entropy`` in chunks, always on fp32 operands.

    With bf16 operands it returns a bf16 loss, whatever its accumulation dtype (10.69 to 11.00 by
    chunk size, against 11.029 in float64), so it never gets any. Where it falls back to all logits
    at once it only warns; here that is an error.
    """
    rows, flat = _rows(hidden, targets)
    with torch.autocast(hidden.device.type, enabled=False), warnings.catch_warnings():
        warnings.filterwarnings("error", message="linear_cross_entropy: ``options`` ignored")
        loss: Tensor = F.linear_cross_entropy(
            rows.float(), weight.float(), flat, options=_torch_options()
        )
        return loss


def _torch_options() -> Any:
    options = getattr(torch.nn, "LinearCrossEntropyOptions", None)
    if options is None:
        raise BadConfig(
            f"loss.name: torch_chunked needs torch 2.13's linear_cross_entropy; this is torch "
            f"{torch.__version__}. Use chunked"
        )
    return options(chunking_method="aspect_ratio:2", acc_policy="accurate")


# --- fused kernels from other packages -----------------------------------------------------


def _liger_loss(device: torch.device) -> Callable[..., Tensor]:
    """Load Liger's fused linear cross entropy, with gradients summed in fp32."""
    module = _package(
        "loss.name: liger", "liger_kernel.transformers.fused_linear_cross_entropy", device
    )
    fused = module.LigerFusedLinearCrossEntropyLoss(accum_dtype=torch.float32)

    def liger(
        hidden: Tensor, weight: Tensor, targets: Tensor, *, operands: torch.dtype = torch.float32
    ) -> Tensor:
        rows, flat = _rows(hidden, targets)
        with torch.autocast(hidden.device.type, enabled=False):
            loss: Tensor = fused(weight.to(operands), rows.to(operands), flat)
            return loss.float()

    return liger


_CUT_SUMS: dict[str, dict[str, Any]] = {
    "cce": {},
    "cce_fp32": {"accum_e_fp32": True, "accum_c_fp32": True},
    # By default gradients below an epsilon are dropped; for pretraining the head's are kept.
    "cce_kahan": {"impl": "cce_kahan_full_c"},
}


def _cut_loss(name: str, device: torch.device) -> Callable[..., LossSum]:
    """Load Apple's Cut Cross Entropy (arXiv:2411.09009) in one of its three accuracies."""
    module = _package(f"loss.name: {name}", "cut_cross_entropy", device)
    cut, options = module.linear_cross_entropy, _CUT_SUMS[name]
    known = inspect.signature(cut).parameters
    if name != "cce" and "accum_e_fp32" not in known:
        raise BadConfig(
            f"loss.name: {name} needs a newer cut-cross-entropy than the one installed, which has "
            'neither fp32 nor Kahan sums: pip install "cut-cross-entropy @ '
            'git+https://github.com/apple/ml-cross-entropy.git". Or use cce or chunked'
        )

    def cut_cross_entropy(
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        *,
        operands: torch.dtype = torch.float32,
    ) -> LossSum:
        rows, flat = _rows(hidden, targets)
        flat, of_rows = usable(flat, None if weights is None else weights.reshape(-1))
        with torch.autocast(hidden.device.type, enabled=False):
            # Token losses are summed here: its own sum would be rounded to the operands' dtype.
            each: Tensor = cut(
                rows.to(operands), weight.to(operands), flat, reduction="none", **options
            )
            count = flat.numel() if of_rows is None else of_rows.sum()
            return LossSum(weighted_sum(each.float(), of_rows), count)

    return cut_cross_entropy


def _package(field: str, module: str, device: torch.device) -> ModuleType:
    """Import a module of an optional package, whose Triton kernels need a CUDA GPU."""
    if device.type != "cuda":
        raise BadConfig(f"{field} needs a CUDA GPU, not {device.type}; use chunked or standard")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise BadConfig(
            f"{field} needs a package that cannot be imported ({error}): "
            f"{install('lehr[gpu]')}, or use chunked"
        ) from error


# --- for comparison only: losses with known numerical errors --------------------------------


def in_autocast(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    *,
    operands: torch.dtype = torch.bfloat16,
) -> LossSum:
    """Compute the head and ``cross_entropy`` under autocast, as in docs/reference-runs.md.

    Autocast itself promotes cross entropy to fp32, so only the logits are rounded.
    """
    rows, flat = _rows(hidden, targets)
    mixed = operands != torch.float32
    with torch.autocast(hidden.device.type, dtype=operands if mixed else None, enabled=mixed):
        return _sum_of(F.linear(rows, weight), flat, weights)


def bf16_softmax(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Compute logits, softmax and loss in bf16. Never train with it."""
    rows, flat = _rows(hidden, targets)
    with torch.autocast(hidden.device.type, enabled=False):
        logits = F.linear(rows.bfloat16(), weight.bfloat16())
        return F.nll_loss(logits.log_softmax(-1), flat)
