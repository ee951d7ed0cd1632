"""Whole runs on one GPU, one for each technique: compiled, with each kernel, in FP8, with masks.

Each is the trainer as a user starts it, with evaluations, samples, diagnostics and checkpoints. Its
losses must be near those of the plain run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from first_hour import trained
from first_hour.parts import Failed, NotHere, Part, Result, Session
from lehr_testing.paths import TESTS
from lehr_testing.trainer import losses, records
from lehr_trainer.contract import layout
from lehr_trainer.tolerance import tolerance

GROUP = "Whole runs"
PLAIN = "run: plain"
_BLOCK = {"scope": "block", "fullgraph": True}


@dataclass(frozen=True)
class Run:
    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    near: float | None = 0.05
    """Largest difference, in nats, from the plain run's losses; None: another training."""
    near_on_cpu: float = 1e-3
    on_cpu: dict[str, Any] | None = None
    """Changes in a rehearsal; None: the same. An empty dict would be the plain run."""
    needs_gpu: str = ""
    """Reason why it cannot be rehearsed."""
    stand_in: str = ""
    """What a rehearsal has in the place of a GPU's library or driver; the report names it."""
    stand_in_code: str = ""
    """Executed first in a rehearsal, to put it there."""


def _kernel(name: str) -> Run:
    changes = {"attention": {"backend": name}}
    return Run(f"attention {name}", changes)


def _fp8(recipe: str, **more: Any) -> Run:
    real = {"compute": "bf16", "fp8": {"recipe": recipe}}
    emulated = {"compute": "fp32", "fp8": {"recipe": recipe, "emulate": True}}
    return Run(
        f"FP8 {recipe}",
        {"precision": real, **more},
        near=0.2,
        near_on_cpu=0.2,
        on_cpu={"precision": emulated},
    )


# The process that trains need not know the folder of the tests.
_FAKE_ENGINE = (
    f"import sys\nsys.path.append({str(TESTS)!r})\n"
    "import pytest\n"
    "from lehr_testing import fake_transformer_engine\n"
    "fake_transformer_engine.install(pytest.MonkeyPatch())\n"
)


RUNS = [
    Run("plain", near=None),
    Run("masks", {"attention": {"document_masking": True}}, near=None),
    *(_kernel(name) for name in ("flash", "efficient", "cudnn", "math", "fa3", "fa4")),
    Run("fp16", {"precision": {"compute": "fp16"}}, near_on_cpu=0.05),
    Run("fp32", {"precision": {"compute": "fp32", "tf32": False}}),
    Run("blocks recomputed", {"activation_checkpointing": {"policy": "block"}}),
    *(
        Run(f"loss {name}", {"loss": {"name": name}})
        for name in ("standard", "torch_chunked", "liger")
    ),
    # Cut Cross Entropy takes no fp32 operands, which a rehearsal has.
    *(
        Run(f"loss {name}", {"loss": {"name": name}}, needs_gpu=f"{name} runs on a GPU only")
        for name in ("cce", "cce_fp32", "cce_kahan")
    ),
    Run("Muon", {"optimizer": {"name": "muon", "lr": 0.02}}, near=None),
    Run("8-bit AdamW, bitsandbytes", {"optimizer": {"name": "adamw8bit", "lr": 1e-3}}, near=0.2,
        near_on_cpu=0.2),
    Run("8-bit AdamW, torchao", {"optimizer": {"name": "adamw8bit", "library": "torchao", "lr": 1e-3}},
        near=0.2, near_on_cpu=0.2),
    Run("captured for Nsight", {"profile": {"tool": "nsys", "wait": 2, "warmup": 1, "active": 2}}),
    Run("blocks compiled", {"compile": _BLOCK}),
    Run("model compiled", {"compile": {"scope": "model"}}),
    # A CPU compiles the blocks, and keeps gradients as graphs need it.
    Run("CUDA graphs", {"compile": {**_BLOCK, "mode": "reduce-overhead"}},
        stand_in="compiled blocks that are not recorded"),
    Run("masks, compiled", {"attention": {"document_masking": True}, "compile": {"scope": "block"}},
        near=None),
    Run("blocks recomputed, compiled",
        {"activation_checkpointing": {"policy": "block"}, "compile": _BLOCK}),
    Run("FlashAttention 3, compiled",
        {"attention": {"backend": "fa3"}, "compile": {"scope": "block"}}),
    _fp8("tensorwise", compile={"scope": "block"}),
    _fp8("rowwise", compile={"scope": "block"}),
    Run("FP8 te_delayed", {"precision": {"compute": "bf16", "fp8": {"recipe": "te_delayed"}}},
        near=0.2, near_on_cpu=0.2,
        on_cpu={"precision": {"compute": "fp32", "fp8": {"recipe": "te_delayed"}}},
        stand_in="a substitute with Transformer Engine's histories", stand_in_code=_FAKE_ENGINE),
]  # fmt: skip


def act(session: Session, *, run: Run) -> Result:
    """Train, and require sound records and losses near the plain run's."""
    changes, code = run.changes, ""
    if not session.machine.on_cuda:
        if run.needs_gpu:
            raise NotHere(run.needs_gpu)
        changes = run.changes if run.on_cpu is None else run.on_cpu
        code = run.stand_in_code
    folder = session.work(f"run: {run.name}")
    attempt = trained.train(session, folder, code=code, **changes)
    trained.require_sound(attempt)
    found = trained.figures(attempt)
    if run.stand_in and not session.machine.on_cuda:
        found["rehearsed with"] = run.stand_in
    compiled = changes.get("compile", {}).get("scope", "none")
    chosen = records(attempt, "started")[0]["compile"]
    if chosen != compiled:
        raise Failed(f"compile.scope was {compiled}, but the run says {chosen}")
    if run.near is not None:
        reference = layout.attempts(session.work(PLAIN, fresh=False))
        if not reference:
            raise Failed(f"there is nothing to compare with: {PLAIN!r} did not run")
        gap = trained.gap_between(losses(attempt), losses(reference[-1]))
        found["gap to plain (nats)"] = gap
        bound = run.near if session.machine.on_cuda else run.near_on_cpu
        trained.require_near(gap, bound, "its losses and those of the plain run")
    return Result(found)


def twice(session: Session, *, deterministic: bool) -> Result:
    """Train two identical runs and return by how much they differ.

    Raises:
        Failed: they are deterministic, but not bitwise equal.
    """
    folder = session.work(f"run: twice {deterministic}")
    attempts = [
        trained.train(session, folder / name, deterministic=deterministic) for name in ("a", "b")
    ]
    settings = records(attempts[0], "started")[0]["host"]["determinism"]
    if settings["algorithms"] is not deterministic:
        raise Failed(f"deterministic is {deterministic}, but its process read back {settings}")
    found = tolerance(folder / "a", folder / "b")
    if deterministic and not found.bitwise:
        raise Failed("; ".join(found.lines()))
    assert found.weights is not None
    return Result(
        {
            "tolerance of the loss (nats)": found.series[0].largest,
            "tolerance of the weights": found.weights.relative,
        }
    )


PARTS = [
    *(
        Part(f"run: {run.name}", GROUP, partial(act, run=run), compiles="compile" in run.changes)
        for run in RUNS
    ),
    *(
        Part(f"run: {name}", GROUP, partial(twice, deterministic=deterministic))
        for name, deterministic in (("twice", False), ("twice, deterministic", True))
    ),
]
