"""What torch.compile needs on a machine besides torch itself."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

PACKAGES = {"a C compiler": "gcc", "a C++ compiler": "g++", "Python's headers": "python3-dev"}
"""By what can be missing, the package of Debian and Ubuntu that has it."""


def missing_for_compiling() -> list[str]:
    """List what is missing, as keys of ``PACKAGES``.

    Triton compiles a small C file against Python's headers before its first kernel. Inductor
    compiles C++ for what runs on a CPU, also beside a GPU.
    """
    found = {
        "a C compiler": _program("CC", "gcc", "clang"),
        "a C++ compiler": _program("CXX", "g++"),
        "Python's headers": Path(sysconfig.get_path("include"), "Python.h").exists(),
    }
    return [name for name, there in found.items() if not there]


def _program(variable: str, *names: str) -> bool:
    """Return whether the program that the variable names is there; without it, one of ``names``."""
    chosen = os.environ.get(variable)
    return any(shutil.which(name) for name in ((chosen,) if chosen else names))
