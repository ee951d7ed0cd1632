"""``python -m lehr_log.command COMMAND...``: become a command, on the first process of a node."""

import os
import sys
from pathlib import Path

_OF_RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")

if __name__ == "__main__":
    if os.environ.get("LOCAL_RANK", "0") != "0":
        sys.exit()  # The command has all GPUs of the node, and starts its own processes.
    for name in (*os.environ,):
        if name in _OF_RANKS or name.startswith("TORCHELASTIC_"):
            del os.environ[name]
    # Of an environment that is not activated, too: its python and torchrun.
    path = (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))
    os.environ["PATH"] = os.pathsep.join(path)
    try:
        os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - it is what the user runs
    except OSError as error:
        sys.exit(f"{sys.argv[1]}: {error.strerror}")
