"""Diagnostic metrics: statistics of the model's parts, cross entropy in fp32, a text sample.

Everything stays on the device as 0-d tensors until the metrics logger fetches it; nothing here
waits. None of it changes the training: no gradient, no random number, no module's mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lehr_trainer.models.attention import diagnostic_kernels, without_compiling
from lehr_trainer.models.documents import InputFn, make_input_fn
from lehr_trainer.models.module_map import blocks, token_embedding

_LOGIT_ROWS = 256
"""Rows whose fp32 logits exist at once: 134 MB with 131,072 tokens."""


class ParameterStats:
    """Norm, gradient norm and update ratio of embedding, head, first and last layer.

    A tied head is the embedding and is not listed twice.
    """

    def __init__(self, model: nn.Module) -> None:
        layers = blocks(model)
        embedding = [token_embedding(model).weight]
        parts: dict[str, list[Tensor]] = {"embedding": list(embedding)}
        head = model.head_weight
        assert isinstance(head, Tensor)
        if head is not embedding[0]:
            parts["head"] = [head]
        parts["first_layer"] = list(layers[0].parameters())
        parts["last_layer"] = list(layers[-1].parameters())
        self._parts = parts
        self._before: dict[str, list[Tensor]] = {}
        self._values: dict[str, Tensor] = {}

    @torch.no_grad()
    def before_update(self, loss_scale: Tensor | None = None) -> None:
        """Record unscaled gradient norms and copy the weights, between backward and clipping.

        The copy lasts until ``after_update``, when no activation exists: it adds nothing to the
        step's peak memory.
        """
        for part, weights in self._parts.items():
            norm = _norm([w.grad for w in weights if w.grad is not None])
            if loss_scale is not None:
                norm = norm / loss_scale
            self._values[f"params/{part}/grad_norm"] = norm
            self._before[part] = [weight.clone() for weight in weights]

    @torch.no_grad()
    def after_update(self) -> dict[str, Tensor]:
        """Return ``params/<part>/{norm,grad_norm,update_ratio}``, after the optimizer's step."""
        values, self._values = self._values, {}
        before, self._before = self._before, {}
        for part, weights in self._parts.items():
            was = _norm(before[part])
            moved = _norm(torch._foreach_sub(weights, before.pop(part)))  # noqa: SLF001
            values[f"params/{part}/norm"] = _norm(weights)
            values[f"params/{part}/update_ratio"] = moved / was
        return values


def _norm(tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    each = torch._foreach_norm(list(tensors))  # noqa: SLF001 - many as one
    norm: Tensor = torch.linalg.vector_norm(torch.stack(each))
    return norm


@torch.no_grad()
def quality(
    model: nn.Module,
    inputs_BT: Tensor,
    targets_BT: Tensor,
    *,
    tokens: int,
    unwrapped_loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    make_input: InputFn = make_input_fn(None),  # noqa: B008 - a constant
) -> dict[str, Tensor]:
    """Compute ``top1_acc`` and ``raw_ce_fp32`` on the first sequences of a batch, all in fp32.

    fp32 weights and inputs, no autocast, no TF32, no FP8, no compiled graph: the correct loss. If
    the training's own loss on the same tokens, ``loss_same_tokens``, differs, that one is wrong.

    Args:
        model: the model itself, not wrapped.
        inputs_BT: of a batch; at least one sequence is used.
        targets_BT: the same batch's.
        tokens: how many tokens to look at.
        unwrapped_loss: the training's forward and loss, ``(inputs, targets) -> loss``.
        make_input: what the model is called with.
    """
    count = max(1, tokens // inputs_BT.shape[1])
    inputs, targets = inputs_BT[:count], targets_BT[:count]
    values: dict[str, Tensor] = {}
    with (
        _plain(model),
        _exact_products(),
        diagnostic_kernels(),
        torch.autocast(inputs.device.type, enabled=False),
    ):
        head = model.head_weight
        assert isinstance(head, Tensor)
        hidden = model(*make_input(inputs)).float().flatten(0, 1)
        flat = targets.flatten()
        total = torch.zeros((), device=inputs.device)
        correct = torch.zeros((), device=inputs.device)
        for begin in range(0, flat.numel(), _LOGIT_ROWS):
            chunk_targets = flat[begin : begin + _LOGIT_ROWS]
            logits = F.linear(hidden[begin : begin + _LOGIT_ROWS], head.float())
            total += F.cross_entropy(logits, chunk_targets, reduction="sum")
            correct += (logits.argmax(-1) == chunk_targets).sum()
        values["raw_ce_fp32"] = total / flat.numel()
        values["top1_acc"] = correct / flat.numel()
    if unwrapped_loss is not None:
        values["loss_same_tokens"] = unwrapped_loss(inputs, targets).detach().float()
    return values


@torch.no_grad()
def sample(
    model: nn.Module,
    prompt: list[int],
    *,
    tokens: int,
    temperature: float,
    seed: int,
    longest: int,
) -> Tensor:
    """Sample ``tokens`` tokens after ``prompt``, as a tensor on the model's device.

    Args:
        model: the model itself, not wrapped; in autocast if the caller opened it.
        prompt: token ids; the last ``longest`` are read.
        tokens: how many to write.
        temperature: 0 takes the likeliest each time.
        seed: of the sample's own generator.
        longest: the longest sequence that the model reads.
    """
    head = model.head_weight
    assert isinstance(head, Tensor)
    generator = torch.Generator(head.device).manual_seed(seed)
    written = torch.tensor([prompt], dtype=torch.int64, device=head.device)
    with _plain(model), diagnostic_kernels():
        for _ in range(tokens):
            last_BD = model(written[:, -longest:])[:, -1]
            logits_BV = F.linear(last_BD.float(), head.float())
            if temperature == 0:
                chosen = logits_BV.argmax(-1, keepdim=True)
            else:
                shares = (logits_BV / temperature).softmax(-1)
                chosen = torch.multinomial(shares, 1, generator=generator)
            written = torch.cat([written, chosen], dim=1)
    return written[0, len(prompt) :]


@contextmanager
def _plain(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode (so no FP8) without compiling, for a shape that occurs once."""
    was_training = model.training
    model.eval()
    try:
        with without_compiling():
            yield
    finally:
        model.train(was_training)


@contextmanager
def _exact_products() -> Iterator[None]:
    """Compute fp32 matrix products without TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
