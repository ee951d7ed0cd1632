"""A machine whose power can be cut, with its own pids, which restart at 1, and its own boot id."""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from lehr_testing.waiting import until

_INIT = """
mount --bind "$0" /proc/sys/kernel/random/boot_id && : > "$0.up"
while :; do sleep 600 & wait $!; done
"""
"""The first process: it reaps whatever loses its parent, as an init does."""


class Machine:
    """Everything that runs in it dies at once with ``power_off``; after ``boot``, pids are used again."""

    def __init__(self, folder: Path) -> None:
        self.boot_file = folder / "boot_id"
        self.init: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Boot; skip the test if the kernel does not allow it."""
        up = self.boot_file.with_name("boot_id.up")
        up.unlink(missing_ok=True)
        self.boot_file.write_text(f"{uuid.uuid4()}\n")
        self.init = subprocess.Popen(
            [
                *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc"),
                *("bash", "-c", _INIT, str(self.boot_file)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

        def is_up() -> bool:
            assert self.init is not None
            assert self.init.stderr is not None
            if self.init.poll() is not None:
                words = self.init.stderr.read().decode(errors="replace").strip()
                pytest.skip(f"no pid namespace can be made here: {words}")
            return up.exists()

        until(is_up, within_s=20, what="the machine to boot")

    @property
    def command(self) -> list[str]:
        """Return the command line that runs a command inside."""
        children = Path(f"/proc/{self.init.pid}/task/{self.init.pid}/children").read_text()
        [first] = children.split()
        return ["nsenter", "--target", first, "--pid", "--mount"]

    def occupy(self, pid: int) -> None:
        """Start processes until another one has that pid."""
        script = (
            f"while :; do sleep 600 &>/dev/null & (( $! == {pid} )) && exit 0;"
            f" (( $! > {pid} )) && exit 1; kill $!; done"
        )
        subprocess.run([*self.command, "bash", "-c", script], check=True, capture_output=True)

    def power_off(self) -> None:
        if self.init is not None:
            self.init.kill()  # --kill-child: its init goes along, and with that everything.
            self.init.wait()
            self.init = None


@contextlib.contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("a pid namespace needs root")
    made = Machine(folder)
    made.boot()
    try:
        yield made
    finally:
        made.power_off()
