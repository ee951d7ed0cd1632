"""The experiments of docs/reference-runs.md as commands that repeat their tables.

``python -m lehr_trainer bench NAME``, or ``lehr bench NAME``. A table is made of rows; each row is
measured in a process of its own (worker.py), and runner.py controls these processes. This file and
``sizes`` are pure: names can be checked on a machine without torch.
"""

from __future__ import annotations

EXPERIMENTS: dict[str, str] = {
    "ladder": "optimizations added one by one: step time, memory, loss at equal tokens",
    "losses": "each cross entropy against float64: value, gradients, memory, time",
    "checkpointing": "activation checkpointing by part of the block",
    "precision": "fp32, TF32, bf16, fp16 and the FP8 recipes",
    "compile": "eager against each way of compiling, with kernel launches",
    "optimizers": "AdamW plain, fused and in 8 bits, and Muon",
    "parts": "kernels and activation memory by part of the model, in fp32 and bf16",
    "loader": "time to make a batch by a plain loop, by np.stack and by the loader",
    "batch": "batch size against memory, and the largest batch that fits",
    "gpu": "all published 1.2B configurations, against targets of speed and memory; "
    "continues where it stopped",
}
"""Subject of each experiment, by name."""
