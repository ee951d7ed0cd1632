"""Pinning of the memory for copies, with a driver that allows it or refuses.

Only the driver's calls are replaced; the copy itself is real.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from lehr_trainer.checkpointing import staging
from lehr_trainer.checkpointing.staging import HostCopy, layout_of


class Driver:
    """CUDA's runtime, as far as a copy uses it."""

    def __init__(self) -> None:
        self.code = 0
        self.registered: dict[int, int] = {}
        """Bytes by address."""
        self.allowed = 100
        """Registrations until they are refused."""

    def cudaHostRegister(self, place: int, size: int, flags: int) -> int:  # noqa: N802
        assert size
        assert flags == 0
        if self.code or not self.allowed:
            return self.code or 2  # cudaErrorMemoryAllocation
        self.allowed -= 1
        assert not self.registered.keys() & {place}
        self.registered[place] = size
        return 0

    def cudaHostUnregister(self, place: int) -> int:  # noqa: N802
        if place not in self.registered:
            return 713  # cudaErrorHostMemoryNotRegistered
        del self.registered[place]
        return 0


def check_error(code: int) -> None:
    if code:
        raise RuntimeError(f"CUDA error {code}")


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    driver = Driver()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: driver)
    monkeypatch.setattr(torch.cuda, "check_error", check_error)
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream)
    monkeypatch.setattr(HostCopy, "_forget_cuda_error", lambda _: None)
    yield driver
    assert not driver.registered


def tensors(size: int) -> dict[str, dict[str, torch.Tensor]]:
    return {"model": {"a": torch.arange(size, dtype=torch.float32)}}


def take_twice(copy: HostCopy) -> None:
    """Take copies of two layouts: the second one releases the memory of the first."""
    for size in (5, 9):
        state = tensors(size)
        assert torch.equal(copy.take(state)["model"]["a"], state["model"]["a"])


def test_memory_is_pinned_and_released(driver: Driver) -> None:
    copy = HostCopy(torch.device("cuda"))
    take_twice(copy)
    assert len(driver.registered) == 1
    assert copy.pin_refusal is None
    copy._release()


def test_refused_pinning_falls_back_to_pageable_memory(driver: Driver) -> None:
    driver.code = 801  # cudaErrorNotSupported
    copy = HostCopy(torch.device("cuda"))
    take_twice(copy)
    assert copy.pin_refusal == "CUDA error 801"
    # Refused once, allowed later: only what was registered is unregistered.
    driver.code = 0
    copy.reserve(layout_of(tensors(20)))
    assert len(driver.registered) == 1
    copy._release()


LARGE = {"a": 5000, "b": 3000, "c": 9000, "d": 0, "e": 100}
"""Elements by tensor; with pieces of 16 KiB "c" is larger than one."""


def large() -> dict[str, dict[str, torch.Tensor]]:
    return {"model": {name: torch.randn(size) for name, size in LARGE.items()}}


def test_every_tensor_lies_in_one_pinned_piece_and_pieces_share_no_page(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_PIECE", 16 * 1024)
    copy = HostCopy(torch.device("cuda"))
    state = large()
    copied = copy.take(state)["model"]
    assert len(driver.registered) == 4
    for name, tensor in state["model"].items():
        assert torch.equal(copied[name], tensor)
        begin, end = copied[name].data_ptr(), copied[name].data_ptr() + tensor.nbytes
        assert not tensor.nbytes or any(
            place <= begin and end <= place + size for place, size in driver.registered.items()
        )
    pages = [
        page
        for place, size in driver.registered.items()
        for page in range(place // mmap.PAGESIZE, (place + size - 1) // mmap.PAGESIZE + 1)
    ]
    assert len(pages) == len(set(pages))
    copy._release()
