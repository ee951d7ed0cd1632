"""The dtype of the residual stream."""

from __future__ import annotations

import torch
from torch import Tensor


def begin_stream(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Round the embeddings to the stream's dtype, if one is set and autocast is on.

    Without autocast, as in the fp32 loss of ``quality``, all is computed in fp32.
    """
    if dtype is None or not torch.is_autocast_enabled(x.device.type):
        return x
    return x.to(dtype)
