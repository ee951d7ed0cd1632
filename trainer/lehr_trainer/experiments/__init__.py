"""The tables of ``lehr bench``: published trainings and techniques, one training step per row.

Each row is measured in a process of its own (worker.py), by the trainer's own ``TrainStep``;
runner.py controls these processes. This file and ``sizes`` are pure: names can be checked on a
machine without torch.
"""

from __future__ import annotations

SECTIONS: dict[str, str] = {
    "target": "the 1B model at 64 sequences a step, in ways to a high MFU, also in FP8",
    "ranks": "1, 2, 4 and 8 GPUs, with the same work on each",
    "losses": "each cross entropy",
    "checkpointing": "activation checkpointing by part of the block",
    "precision": "fp32, TF32, bf16, fp16",
    "fp8": "the FP8 recipes beside bf16",
    "compile": "eager and each way of compiling",
    "options": "joint products and a bf16 residual stream",
    "optimizers": "AdamW plain, fused and in 8 bits, and Muon",
    "masks": "document masks",
    "attention": "attention kernels, eager and compiled",
    "context": "attention by sequence length, at the same tokens a step",
    "batch": "sequences in a forward pass",
}
"""Subject of each table of the GPU bench, most important first: its budget may end before the
last.
"""

TABLES: dict[str, str] = {
    "ladder": "optimizations added one by one, at the same tokens a step",
    **SECTIONS,
    "gpu": "all tables but the ladder; continues where it stopped",
}
"""Subject of each table, by name."""
