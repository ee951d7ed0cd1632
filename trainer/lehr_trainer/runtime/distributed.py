"""Data parallel over torchrun's ranks, and what ranks say to each other besides gradients.

Gradients go over the device's backend (NCCL or gloo). Words and agreements go over a gloo
group of their own on the CPU, so that they neither wait for a GPU nor make it wait.
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from lehr_trainer.configs.train import ParallelConfig
from lehr_trainer.errors import BadConfig, TrainerError, error_of
from lehr_trainer.runtime.compression import compress_gradients

_T = TypeVar("_T")

_NO_BUFFER_SYNC: dict[str, Any] = {
    # The models' buffers are constants. torch 2.13 has a new name for the switch.
    "forward_sync_buffers"
    if "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    else "broadcast_buffers": False
}

TIMEOUT = timedelta(hours=2)
"""How long a rank waits for another's words: a large corpus may be being prepared."""


@dataclass
class Ranks:
    """This process among those of the run. One process alone needs no process group."""

    rank: int
    world_size: int
    device: torch.device
    words: dist.ProcessGroup | None = None
    """The group for words; None when alone, and once this rank has left."""

    @classmethod
    def join(cls, wanted: str) -> Self:
        """Meet the other ranks that torchrun started and take this rank's device.

        Args:
            wanted: the config's device: auto, cpu or cuda.

        Raises:
            BadConfig: there is no such device for this rank.
        """
        rank = int(os.environ.get("RANK", "0"))
        world_size = int(os.environ.get("WORLD_SIZE", "1"))
        device = _device(wanted, int(os.environ.get("LOCAL_RANK", "0")))
        if world_size == 1:
            return cls(rank, world_size, device)
        if device.type == "cuda":
            dist.init_process_group("nccl", device_id=device)
        else:
            dist.init_process_group("gloo")
        return cls(rank, world_size, device, dist.new_group(backend="gloo", timeout=TIMEOUT))

    def leave(self, *, together: bool = True) -> None:
        """Leave the process group at a normal exit. Do not use the group afterwards.

        gloo's threads let go of the last exchange some time after it is over, and its memory is
        Python's: once the interpreter has begun to end, that aborts the process. Only a group's
        destructor joins them, so the last reference has to go here.

        Args:
            together: wait for all ranks, so that none closes its connections on another's last
                exchange. Not where a signal struck them at different places.
        """
        if self.words is None:
            return
        try:
            if together:
                dist.barrier(group=self.words)
        except RuntimeError as error:
            # What this rank had to do is done; how the other ended is its own to tell.
            print(f"another rank had already ended: {error}", file=sys.stderr)
        self.words = None
        dist.destroy_process_group()
        gc.collect()

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    # --- gradients ---------------------------------------------------------------------------

    def wrap_ddp(
        self, model: nn.Module, config: ParallelConfig, *, already_scaled: bool = False
    ) -> nn.Module:
        """``model`` so wrapped that backward averages gradients, overlapped with computing them.

        ``already_scaled``: the loss is, as fp16 needs it, so compression need not scale.
        """
        if self.words is None:
            return model
        wrapped = DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            **_NO_BUFFER_SYNC,
            gradient_as_bucket_view=True,
            bucket_cap_mb=config.bucket_mb * 1e6 / 2**20,
            static_graph=config.static_graph,
        )
        compress_gradients(wrapped, config, already_scaled=already_scaled)
        return wrapped

    @staticmethod
    def no_sync_while(model: nn.Module, *, keep: bool) -> AbstractContextManager[None]:
        """While ``keep``: gradients add up on this rank and nothing is sent.

        It has to be open over forward and backward.
        """
        if keep and isinstance(model, DistributedDataParallel):
            return model.no_sync()
        return nullcontext()

    def mean(self, values: Tensor) -> Tensor:
        """The mean over ranks, on the device; takes its place in the stream, waits for nothing."""
        if self.words is not None:
            dist.all_reduce(values, op=dist.ReduceOp.SUM)
            values /= self.world_size
        return values

    def sum(self, values: Tensor) -> Tensor:
        if self.words is not None:
            dist.all_reduce(values, op=dist.ReduceOp.SUM)
        return values

    # --- words -------------------------------------------------------------------------------

    def largest(self, values: list[int]) -> list[int]:
        """The largest of each value over all ranks, the same answer on each."""
        if self.words is None:
            return values
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.words)
        return [int(value) for value in tensor.tolist()]

    def on_rank0(self, act: Callable[[], _T]) -> _T:
        """Rank 0 does ``act``; every rank gets its result (as JSON) or its error."""
        if self.words is None:
            return act()
        said: dict[str, Any] = {}
        if self.is_main:
            try:
                said = {"result": act()}
            except TrainerError as error:
                said = {"cause": error.cause, "message": str(error)}
        said = json.loads(self._broadcast(json.dumps(said).encode()))
        if "cause" in said:
            raise error_of(said["cause"], said["message"])
        result: _T = said["result"]
        return result

    def _broadcast(self, content: bytes) -> bytes:
        size = torch.tensor([len(content)], dtype=torch.int64)
        dist.broadcast(size, src=0, group=self.words)
        body = torch.frombuffer(bytearray(content.ljust(int(size))), dtype=torch.uint8)
        dist.broadcast(body, src=0, group=self.words)
        return body.numpy().tobytes()

    def gather_text(self, text: str) -> list[str]:
        """Each rank's text, on every rank."""
        if self.words is None:
            return [text]
        content = text.encode()
        longest = self.largest([len(content)])[0]
        # JSON and other text never ends in NUL, so the padding is told apart.
        own = torch.frombuffer(bytearray(content.ljust(longest, b"\0")), dtype=torch.uint8)
        all_texts = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(all_texts, own, group=self.words)
        return [one.numpy().tobytes().rstrip(b"\0").decode() for one in all_texts]


def _device(wanted: str, local_rank: int) -> torch.device:
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise BadConfig(
            "device is cuda, but torch sees no CUDA GPU here; set device to auto or cpu"
        )
    seen = torch.cuda.device_count()
    # Asked of all ranks at once, so that each says the same and none waits for another.
    if int(os.environ.get("LOCAL_WORLD_SIZE", "1")) > seen:
        raise BadConfig(
            f"torchrun started more than {seen} ranks on this machine, but torch sees "
            f"{seen} GPU{'s' * (seen > 1)}; lower --nproc-per-node to {seen}"
        )
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device
