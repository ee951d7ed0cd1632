"""muP's multipliers folded into weights, for programs that know the standard parametrization only.

Queries take the attention's scale, and the last norm takes the head's. The function that the model
computes stays the same; a training that goes on from such weights is not muP any more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from lehr_trainer.configs.parametrization import attention_scale, output_multiplier
from lehr_trainer.configs.shapes import GPT2Config, LlamaConfig

_LAST_NORM = ("norm.weight", "ln_f.weight", "ln_f.bias")


def fold_multipliers(
    model: LlamaConfig | GPT2Config, tensors: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return weights with which the standard model computes what ``model`` does.

    Args:
        model: its config; in the standard parametrization nothing changes.
        tensors: the model's own state, by name.
    """
    scale = attention_scale(model)
    if scale is None:
        return dict(tensors)
    # Scores are linear in the query, and rotary positions leave its length as it is.
    query = scale * math.sqrt(model.hidden_size // model.num_attention_heads)
    folded = {}
    for name, tensor in tensors.items():
        if name in _LAST_NORM:
            folded[name] = tensor * output_multiplier(model)
        elif ".q_proj." in name:
            folded[name] = tensor * query
        elif ".c_attn." in name:
            joint = tensor.clone()  # Rows of query, key and value.
            joint[: model.hidden_size] *= query
            folded[name] = joint
        else:
            folded[name] = tensor
    return folded
