"""Packed documents: the document of each token, and attention masks.

A packed sequence holds several documents end to end, an end-of-sequence token after each. Without
masking a token attends to the documents before its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lehr_trainer.models.attention import masks_by_blocks

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

InputFn = Callable[[Tensor], tuple[Tensor, ...]]
"""Turns tokens into the model's arguments."""


def make_input_fn(eos_id: int | None) -> InputFn:
    """Make an input function: tokens alone or, given ``eos_id``, tokens and their documents."""
    if eos_id is None:
        return lambda tokens: (tokens,)
    return lambda tokens: (tokens, document_ids(tokens, eos_id))


def document_ids(tokens_BT: Tensor, eos_id: int) -> Tensor:
    """Return document numbers, [B, T] int32: 0 for a sequence's first document, 1 for the next, ...

    The end-of-sequence token still belongs to the document that it ends.
    """
    ends_BT = tokens_BT == eos_id
    return (ends_BT.cumsum(dim=1) - ends_BT.long()).to(torch.int32)


def document_positions(ids_BT: Tensor) -> Tensor:
    """Return each token's place in its own document, [B, T] int64, for learned positions."""
    index_T = torch.arange(ids_BT.shape[1], device=ids_BT.device)
    starts_BT = torch.ones_like(ids_BT, dtype=torch.bool)
    starts_BT[:, 1:] = ids_BT[:, 1:] != ids_BT[:, :-1]
    first_BT = torch.where(starts_BT, index_T, 0).cummax(dim=1).values
    return index_T - first_BT


def dense_mask(ids_BT: Tensor) -> Tensor:
    """Make a mask, [B, 1, T, T] bool: a query sees earlier keys of its own document."""
    same_BTT = ids_BT[:, :, None] == ids_BT[:, None, :]
    return (same_BTT & torch.ones_like(same_BTT[0]).tril())[:, None]


def block_mask(ids_BT: Tensor) -> BlockMask:
    """Make the same mask as blocks for FlexAttention: no T x T scores, empty blocks are skipped."""

    def visible(batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (ids_BT[batch, query] == ids_BT[batch, key])

    batch, length = ids_BT.shape
    make = _block_mask_maker(compiled=ids_BT.is_cuda)
    mask: BlockMask = make(visible, batch, None, length, length, device=ids_BT.device)
    return mask


def _block_mask_maker(*, compiled: bool) -> Any:
    """Return the function that makes block masks: compiled it holds no T x T mask.

    In a compiled model it becomes a part of the model's graph.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    if not compiled or torch.compiler.is_compiling():
        return create_block_mask
    return _compiled(create_block_mask)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)


def document_mask(ids_BT: Tensor) -> Tensor | BlockMask:
    """Make the mask in the form that the run's attention kernel takes."""
    return block_mask(ids_BT) if masks_by_blocks(ids_BT.device) else dense_mask(ids_BT)
