"""One task at a time beside the training loop; its error is kept until somebody asks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch


class Background:
    """Runs tasks on a thread, not a process: hashing and writing release the interpreter lock."""

    def __init__(self, device: torch.device) -> None:
        """Prepare; the thread starts with the first task.

        Args:
            device: this rank's.
        """
        self._device = device
        self._pool: ThreadPoolExecutor | None = None
        self._work: Future[object] | None = None

    @property
    def failed(self) -> bool:
        """Whether the task has failed and its error has not been raised yet."""
        work = self._work
        return work is not None and work.done() and work.exception() is not None

    @property
    def busy(self) -> bool:
        return self._work is not None and not self._work.done()

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
