"""The experiments of the reference logs as commands that repeat their tables (A24, A27).

``python -m lehr_trainer bench NAME``, or ``lehr bench NAME``. A table is made of rows; each row
is measured by a process of its own (worker.py), all of them led by turns.py. This file and
``sizes`` are pure: names can be checked on a machine without torch.
"""

from __future__ import annotations

EXPERIMENTS: dict[str, str] = {
    "ladder": "G's optimizations one upon another: step time, memory, loss at equal tokens",
    "losses": "each cross entropy against float64: value, gradients, memory, time",
    "checkpointing": "activation checkpointing by part of the block (P2's table)",
    "precision": "fp32, TF32, bf16, fp16 and the FP8 recipes",
    "compile": "eager against each way of compiling, with kernel launches",
    "optimizers": "AdamW plain, fused and in 8 bits, and Muon",
    "loader": "making a batch the naive way, by np.stack and by the loader",
    "batch": "batch size against memory, and the largest batch that fits",
    "gpu": "P1's and P2's configurations in one go, for docs/benchmarks.md; resumes",
}
"""What each is about, by name."""
