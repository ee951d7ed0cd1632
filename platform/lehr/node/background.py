"""Move a shim into the background, in a session of its own. Standard library only."""

import os

from lehr.base import procfs
from lehr.node.attempt_dir import AttemptDir


def into_background(entry: AttemptDir) -> None:
    """Continue in a background process with its own session; the original one ends with success.

    The original process ends only after the new one has registered, so a reported start did happen.
    """
    registered, report = os.pipe()
    if os.fork():
        os.close(report)
        ready = os.read(registered, 1)
        os._exit(0 if ready else 1)
    os.close(registered)
    os.setsid()
    if entry.hold() is None:  # Kept open, and so locked, until this process ends.
        os._exit(0)  # Another shim holds it: the attempt is running.
    pid = os.getpid()
    procfs.write_json(
        entry.file("shim.json"),
        {"pid": pid, "start_time": procfs.start_time(pid), "boot_id": procfs.boot_id()},
    )
    log = os.open(
        entry.file("shim.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600
    )
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for target, source in ((0, nothing), (1, log), (2, log)):
        os.dup2(source, target)
    os.write(report, b"+")
    os.close(report)
    procfs.adopt_orphans()
