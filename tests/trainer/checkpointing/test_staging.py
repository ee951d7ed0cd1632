"""Pinning of the memory for copies, with a driver that allows it or refuses.

Only the driver's calls are replaced; the copy itself is real.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from lehr_trainer.checkpointing.staging import HostCopy, layout_of


class Driver:
    """CUDA's runtime, as far as a copy uses it."""

    def __init__(self) -> None:
        self.code = 0
        self.registered: list[int] = []

    def cudaHostRegister(self, place: int, size: int, flags: int) -> int:  # noqa: N802
        assert size
        assert flags == 0
        if self.code == 0:
            self.registered.append(place)
        return self.code

    def cudaHostUnregister(self, place: int) -> int:  # noqa: N802
        if place not in self.registered:
            return 713  # cudaErrorHostMemoryNotRegistered
        self.registered.remove(place)
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
    assert driver.registered == []


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
