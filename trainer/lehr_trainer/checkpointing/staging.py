"""Saves beside the training: a copy of the state in host memory, and the thread that writes it.

One block of memory is laid out once and used for every save: copying into pages that exist is ten
times faster than into fresh ones, and a GPU copies into pinned pages by itself.

``torch.distributed.checkpoint.async_save`` has its own stager. It makes a deep copy of whole
storages (even for a small view), in fresh memory the first time, and fails on torchao's 8-bit
states. Here the state has been taken apart into plain tensors before, so copying them is enough.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import Tensor

from lehr_trainer.data.tokens import free_memory


class Background:
    """Runs tasks on a thread, not a process: hashing and writing release the interpreter lock."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: ThreadPoolExecutor | None = None
        self._work: Future[object] | None = None

    @property
    def failed(self) -> bool:
        """Whether the task has failed and its error has not been raised yet."""
        work = self._work
        return work is not None and work.done() and work.exception() is not None

    def start(self, act: Callable[[], object]) -> None:
        """Start ``act`` once the previous task has ended.

        Raises:
            Exception: the error of the previous task.
        """
        self.wait()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "background", self._enter_thread)
        self._work = self._pool.submit(act)

    def wait(self) -> None:
        """Wait for the task to end.

        Raises:
            Exception: the task's error; it is raised once.
        """
        work, self._work = self._work, None
        if work is not None:
            work.result()

    def end_within(self, seconds: float) -> BaseException | str | None:
        """Wait for the task, but not forever: for a process that ends anyway.

        Returns:
            What is wrong with what was under way, if anything is.
        """
        work = self._work
        if work is None:
            return None
        if not wait([work], seconds).done:
            return f"not done within {seconds:g} s"
        return work.exception()

    def _enter_thread(self) -> None:
        if self._device.type == "cuda":
            # Otherwise pinning memory would open a context on GPU 0 from every rank.
            torch.cuda.set_device(self._device)


Tensors = Mapping[str, Mapping[str, Tensor]]
"""Tensors by name, for each kind (``model``, ``optimizer``)."""

Layout = tuple[tuple[str, str, torch.dtype, torch.Size, int], ...]
"""Kind, name, type, shape and bytes of each tensor."""

_ALIGNMENT = 64
_PIECE = 256 * 2**20
"""Bytes that are pinned at once. While the driver pins, no kernel is launched: all 15 GB of a 1.2B
model's state at once stopped an H200 for 9 s. A piece ends where a tensor does, since one copy must
not span two registrations."""
_MOST_OF_FREE = 0.9
"""Share of free memory that the copy may take: batches and the page cache need some too."""


class TooLittleMemory(Exception):
    """The machine cannot hold a copy of the state."""

    def __init__(self, needed: int, free: int) -> None:
        super().__init__(
            f"a copy of the state takes {needed / 1e9:.2f} GB of host memory, and "
            f"{free / 1e9:.2f} GB are free"
        )


def layout_of(tensors: Tensors) -> Layout:
    return tuple(
        (kind, name, tensor.dtype, tensor.shape, tensor.nbytes)
        for kind, named in tensors.items()
        for name, tensor in named.items()
    )


class HostCopy:
    """Memory for one copy. Not thread-safe."""

    def __init__(self, device: torch.device) -> None:
        """Create it without memory; ``reserve`` allocates it."""
        self._device = device
        self._block = torch.empty(0, dtype=torch.uint8)
        self._layout: Layout = ()
        self.views: dict[str, dict[str, Tensor]] = {}
        """The memory as tensors, by kind and name of the layout."""
        self._registered: list[int] = []
        """Address of each piece that is pinned."""
        self.pin_refusal: str | None = None
        """Why the memory is not pinned, so that each copy takes longer; None if it is."""

    @property
    def nbytes(self) -> int:
        return self._block.nbytes

    def reserve(self, layout: Layout) -> None:
        """Allocate memory for tensors of this layout, unless that has been done.

        Raises:
            TooLittleMemory: there is not enough that is free.
        """
        if layout == self._layout:
            return
        self._release()
        pieces, places = _pieces(layout)
        end = pieces[-1][1]
        free = free_memory()
        if end > _MOST_OF_FREE * free:
            raise TooLittleMemory(end, free)
        try:
            whole = torch.empty(end + mmap.PAGESIZE, dtype=torch.uint8)
        except RuntimeError:  # The system knows of a limit that we do not.
            raise TooLittleMemory(end, free) from None
        # Pages are pinned as a whole, so a piece must not share one with the next.
        first_page = -whole.data_ptr() % mmap.PAGESIZE
        self._block = whole[first_page : first_page + end]
        self._touch_pages(pieces)
        for (kind, name, dtype, shape, nbytes), place in zip(layout, places, strict=True):
            view = self._block[place : place + nbytes].view(dtype).view(shape)
            self.views.setdefault(kind, {})[name] = view
        self._layout = layout

    def take(self, tensors: Tensors) -> Tensors:
        """Copy ``tensors``; returns when the copy is whole. The next ``take`` overwrites it.

        Raises:
            TooLittleMemory: there is no room yet, and not enough that is free.
        """
        self.reserve(layout_of(tensors))
        for kind, named in tensors.items():
            for name, tensor in named.items():
                self.views[kind][name].copy_(tensor.detach(), non_blocking=True)
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()
        # A kind without tensors has no views; it is written like any other.
        return {kind: self.views.get(kind, {}) for kind in tensors}

    def _touch_pages(self, pieces: list[tuple[int, int]]) -> None:
        """Touch every page, so that the system provides it now rather than during a copy.

        For a GPU pin them, too, each piece once it exists: then it takes the driver a short time.
        """
        pins = self._device.type == "cuda"
        for begin, end in pieces:
            piece = self._block[begin:end].zero_()
            pins = pins and piece.nbytes > 0 and self._pin(piece)

    def _pin(self, piece: Tensor) -> bool:
        """Pin the piece; if that is refused, unpin all and return False."""
        # Registered, not allocated as pinned memory: that would round up to a power of two.
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        place, size = piece.data_ptr(), piece.nbytes
        try:
            torch.cuda.check_error(int(runtime.cudaHostRegister(place, size, 0)))
        except RuntimeError as error:
            # Some containers and virtual machines do not allow it.
            self.pin_refusal = str(error)
            self._forget_cuda_error()
            self._unpin()
            return False
        self._registered.append(place)
        return True

    def _forget_cuda_error(self) -> None:
        """Clear the thread's last CUDA error; otherwise the next kernel launch would report it."""
        with contextlib.suppress(RuntimeError):
            torch.zeros((), device=self._device)

    def _release(self) -> None:
        self._unpin()
        self._layout, self.views = (), {}
        self._block = torch.empty(0, dtype=torch.uint8)

    def _unpin(self) -> None:
        while self._registered:
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            torch.cuda.check_error(int(runtime.cudaHostUnregister(self._registered.pop())))


def _pieces(layout: Layout) -> tuple[list[tuple[int, int]], list[int]]:
    """Lay the tensors out; return each piece's begin and end, and each tensor's place."""
    pieces: list[tuple[int, int]] = []
    places: list[int] = []
    begin = end = 0
    for *_, nbytes in layout:
        if end > begin and end + nbytes - begin > _PIECE:
            pieces.append((begin, end))
            begin = end = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
        places.append(end)
        end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return [*pieces, (begin, end)], places
