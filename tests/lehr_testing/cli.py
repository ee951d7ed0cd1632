"""Run ``lehr`` in this process as its entry point does, without the start-up time."""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from lehr.faces.cli import main, output


@dataclass(frozen=True)
class CommandResult:
    """The result of a command, with the field names of ``subprocess.CompletedProcess``."""

    returncode: int
    stdout: str
    stderr: str


def call(*args: str, cwd: Path, stdin: str | None = None, **environment: str) -> CommandResult:
    """Run one command in ``cwd``; of Lehr's variables it gets only ``environment``.

    Output goes to a pipe, as far as the command can know.
    """
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    code: int | str | None = 0
    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(os.environ):
        for name in [*os.environ]:
            if name in {"COLUMNS", "NO_COLOR", "FORCE_COLOR"} or name.startswith("LEHR_"):
                del os.environ[name]
        os.environ.update(environment)
        patch.setattr(sys, "argv", ["lehr", *args])
        patch.setattr(sys, "stdin", io.StringIO(stdin or ""))
        patch.setattr(sys, "__stdout__", SimpleNamespace(encoding="utf-8"))
        patch.chdir(cwd)
        output.console.cache_clear()
        output.notes.cache_clear()
        try:
            with redirect_stdout(out), redirect_stderr(err):
                main.run()
        except SystemExit as stop:
            code = stop.code
        finally:
            output.console.cache_clear()
            output.notes.cache_clear()
    read = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return CommandResult(int(code or 0), *read)
