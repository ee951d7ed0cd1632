"""Make the task files that come with Lehr: ``python docs/generate/tasks.py``.

Both are clozes over documented functions of Python's standard library: from which module one is
imported, and which parameters it has. The shipped files are of Python 3.11.
"""

from __future__ import annotations

import importlib
import inspect
import json
import random
from pathlib import Path

import lehr_trainer.tasks
from lehr_trainer.configs.tasks import SHIPPED

MODULES = (
    "ast", "base64", "bisect", "calendar", "codecs", "copy", "csv", "ctypes.util", "difflib", "dis",
    "email.utils", "fileinput", "fnmatch", "functools", "getpass", "gettext", "glob", "gzip",
    "heapq", "html", "importlib.util", "inspect", "io", "json", "keyword", "linecache", "locale",
    "logging", "mimetypes", "ntpath", "operator", "os", "pickle", "pkgutil", "platform", "plistlib",
    "posixpath", "pprint", "py_compile", "quopri", "random", "re", "runpy", "shelve", "shlex",
    "shutil", "socket", "ssl", "stat", "statistics", "string", "struct", "subprocess", "sysconfig",
    "tarfile", "tempfile", "textwrap", "threading", "timeit", "tokenize", "traceback", "types",
    "typing", "unittest.mock", "urllib.parse", "urllib.request", "uuid", "warnings", "wave",
    "weakref", "webbrowser", "xml.sax.saxutils", "zipfile", "zlib",
)  # fmt: skip
ITEMS = 150
_CHOICES = 4
_LONGEST = 110
"""Characters of a question with its longest answer, so that it fits into a short sequence."""


def functions() -> list[tuple[str, str, str, str]]:
    """Return module, name, signature and the first line of the documentation of each function."""
    known: dict[str, tuple[str, str, str, str]] = {}
    for module in MODULES:
        for name, function in sorted(vars(importlib.import_module(module)).items()):
            if name.startswith("_") or not inspect.isroutine(function):
                continue
            if getattr(function, "__module__", None) != module:
                continue
            try:
                signature = str(inspect.signature(function))
            except ValueError:  # Written in C, without one.
                continue
            line = (inspect.getdoc(function) or "").partition("\n")[0].strip()
            if line.endswith(".") and '"' not in line and " at 0x" not in signature:
                known.setdefault(name, (module, name, signature, line))
    return [*known.values()]


def items(kind: str, seed: int = 0) -> list[dict[str, object]]:
    """Return the items of ``stdlib_modules`` or ``stdlib_signatures``."""
    draw = random.Random(seed)  # noqa: S311 - fixed on purpose
    known = functions()
    signatures = sorted({signature for _, _, signature, _ in known})
    made: list[dict[str, object]] = []
    for module, name, signature, line in draw.sample(known, len(known)):
        if kind == "stdlib_modules":
            query, own, pool = f'"""{line}"""\nfrom', module, [*MODULES]
        else:
            query, own, pool = f'"""{line}"""\ndef', signature, signatures
        wrong = [one for one in pool if one != own and not _has(one, name)]
        others = draw.sample(wrong, _CHOICES - 1)
        answers = draw.sample([own, *others], _CHOICES)
        shape = f"{{}} import {name}" if kind == "stdlib_modules" else f"{name}{{}}:"
        choices = [shape.format(answer) for answer in answers]
        if len(query) + 1 + max(map(len, choices)) <= _LONGEST:
            made.append({"query": query, "choices": choices, "gold": answers.index(own)})
    return made[:ITEMS]


def _has(module: str, name: str) -> bool:
    """Return whether an answer is a module that has the name, too."""
    return module in MODULES and hasattr(importlib.import_module(module), name)


def main() -> None:
    for kind in SHIPPED:
        lines = "".join(f"{json.dumps(item)}\n" for item in items(kind))
        Path(lehr_trainer.tasks.__path__[0], f"{kind}.jsonl").write_text(lines, encoding="utf-8")


if __name__ == "__main__":
    main()
