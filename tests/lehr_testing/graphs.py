"""The graphs that torch.compile captures, without the minutes in which inductor makes kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch


@contextmanager
def captured_graphs() -> Iterator[list[torch.fx.GraphModule]]:
    """Collect the graphs passed to inductor, in order; each runs as captured."""
    import torch._inductor.compile_fx

    given: list[torch.fx.GraphModule] = []

    def spy(graph: torch.fx.GraphModule, *_: object, **__: object) -> Any:
        given.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch._inductor.compile_fx, "compile_fx", spy)
        yield given
    torch._dynamo.reset()
