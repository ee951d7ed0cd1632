"""torch.compile and activation checkpointing, by block: no renamed parameter, safe to accumulate.

Order: build the model, checkpointing, FP8, then ``compile_model``, then a mock
batch under ``compile_lock``, then DDP. Compiled before it is wrapped, a block
is one graph whose gradients leave while earlier blocks still compute theirs;
a whole model under DDP splits at every bucket (8 graphs measured).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from lehr_trainer.configs.execution import ActivationCheckpointingConfig, CompileConfig
from lehr_trainer.contract.records import Notify
from lehr_trainer.files import wait_for_lock
from lehr_trainer.models.module_map import blocks, module_map, token_embedding
from lehr_trainer.runtime.sharding import drop_gradients


def compile_model(model: nn.Module, config: CompileConfig) -> None:
    """Compile in place; the first forward pass takes the time. State dicts do not change."""
    if not config.compiles:
        return
    parts = [model] if config.scope == "model" else list(blocks(model))
    mode = None if config.mode == "default" else config.mode
    for part in parts:
        # In place: wrapping would put "_orig_mod." into every parameter's name. Shapes are few
        # and long-lived (a sequence-length schedule has two), so each gets a graph of its own.
        part.compile(mode=mode, fullgraph=config.fullgraph, dynamic=False)


class Accumulation:
    """Decides where the gradients of a step's micro-batches add up.

    By default they are dropped after the update. They are zeroed instead, and so keep their memory:

    - under CUDA graphs. A replay writes its results where the last replay did, and a gradient that
      autograd adopted from there would change with the next micro-batch. So gradients get memory
      of their own before the first backward pass.
    - under DDP with several micro-batches. DDP keeps gradients in its buckets; dropped ones would
      be made again outside of them, and held twice until the last micro-batch is reduced.
    """

    def __init__(
        self, model: nn.Module, config: CompileConfig, *, in_buckets: bool = False
    ) -> None:
        """Prepare the gradients of a model that is not wrapped yet.

        ``in_buckets``: DDP will hold the gradients of several micro-batches in its buckets.
        """
        self._replays = config.cuda_graphs
        self._keeps = self._replays or in_buckets
        self._model = model
        self._own_gradients()

    def _own_gradients(self) -> None:
        if self._replays:
            for parameter in self._model.parameters():
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)

    def begin_micro_step(self) -> None:
        """Mark the start of a forward pass: outputs of the last one are no longer needed."""
        if self._replays:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]

    def clear(self, optimizer: torch.optim.Optimizer) -> None:
        """Clear gradients after the update, in place of ``optimizer.zero_grad``."""
        optimizer.zero_grad(set_to_none=not self._keeps)
        drop_gradients(self._model)


_LOG_EVERY_S = 15.0


def cache_folder() -> Path:
    """Return inductor's folder of compiled graphs, shared by all runs of a user on a machine."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


def compile_key(*facts: Any) -> str:
    """Make a key that is equal for runs that compile the same graphs, from JSON values."""
    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    text = json.dumps([torch.__version__, device, *facts], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def compile_lock(key: str, notify: Notify, *, folder: Path | None = None) -> Iterator[bool]:
    """Run the first forward and backward within: one process compiles, the rest use its cache.

    Trials that start together would all miss the cache and all compile. Here the first takes a
    lock; the others log that they wait, and then compile from its cache. Nothing within may wait
    for another rank (run the mock batch on the unwrapped model), or two ranks would wait for each
    other.

    Yields:
        Whether this process is the first, the one that fills the cache.
    """
    folder = folder or cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    done = folder / f"lehr-{key}.done"
    if done.exists():
        yield False
        return
    with (folder / f"lehr-{key}.lock").open("a+", encoding="utf-8") as lock:

        def waiting(waited: float) -> None:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            message = f"process {holder} compiles the same model; waiting for its result"
            notify("compile", f"{message} ({waited:.0f} s so far)", None)

        wait_for_lock(lock.fileno(), waiting, _LOG_EVERY_S)
        first = not done.exists()
        if not first:
            # The cache is filled: release the others before this process reads it.
            fcntl.flock(lock, fcntl.LOCK_UN)
            yield False
            return
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()}")
        lock.flush()
        notify("compile", "compiling the model; runs like this one wait and share the result", None)
        began = time.monotonic()
        yield True
        done.touch()
        notify("compile", f"compiled in {time.monotonic() - began:.1f} s", 1.0)


def recompute_activations(
    model: nn.Module, config: ActivationCheckpointingConfig
) -> list[nn.Module]:
    """Make the config's parts recompute in backward; returns them. Call it before compiling."""
    chosen = list(_parts(model, config))
    for module in chosen:
        # An attribute of the instance: wrapping in a module would rename every parameter.
        module.forward = _recomputed(module.forward)
    return chosen


def _parts(model: nn.Module, config: ActivationCheckpointingConfig) -> Iterator[nn.Module]:
    where = module_map(model)
    if config.policy == "embedding":
        yield token_embedding(model)
    if config.policy in {"none", "embedding"}:
        return
    for index, block in enumerate(blocks(model)):
        if index % config.every:
            continue
        match config.policy:
            case "block":
                yield block
            case "attention":
                yield block.get_submodule(where.attention)
            case "swiglu":
                yield block.get_submodule(where.mlp)
            case "norms":
                yield from (getattr(block, name) for name in where.norms if hasattr(block, name))


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs)
        # Nothing here uses random numbers, so their state need not be kept.
        return checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False)

    return run
