"""What a plan of memory does not count, in words. Pure."""

from __future__ import annotations

from lehr_trainer.configs.train import TrainConfig


def not_counted(config: TrainConfig) -> list[str]:
    """List what the formulas leave out for this config; each text begins with its field.

    With ``device: auto`` the plan is one for CUDA.
    """
    config = config.on("cpu" if config.device == "cpu" else "cuda")
    found = []
    if config.compile.scope == "model":
        found.append(
            "compile.scope: model is planned as if each block were compiled by itself; in traces "
            "of small models the peak was within 3 %, and a phase took up to 3 % less or 12 % "
            "more. --trace shows this model's own"
        )
    if config.compile.cuda_graphs and config.device != "cpu":
        found.append(
            f"compile.mode: {config.compile.mode} keeps the memory of its CUDA graphs between "
            "steps, where the loss and the update cannot use it; a published run reserved 5.7 GB "
            "more than its allocated peak"
        )
    if config.precision.fp8.recipe == "te_delayed":
        found.append(
            "precision.fp8.recipe: te_delayed is planned as bf16; Transformer Engine's FP8 copies "
            "of weights and inputs, and its histories, cannot be traced and are not known"
        )
    return found
