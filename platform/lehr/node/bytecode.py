"""Bytecode of a capsule, made once on a node. Standard library only.

Each attempt of a program runs in a copy of its project, and would compile its modules again. So
would each attempt of Lehr's trainer where PYTHONDONTWRITEBYTECODE is set, as in many images. The
bytecode holds the hash of its source, so a program that edits its copy never gets an older version.
"""

import os
import py_compile
import resource
from py_compile import PycInvalidationMode

from lehr.node.code_cache import BYTECODE

LIMIT_S = 10
"""Processor time for one folder. Modules that it does not reach are compiled when imported."""


def compile_modules(folder: str, *, limit_s: int = LIMIT_S) -> None:
    """Compile the modules of an unpacked folder, as far as that is possible.

    It is done in a process of its own: a source may be too much for the compiler, and no attempt
    may fail for a file that it does not import.
    """
    pid = os.fork()
    if pid == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            _compile_all(folder)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def _compile_all(folder: str) -> None:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != BYTECODE)
        for name in sorted(files):
            if name.endswith(".py"):
                path = os.path.join(here, name)
                mode = PycInvalidationMode.CHECKED_HASH
                try:
                    py_compile.compile(path, doraise=True, quiet=2, invalidation_mode=mode)
                except (py_compile.PyCompileError, OSError, ValueError, RecursionError):
                    continue  # It is not for this Python, or the disk is full.
