"""Ending the processes of a Ray node."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest

from lehr.base import procfs
from lehr.cluster import ray_process
from lehr.errors import InternalError


def start(program: str, folder, record, **options) -> None:
    ray_process.start(
        [sys.executable, "-c", program],
        environment={ray_process.MARK: ray_process.new_mark()},
        address="127.0.0.1:1",
        gpus=1,
        base_port=1,
        temporary=folder,
        log_path=folder / "ray.log",
        versions="",
        record=record,
        **options,
    )


def test_node_that_is_no_longer_wanted_is_ended_while_it_starts(tmp_path):
    made: list[ray_process.RayProcess] = []
    with pytest.raises(InternalError):
        start("import time; time.sleep(600)", tmp_path, made.append, stopping=lambda: True)
    assert not made[0].running()


def test_node_that_cannot_be_recorded_is_ended(tmp_path):
    found: list[ray_process.RayProcess] = []

    def record(process: ray_process.RayProcess) -> None:
        found.append(process)
        assert process.running()
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        start("import time; time.sleep(600)", tmp_path, record)
    assert not found[0].running()


def test_node_that_ends_early_is_explained_by_its_error_alone(tmp_path):
    program = "print('starting', flush=True); raise Exception('The node timed out.\\nSee GCS.')"
    with pytest.raises(InternalError) as caught:
        start(program, tmp_path, lambda _: None)
    assert caught.value.message == "Ray did not start: Exception: The node timed out. / See GCS."


def test_first_process_is_ended_even_if_its_environment_cannot_be_read():
    environment = dict(os.environ)
    environment.pop(ray_process.MARK, None)
    with subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env=environment
    ) as loading:
        process = ray_process.RayProcess(
            address="127.0.0.1:1",
            gpus=1,
            mark=ray_process.new_mark(),
            pid=loading.pid,
            start_time=procfs.start_time(loading.pid) or 0,
            boot_id=procfs.boot_id(),
        )
        try:
            assert process.processes() == []
            assert ray_process.end(process) == [loading.pid]
            assert not process.running()
        finally:
            loading.kill()


def test_process_that_has_its_id_after_a_reboot_is_left_alone():
    process = ray_process.RayProcess(
        address="127.0.0.1:1",
        gpus=1,
        mark=ray_process.new_mark(),
        pid=os.getpid(),
        start_time=procfs.start_time(os.getpid()) or 0,
        boot_id="another",
    )
    assert ray_process.end(process) == []
