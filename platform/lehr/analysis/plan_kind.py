"""Runs of the same kind: those whose measured speed is the speed of a planned run. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr.analysis.replaced_parts import not_ours

if TYPE_CHECKING:
    from lehr.specs.run import RunSpec
    from lehr_trainer.configs.train import BatchConfig, TrainConfig

SIZES = frozenset({"size", "model", "batch", "length", "micro-batch", "GPUs"})
"""Traits that change how much a step computes. The others change how fast a GPU computes it, so
the MFU of a run that differs in them is not that of the planned one."""
_NO_SPEED = frozenset(
    {
        "rope_theta",
        "norm_eps",
        "max_sequence_length",
        "parametrization",
        "base_width",
        "base_head_size",
    }
)
"""Fields of a model that do not change the time of a step."""


def traits(spec: RunSpec, parameters: int | None, *, cuda: bool) -> dict[str, str]:
    """Return what decides the speed of a run, by name, each as a phrase.

    Args:
        spec: of the run. It trains with Lehr's trainer.
        parameters: of its model.
        cuda: whether it trains on a GPU; what its config leaves open depends on that.
    """
    train, resources = spec.own.on("cuda" if cuda else "cpu"), spec.resources
    shape = train.model.model_dump(exclude=set(_NO_SPEED))
    share = train.batch.sequences // resources.ranks
    found = {
        "size": "parameters unknown" if parameters is None else f"{parameters:,} parameters",
        "model": f"model {', '.join(f'{name} {value}' for name, value in shape.items())}",
        "batch": f"{train.batch.sequences:,} sequences a step",
        "length": _lengths(train.batch),
        "micro-batch": f"micro-batch {train.batch.micro_batch or share}",
        "GPUs": f"{resources.gpus} GPUs on {resources.nodes} nodes",
        "precision": _precision(train, cuda=cuda),
        "compile": _compile(train),
        "recomputation": "no recomputation",
        "attention": f"attention {train.attention.backend}",
        "optimizer": f"optimizer {train.optimizer.name}",
        "loss": f"loss {train.loss.name}",
        "parts": "Lehr's own parts" if train.parts is None else not_ours(train),
    }
    recomputed = train.activation_checkpointing
    if recomputed.policy != "none":
        found["recomputation"] = f"recomputes {recomputed.policy} in 1 of {recomputed.every} layers"
    if train.attention.document_masking:
        found["attention"] += " within documents"
    if resources.ranks > 1:
        found["gradients"] = f"gradients compressed by {train.parallel.compression}"
    if train.deterministic:
        found["deterministic"] = "deterministic kernels"
    if not cuda and train.threads is not None:
        found["threads"] = f"{train.threads} threads"
    return found


def differences(earlier: dict[str, str], planned: dict[str, str]) -> dict[str, str]:
    """Return the traits of an earlier run that the planned one does not share, as phrases."""
    different = {
        name: earlier.get(name, f"no {planned.get(name)}")
        for name in dict.fromkeys([*planned, *earlier])
        if earlier.get(name) != planned.get(name)
    }
    if "model" in different:
        # Its number of parameters says more than a list of its sizes.
        different["model"] = "another shape of model"
        if "size" in different:
            del different["model"]
    return different


def _lengths(batch: BatchConfig) -> str:
    stages = [f", {stage.sequence_length:,} after {stage.after:.0%}" for stage in batch.stages]
    return f"sequences of {batch.sequence_length:,}{''.join(stages)}"


def _precision(train: TrainConfig, *, cuda: bool) -> str:
    precision = train.precision
    compute = precision.compute
    if compute == "auto":
        compute = "bf16" if cuda else "fp32"
    text = str(compute)
    if compute == "fp32" and cuda:
        text = "TF32" if precision.tf32 else "fp32 without TF32"
    if precision.fp8.recipe != "none":
        text += f" with FP8 {precision.fp8.recipe}"
    if precision.residual != "fp32":
        text += f", {precision.residual} residual stream"
    return text


def _compile(train: TrainConfig) -> str:
    compiling = train.compile
    if not compiling.compiles:
        return "not compiled"
    text = f"{compiling.scope} compiled"
    if compiling.mode != "default":
        text += f" with {compiling.mode}"
    return f"{text}, joint products" if compiling.joint_products else text
