"""The models, their first weights, and how many parameters and FLOPs they have.

``counts`` is pure: importing it, or this package, does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lehr_trainer.configs.train import GPT2Config, ModelConfig

if TYPE_CHECKING:
    import torch

    from lehr_trainer.models.module_map import Decoder


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
