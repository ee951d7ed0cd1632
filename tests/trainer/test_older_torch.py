"""The trainer also runs on torch 2.11: newer names are checked before they are used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import lehr_trainer

SOURCES = sorted(Path(lehr_trainer.__file__).parent.rglob("*.py"))

# What dir() of 2.13.0 has and that of 2.11.0 has not, in the modules that the trainer uses.
NEWER = {
    "torch": {
        "_flash_attention_forward_no_dropout_inplace", "_foreach_clone", "_foreach_mm",
        "_from_blob", "_native", "_tensor_iterator", "thread_safe_generator",
    },
    "torch.nn": {"LinearCrossEntropyLoss", "LinearCrossEntropyOptions"},
    "F": {"linear_cross_entropy"},
    "torch.optim": {"swap_in_optimizer_params_and_state"},
    "torch.cuda": {"_use_uvm", "caching_allocator_disabled", "current_solver_handle"},
    "dist": {"all_gather_single", "record_comm", "reduce_scatter_single"},
    "torch.compiler": {"CacheInfo", "get_default_backend", "set_default_backend"},
    "torch.autograd": {"enforce_grad_layout_policy"},
    "torch.autograd.graph": {"region_activation_memory_budget"},
}  # fmt: skip
GUARDED = {"variants.py: F.linear_cross_entropy"}
"""Losses that are refused if torch lacks them; see losses/test_variants.py."""


def uses(source: Path) -> Iterator[str]:
    """List ``module.name`` of every attribute and import in a file."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_names_missing_from_torch_2_11_are_not_used() -> None:
    newer = {f"{module}.{name}" for module, names in NEWER.items() for name in names}
    found = {f"{path.name}: {use}" for path in SOURCES for use in uses(path) if use in newer}
    assert found == GUARDED
