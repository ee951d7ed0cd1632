"""The models, their first weights, and how many parameters and FLOPs they have.

``counts`` is pure: importing it, or this package, does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr_trainer.configs.train import GPT2Config, ModelConfig

if TYPE_CHECKING:
    import torch

    from lehr_trainer.configs.train import TrainConfig
    from lehr_trainer.models.module_map import Decoder


def build_model_of(config: TrainConfig, *, device: torch.device | str) -> Decoder:
    """Build the model of a run, with the run's FP8 layers, joint products and residual stream.

    Raises:
        BadConfig: FP8 cannot run here.
    """
    import torch

    from lehr_trainer.models.fp8 import convert_to_fp8
    from lehr_trainer.models.joint_product import join_products

    model = build_model(config.model, device=device, seed=config.seed)
    convert_to_fp8(model, config.precision.fp8)
    if config.compile.joint_products:
        join_products(model)
    if config.precision.residual == "bf16":
        model.residual_dtype = torch.bfloat16
    return model


def build_model(config: ModelConfig, *, device: torch.device | str, seed: int) -> Decoder:
    """Build a model with its first weights, on ``device``."""
    import torch

    from lehr_trainer.models.gpt2 import GPT2
    from lehr_trainer.models.init import initialise
    from lehr_trainer.models.llama import Llama

    with torch.device(device):
        model = GPT2(config) if isinstance(config, GPT2Config) else Llama(config)
    initialise(model, seed)
    if config.stable_embedding:
        from lehr_trainer.models.stable_embedding import use_stable_embedding

        use_stable_embedding(model, seed)
    return model
