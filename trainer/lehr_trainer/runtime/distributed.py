"""Data parallelism over torchrun's ranks, and their communication besides gradients.

Gradients use the device's backend (NCCL or gloo). Everything else uses a gloo group of its own on
the CPU, so that it neither waits for a GPU nor makes one wait.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lehr_trainer.configs.execution import ParallelConfig
from lehr_trainer.errors import BadConfig, TrainerError, error_of
from lehr_trainer.runtime import sharding
from lehr_trainer.runtime.waits import Clock, Waits

_HOOK = "lehr_compression"
"""The wrapped model's attribute that keeps its hook."""


def compress_gradients(
    model: DistributedDataParallel, config: ParallelConfig, *, already_scaled: bool = False
) -> CompressedMean | None:
    """Register the config's hook before the first backward; None if gradients travel as they are.

    ``already_scaled``: under fp16's loss scale gradients need no second one.
    """
    if config.compression == "none":
        return None
    dtype = torch.float16 if config.compression == "fp16" else torch.bfloat16
    scale = config.compression_scale if dtype == torch.float16 and not already_scaled else 1.0
    parameters = list(model.parameters())
    # No bucket is empty, so there are never more buckets than parameters.
    hook = CompressedMean(dtype, scale, parameters[0].device, buckets=len(parameters))
    # DDP compares annotations as objects, which a lambda has none of.
    model.register_comm_hook(None, lambda _state, bucket: hook.reduce(bucket))
    setattr(model, _HOOK, hook)
    return hook


def overflow_counts(wrapped: nn.Module) -> Tensor | None:
    """Return the gradient values lost to compression so far, by bucket, on the device.

    None if gradients are not compressed.
    """
    hook: CompressedMean | None = getattr(wrapped, _HOOK, None)
    return None if hook is None else hook.overflows


class CompressedMean:
    """A hook of DDP that averages over ranks, and sends gradients in ``dtype``.

    PyTorch's own fp16 hook casts as it is: a 1B model's gradients (rms near 3e-6) then fall among
    fp16's subnormals and lose most digits. Here fp16 is scaled by a fixed power on the way, and
    values that overflow are counted.
    """

    def __init__(
        self, dtype: torch.dtype, scale: float, device: torch.device, *, buckets: int
    ) -> None:
        self.dtype = dtype
        self.scale = scale
        self.overflows = torch.zeros(buckets, dtype=torch.int64, device=device)
        """Number of gradient values that arrived as infinity or NaN so far; on the device.

        Each bucket has its own count: the callbacks of two buckets run on different streams, and
        additions to one value could overwrite each other. DDP lets the stream of the training wait
        for all callbacks before backward ends, so the sum of the counts is right from then on.
        """

    def reduce(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Reduce a ``GradBucket``; DDP calls this during backward, as soon as it is full."""
        gradients: Tensor = bucket.buffer()
        index: int = bucket.index()
        # Divided before the sum, so that the sum over ranks cannot overflow.
        small = (gradients * (self.scale / dist.get_world_size())).to(self.dtype)
        sent = dist.all_reduce(small, async_op=True)
        assert sent is not None

        def widen(future: torch.futures.Future[list[Tensor]]) -> Tensor:
            mean = future.value()[0]
            self.overflows[index].add_((~torch.isfinite(mean)).sum())
            gradients.copy_(mean)
            return gradients if self.scale == 1.0 else gradients.div_(self.scale)

        return sent.get_future().then(widen)  # type: ignore[no-any-return]


_T = TypeVar("_T")

_NO_BUFFER_SYNC: dict[str, Any] = {
    # The models' buffers are constants. torch 2.13 has a new name for the switch.
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers": False
}

TIMEOUT = timedelta(hours=2)
"""Longest wait for another rank on the CPU group: it may be preparing a large corpus."""


@dataclass
class Ranks:
    """This process among the run's ranks. A single process needs no process group."""

    rank: int
    world_size: int
    device: torch.device
    cpu_group: dist.ProcessGroup | None = None
    """Process group on the CPU; None with a single process, and after ``destroy``."""
    agree_at_start: bool = True
    """Let DDP compare and broadcast the weights; in a memory trace they have no values."""
    local_size: int | None = None
    """Number of ranks on this node; None if all of them are."""
    waits: Waits | None = None
    """Counts how long this rank waits for others; None with a single process or in a trace."""

    @classmethod
    def join(cls, requested: str) -> Self:
        """Join the ranks that torchrun started and take this rank's device: auto, cpu or cuda.

        Raises:
            BadConfig: there is no such device for this rank.
        """
        rank = int(os.environ.get("RANK", "0"))
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        device = _device(requested, int(os.environ.get("LOCAL_RANK", "0")))
        if world_size == 1:
            return cls(rank, world_size, device)
        if device.type == "cuda":
            dist.init_process_group("nccl", device_id=device)
        else:
            dist.init_process_group("gloo")
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
        group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        waits = Waits(Clock(device))
        return cls(rank, world_size, device, group, local_size=local, waits=waits)

    def destroy(self, *, together: bool = True) -> None:
        """Leave the process group at a normal exit. Do not use the group afterwards.

        gloo's threads release the last exchange some time after it is over, and its memory is
        Python's: once the interpreter has begun to end, that aborts the process. Only the group's
        destructor joins these threads, so the last reference must be dropped here. ``together``
        waits for all ranks, so that none closes its connections on another's last exchange; not
        where a signal struck them at different places.
        """
        if self.cpu_group is None:
            return
        try:
            if together:
                dist.barrier(group=self.cpu_group)
        except RuntimeError as error:
            # This rank's work is done; the other rank reports its own end.
            print(f"another rank had already ended: {error}", file=sys.stderr)
        self.cpu_group = None
        dist.destroy_process_group()
        gc.collect()

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    # --- gradients ---------------------------------------------------------------------------

    def wrap(
        self, model: nn.Module, config: ParallelConfig, *, already_scaled: bool = False
    ) -> nn.Module:
        """Wrap ``model`` in DDP, so that gradients are averaged while backward still runs.

        A sharded model does so itself.

        ``already_scaled``: the loss is scaled, as fp16 needs it, so compression need not scale.
        """
        if self.cpu_group is None:
            return model
        if config.shard != "none":
            if self.waits is not None:
                self.waits.watch(model)
            return model
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            **_NO_BUFFER_SYNC,
            gradient_as_bucket_view=True,
            bucket_cap_mb=self.bucket_mb(config) * 1e6 / 2**20,
            static_graph=config.static_graph,
            init_sync=self.agree_at_start,
        )
        compress_gradients(wrapped, config, already_scaled=already_scaled)
        if self.waits is not None:
            self.waits.watch(wrapped)
        return wrapped

    def bucket_mb(self, config: ParallelConfig) -> float:
        """Return the size of DDP's buckets in MB (1e6 bytes): the config's, or one by the link."""
        on_one_node = self.local_size in {None, self.world_size}
        return config.bucket_mb or (25.0 if on_one_node else 100.0)

    @staticmethod
    def no_sync_while(model: nn.Module, *, keep: bool) -> AbstractContextManager[None]:
        """Return a context in which, if ``keep``, gradients add up on this rank and are not sent.

        It must be open during forward and backward.
        """
        if keep and isinstance(model, DistributedDataParallel):
            return model.no_sync()
        sharding.hold_back(model, keep=keep)
        return nullcontext()

    def mean(self, values: Tensor) -> Tensor:
        """Average over ranks, on the device: queued in its stream, without a wait."""
        if self.cpu_group is not None:
            with self._timed():
                dist.all_reduce(values, op=dist.ReduceOp.SUM)
            values /= self.world_size
        return values

    def sum(self, values: Tensor) -> Tensor:
        if self.cpu_group is not None:
            dist.all_reduce(values, op=dist.ReduceOp.SUM)
        return values

    def broadcast(self, values: Tensor) -> None:
        """Replace the values by those of rank 0, on the device."""
        if self.cpu_group is not None:
            dist.broadcast(values, src=0)

    def begin_sum(self, *values: int) -> Callable[[], list[int]]:
        """Start to add numbers over all ranks, on the CPU; call the result to wait for the sums.

        The exchange runs in threads of gloo, so it costs the caller nothing before the wait.
        """
        if self.cpu_group is None:
            return lambda: list(values)
        totals = torch.tensor(values, dtype=torch.int64)
        work = dist.all_reduce(totals, op=dist.ReduceOp.SUM, group=self.cpu_group, async_op=True)

        def wait() -> list[int]:
            with self._timed():
                work.wait()
            return list(totals.tolist())

        return wait

    def gather_on_rank0(self, values: Sequence[float]) -> list[list[float]]:
        """Gather each rank's numbers on rank 0, over the CPU; others get none, and do not wait."""
        own = torch.tensor(values, dtype=torch.float64)
        rows = [torch.empty_like(own) for _ in range(self.world_size)] if self.is_main else None
        work = dist.gather(own, rows, dst=0, group=self.cpu_group, async_op=True)
        if rows is None:
            return []
        with self._timed():
            work.wait()
        return [row.tolist() for row in rows]

    def _timed(self) -> AbstractContextManager[None]:
        return nullcontext() if self.waits is None else self.waits.timed()

    # --- words -------------------------------------------------------------------------------

    def all_reduce_max(self, values: list[int]) -> list[int]:
        """Return the largest of each value over all ranks, the same on each rank."""
        if self.cpu_group is None:
            return values
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.cpu_group)
        return [int(value) for value in tensor.tolist()]

    def on_rank0(self, act: Callable[[], _T]) -> _T:
        """Run ``act`` on rank 0 only; every rank gets its result (as JSON) or raises its error."""
        if self.cpu_group is None:
            return act()
        reply: dict[str, Any] = {}
        if self.is_main:
            try:
                reply = {"result": act()}
            except TrainerError as error:
                reply = {"cause": error.cause, "message": str(error)}
        reply = json.loads(self._broadcast(json.dumps(reply).encode()))
        if "cause" in reply:
            raise error_of(reply["cause"], reply["message"])
        result: _T = reply["result"]
        return result

    def on_each(self, act: Callable[[], None]) -> None:
        """Run ``act`` on every rank; every rank raises the error of the first that has one."""
        reply = {}
        try:
            act()
        except TrainerError as error:
            reply = {"cause": error.cause, "message": str(error)}
        for text in self.gather_text(json.dumps(reply)):
            if failed := json.loads(text):
                raise error_of(failed["cause"], failed["message"])

    def another_exchange(self) -> Self:
        """Return ranks whose exchanges may go on beside those of these. Every rank must call it."""
        if self.cpu_group is None:
            return self
        return replace(self, cpu_group=dist.new_group(backend="gloo", timeout=TIMEOUT))

    def _broadcast(self, content: bytes) -> bytes:
        size = torch.tensor([len(content)], dtype=torch.int64)
        dist.broadcast(size, src=0, group=self.cpu_group)
        body = torch.frombuffer(bytearray(content.ljust(int(size))), dtype=torch.uint8)
        dist.broadcast(body, src=0, group=self.cpu_group)
        return body.numpy().tobytes()

    def gather_text(self, text: str) -> list[str]:
        """Gather each rank's text, on every rank."""
        if self.cpu_group is None:
            return [text]
        content = text.encode()
        longest = self.all_reduce_max([len(content)])[0]
        # JSON and other text never ends in NUL, so the padding can be removed.
        own = torch.frombuffer(bytearray(content.ljust(longest, b"\0")), dtype=torch.uint8)
        all_texts = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(all_texts, own, group=self.cpu_group)
        return [one.numpy().tobytes().rstrip(b"\0").decode() for one in all_texts]


def _device(requested: str, local_rank: int) -> torch.device:
    if requested == "cpu" or (requested == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise BadConfig(
            "device is cuda, but torch sees no CUDA GPU here; set device to auto or cpu"
        )
    seen = torch.cuda.device_count()
    # All ranks check the whole machine, so that each fails alike and none waits for another.
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > seen:
        raise BadConfig(
            f"torchrun started more than {seen} ranks on this machine, but torch sees "
            f"{seen} GPU{'s' * (seen > 1)}; lower --nproc-per-node to {seen}"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
