"""Initial weights: 1/sqrt(fan_in) linears, 0.02 embeddings, smaller residual projections."""

from __future__ import annotations

import torch
from torch import nn

from lehr_trainer.configs.parametrization import head_std
from lehr_trainer.models.module_map import Decoder
from lehr_trainer.planning.first_loss import EMBEDDING_STD


@torch.no_grad()
def initialise(model: Decoder, seed: int) -> None:
    """Fill every parameter, in the order of the modules, from one generator.

    The generator lives on the parameters' device: a billion numbers take a blink on a GPU and
    ten seconds on a CPU core. The same seed therefore gives other weights on another kind of
    device. A tied weight is filled once, as the embedding, but under muP with the size of a head.
    """
    config = model.config
    generator = torch.Generator(model.head_weight.device).manual_seed(seed)
    # hidden^-0.5 for both residual projections, although the down projection's input is wider: as
    # the 1.2B Llama run of docs/reference-runs.md did.
    residual_std = config.hidden_size**-0.5 / (2 * config.num_hidden_layers) ** 0.5
    residual = set(model.residual_projections())
    for module in model.modules():
        if isinstance(module, nn.Linear):
            std = residual_std if module in residual else module.in_features**-0.5
            if module.weight is model.head_weight:
                std = head_std(config)
            module.weight.normal_(0.0, std, generator=generator)
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, nn.Embedding):
            shared = module.weight is model.head_weight and config.parametrization == "mup"
            std = head_std(config) if shared else EMBEDDING_STD
            module.weight.normal_(0.0, std, generator=generator)
