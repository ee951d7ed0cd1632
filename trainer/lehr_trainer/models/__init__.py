"""The models and their first weights. Importing this package does not import torch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

from lehr_trainer.configs.train import GPT2Config, ModelConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import torch

    from lehr_trainer.configs.train import TrainConfig
    from lehr_trainer.models.module_map import Decoder


def build_model_of(
    config: TrainConfig,
    *,
    device: torch.device | str,
    shard: Callable[[Decoder], None] | None = None,
) -> Decoder:
    """Build the model of a run, with the run's FP8 layers, joint products and residual stream.

    If ``shard`` shards it, its weights are those of an unsharded model, but this rank has memory
    for its rows, and for one whole weight at a time.

    Raises:
        BadConfig: FP8 cannot run here, or the project's model cannot be used.
    """
    import torch

    from lehr_trainer.models.fp8 import convert_to_fp8
    from lehr_trainer.models.module_map import first_weights
    from lehr_trainer.models.shared_layers import join_products
    from lehr_trainer.runtime import sharding

    with nullcontext() if shard is None else sharding.without_memory(config.seed):
        model = build_architecture(config, device=device)
    generator = torch.Generator(device).manual_seed(config.seed)
    # Listed before layers are converted: names stay, kinds of modules do not.
    fills = list(first_weights(model, generator))
    convert_to_fp8(model, config.precision.fp8)
    if shard is not None:
        shard(model)
    for name, fill in fills:
        sharding.fill(model.get_parameter(name), fill)
    if config.compile.joint_products:
        join_products(model)
    if config.precision.residual == "bf16":
        model.residual_dtype = torch.bfloat16
    return model


def build_model(config: ModelConfig, *, device: torch.device | str, seed: int) -> Decoder:
    """Build a model of Lehr's with its first weights, on ``device``."""
    from lehr_trainer.models.module_map import initialise

    model = _build(_own_class(config), config, device)
    initialise(model, seed)
    return model


def build_architecture(config: TrainConfig, *, device: torch.device | str) -> Decoder:
    """Build the model of a run, its own or the project's, without first weights.

    Raises:
        BadConfig: the project's model cannot be used.
    """
    make = _own_class(config.model)
    if config.parts is not None and config.parts.model is not None:
        from lehr_trainer.parts import model_class

        make = model_class(config.parts.model, config.model)
    return _build(make, config.model, device)


def _own_class(config: ModelConfig) -> Callable[[Any], Decoder]:
    from lehr_trainer.models.gpt2 import GPT2
    from lehr_trainer.models.llama import Llama

    return GPT2 if isinstance(config, GPT2Config) else Llama


def _build(
    make: Callable[[Any], Decoder], config: ModelConfig, device: torch.device | str
) -> Decoder:
    import torch

    from lehr_trainer.models.module_map import use_stable_embedding

    with torch.device(device):
        model = make(config)
        if config.stable_embedding:
            use_stable_embedding(model)
        return model
