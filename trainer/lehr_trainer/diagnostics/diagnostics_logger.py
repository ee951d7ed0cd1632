"""Further metrics and samples at the config's intervals: statistics of parts, fp32 loss, a text.

Values stay on the device as 0-d tensors until the metrics logger fetches them; only a sample, which
is text, waits. None of it changes the training: no gradient, no random number, no module's mode.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract.records import Sample
from lehr_trainer.data.tokenizers import Tokenizer, load_tokenizer
from lehr_trainer.losses.chunked import IGNORED, soft_cap
from lehr_trainer.models.attention import diagnostic_kernels, without_compiling
from lehr_trainer.models.documents import InputFn, make_input_fn
from lehr_trainer.models.fp8 import unmoved_fp8_state
from lehr_trainer.models.module_map import Decoder, blocks, token_embedding
from lehr_trainer.runtime import sharding
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.update_step import UpdateStep

_LOGIT_ROWS = 256
"""Rows whose fp32 logits exist at once: 134 MB with 131,072 tokens."""


class ParameterStats:
    """Norm, gradient norm and update ratio of embedding, head, first and last layer.

    A tied head is the embedding and is not listed twice.
    """

    def __init__(self, model: Decoder) -> None:
        layers = blocks(model)
        embedding = token_embedding(model).weight
        parts: dict[str, list[Tensor]] = {"embedding": [embedding]}
        if model.head_weight is not embedding:
            parts["head"] = [model.head_weight]
        parts["first_layer"] = list(layers[0].parameters())
        parts["last_layer"] = list(layers[-1].parameters())
        own = sharding.own_parameters(model)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._model = model
        self._parts = {
            part: [own[names[id(weight)]] for weight in weights if names[id(weight)] in own]
            for part, weights in parts.items()
        }
        self._before: dict[str, list[Tensor]] = {}
        self._values: dict[str, Tensor] = {}

    @torch.no_grad()
    def before_update(self, loss_scale: Tensor | None = None) -> None:
        """Record unscaled gradient norms and copy the weights, between backward and clipping.

        The copy lasts until ``after_update``, when no activation exists: it adds nothing to the
        step's peak memory.
        """
        sharding.own_gradients(self._model)
        for part, weights in self._parts.items():
            norm = self._norm([w.grad for w in weights if w.grad is not None])
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
            was = self._norm(before[part])
            moved = [now - old for now, old in zip(weights, before.pop(part), strict=True)]
            values[f"params/{part}/norm"] = self._norm(weights)
            values[f"params/{part}/update_ratio"] = self._norm(moved) / was
        return values

    def _norm(self, tensors: Sequence[Tensor]) -> Tensor:
        return sharding.total_norm(self._model, tensors)


@torch.no_grad()
def quality(
    model: Decoder,
    inputs_BT: Tensor,
    targets_BT: Tensor,
    *,
    tokens: int,
    unwrapped_loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    make_input: InputFn = make_input_fn(None),  # noqa: B008 - a constant
) -> dict[str, Tensor]:
    """Compute ``top1_acc`` and ``raw_ce_fp32`` on the first sequences of a batch, all in fp32.

    They are means over the targets that are not ``IGNORED``, of about ``tokens`` tokens. fp32
    weights and inputs, no autocast, no TF32, no FP8, no compiled graph: the correct loss. If the
    training's own loss on the same tokens, ``loss_same_tokens``, differs, that one is wrong.
    ``model`` is not wrapped; ``unwrapped_loss`` is the training's forward and loss.
    """
    count = max(1, tokens // inputs_BT.shape[1])
    inputs, targets = inputs_BT[:count], targets_BT[:count]
    values: dict[str, Tensor] = {}
    with (
        _plain(model),
        sharding.gathered_in_fp32(model),
        _exact_products(),
        diagnostic_kernels(),
        torch.autocast(inputs.device.type, enabled=False),
    ):
        hidden = model(*make_input(inputs)).float().flatten(0, 1)
        head = model.head_weight  # After the forward pass: a sharded one is whole only then.
        flat = targets.flatten()
        total = torch.zeros((), device=inputs.device)
        correct = torch.zeros((), device=inputs.device)
        for begin in range(0, flat.numel(), _LOGIT_ROWS):
            chunk_targets = flat[begin : begin + _LOGIT_ROWS]
            logits = F.linear(hidden[begin : begin + _LOGIT_ROWS], head.float())
            logits = soft_cap(logits, model.config.logit_softcap)
            total += F.cross_entropy(logits, chunk_targets, reduction="sum", ignore_index=IGNORED)
            correct += (logits.argmax(-1) == chunk_targets).sum()
        counted = (flat != IGNORED).sum()
        values["raw_ce_fp32"] = total / counted
        values["top1_acc"] = correct / counted
    if unwrapped_loss is not None:
        values["loss_same_tokens"] = unwrapped_loss(inputs, targets).detach().float()
    return values


@torch.no_grad()
def sample(
    model: Decoder, prompt: list[int], *, tokens: int, temperature: float, seed: int, longest: int
) -> Tensor:
    """Sample ``tokens`` tokens after the last ``longest`` of ``prompt``, on the model's device.

    ``model`` is not wrapped, and in autocast if the caller opened it. Temperature 0 takes the
    likeliest token each time. ``seed`` is of the sample's own generator.
    """
    device = model.head_weight.device
    generator = torch.Generator(device).manual_seed(seed)
    written = torch.tensor([prompt], dtype=torch.int64, device=device)
    with _plain(model), diagnostic_kernels():
        for _ in range(tokens):
            last_BD = model(written[:, -longest:])[:, -1]
            logits_BV = F.linear(last_BD.float(), model.head_weight.float())
            logits_BV = soft_cap(logits_BV, model.config.logit_softcap)
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
        sharding.give_up_whole(model)


@contextmanager
def _exact_products() -> Iterator[None]:
    """Compute fp32 matrix products without TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


Batch = tuple[Tensor, Tensor]
OwnLoss = Callable[[Tensor, Tensor], Tensor]


def every(interval: int, step: int) -> bool:
    return interval > 0 and step % interval == 0


class DiagnosticsLogger:
    """Rank 0's diagnostics. Ranks that hold the same weights do nothing; those with other parts of
    them compute with it.
    """

    def __init__(
        self,
        config: TrainConfig,
        model: Decoder,
        *,
        make_input: InputFn,
        precision: Precision,
        is_rank0: bool,
        compression_overflows: Tensor | None = None,
    ) -> None:
        self._config, self._model, self._make_input = config, model, make_input
        self._precision = precision
        self._takes_part = is_rank0 or sharding.shards_of(model) is not None
        self._parts = ParameterStats(model)
        self._watching = False
        self._overflows = compression_overflows
        self._tokenizer: Tokenizer | None = None

    def enter(self, config: TrainConfig, make_input: InputFn) -> None:
        """Go on with the config of another stage."""
        self._config, self._make_input = config, make_input

    def due(self, step: int) -> bool:
        """Whether parts or quality are measured in ``step`` (the first is 1)."""
        policy = self._config.diagnostics
        return self._takes_part and (
            every(policy.parts_every, step) or every(policy.quality_every, step)
        )

    def before_update(self, step: int, update_step: UpdateStep) -> None:
        """Prepare diagnostics between backward and clipping of ``step`` (the first is 1)."""
        self._watching = self._takes_part and every(self._config.diagnostics.parts_every, step)
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
        if self._takes_part and every(policy.quality_every, step):
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
        if not self._takes_part or not every(policy.every, step):
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
