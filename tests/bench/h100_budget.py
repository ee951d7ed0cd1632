"""Where a step of llama-1b would spend its time on one H100: arithmetic, not a measurement.

Products run at 700 TFLOP/s, which a published compiled run on an H100 needed for its 54 % MFU
(docs/reference-runs.md); memory at 2.7 TB/s of 3.35. Bytes are counted from the code: what each
form of the loss reads and writes of its fp32 logits, what a compiled layer moves for a token, what
a micro-batch casts and accumulates. Nothing overlaps. Expect an error of some points of MFU.

    python tests/bench/h100_budget.py
"""

from __future__ import annotations

from lehr_trainer.configs.presets import MODEL_PRESETS
from lehr_trainer.configs.train import LlamaConfig
from lehr_trainer.planning.counts import flops_per_token, parameter_counts

TOKENS = 2**17
LENGTH = 2048
PEAK, PRODUCTS, MEMORY = 989.4e12, 700e12, 2.7e12
"""FLOP/s of bf16 (dense), FLOP/s that products reach, bytes/s that memory reaches."""
ATTENTION = 0.177
"""Seconds of causal cuDNN attention, forward and backward: 61.6 TFLOP at 350 TFLOP/s."""

MODEL = LlamaConfig(**MODEL_PRESETS["llama-1b"].values)
COUNTS = parameter_counts(MODEL)
LOGITS = 4 * TOKENS * MODEL.vocab_size
HEAD = 4 * MODEL.vocab_size * MODEL.hidden_size


def loss_bytes(form: str) -> float:
    """Count what lies between the head's products, over all chunks, and the sum of its gradient."""
    chunks = LOGITS / 2**30
    # Eager: log-softmax reads three times and writes, exp reads and writes, rounding reads and
    # writes half. Compiled: one read for the sums (online softmax), one for the gradient.
    moved = {"eager": 4 + 2 + 1.5, "compiled": 1 + 1.5}[form]
    return moved * LOGITS + 2 * HEAD * chunks


def layer_bytes(residual: int) -> float:
    """Count the fused pointwise work of a compiled layer: 300 kB a token with an fp32 stream.

    The stream itself is read or written about 13 times in forward and backward.
    """
    stream = 13 * MODEL.hidden_size
    return TOKENS * MODEL.num_hidden_layers * (300e3 - stream * (4 - residual))


def step_s(
    *, micro_batch: int, loss: str, residual: int = 4, muon_ranks: int | None = None
) -> float:
    micro_steps = TOKENS // (micro_batch * LENGTH)
    products = 6 * TOKENS * (COUNTS.layers + MODEL.vocab_size * MODEL.hidden_size)
    # Weights are cast and gradients accumulated once a micro-batch: read 4, write 2; 2 + 4 + 4.
    casts = micro_steps * (16 * COUNTS.total + 2 * HEAD)
    optimizer = 28 * COUNTS.total + 4 * COUNTS.total
    muon = 0.0
    if muon_ranks is not None:
        shapes = [(2048, 2048), (2048, 2048), (512, 2048), (512, 2048)] + [(2048, 8192)] * 3
        flops = sum(5 * (4 * a * a * b + 2 * a**3) for a, b in shapes) * MODEL.num_hidden_layers
        muon = flops / PRODUCTS / muon_ranks
    return (
        products / PRODUCTS
        + ATTENTION
        + (layer_bytes(residual) + loss_bytes(loss) + casts + optimizer) / MEMORY
        + muon
    )


def main() -> None:
    ideal = TOKENS * flops_per_token(MODEL, LENGTH) / PEAK
    print(f"{TOKENS:,} tokens of llama-1b, {LENGTH:,} long; 100 % MFU would be {ideal:.3f} s\n")
    print("| micro-batch | loss | residual stream | optimizer | s a step | MFU |")
    print("|---:|---|---|---|---:|---:|")
    for micro_batch, loss, residual, ranks in (
        (8, "eager", 4, None),
        (16, "eager", 4, None),
        (16, "compiled", 4, None),
        (16, "compiled", 2, None),
        (16, "compiled", 4, 1),
        (16, "compiled", 4, 8),
    ):
        took = step_s(micro_batch=micro_batch, loss=loss, residual=residual, muon_ranks=ranks)
        optimizer = "AdamW" if ranks is None else f"Muon over {ranks} rank{'s' * (ranks > 1)}"
        stream = "fp32" if residual == 4 else "bf16"
        print(
            f"| {micro_batch} | {loss} | {stream} | {optimizer} | {took:.2f} | {ideal / took:.1%} |"
        )


if __name__ == "__main__":
    main()
