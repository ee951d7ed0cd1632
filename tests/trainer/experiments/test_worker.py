"""A row's process ends with the bench that started it."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import Pipe
from threading import Thread

from lehr_trainer.experiments.worker import end_after


def test_row_ends_with_its_bench_even_while_it_works() -> None:
    ours, theirs = Pipe()
    pid = os.fork()
    if pid == 0:
        ours.close()
        signal.alarm(60)
        Thread(target=end_after, args=(theirs, 0.0), daemon=True).start()
        while True:  # It compiles, and reads no order.
            time.sleep(1)
    theirs.close()
    ours.send("an order that is not read")
    ours.close()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
