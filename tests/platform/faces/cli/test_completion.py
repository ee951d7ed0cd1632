"""Completion in each shell: commands, options, names of runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lehr.faces.cli import connect
from lehr.specs import load_spec
from lehr_testing import cli
from lehr_testing.api import RUN_SPEC, TOKEN, served

BIN = Path(sys.executable).parent


def call(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        args,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PATH": path, "LEHR_TOKEN": TOKEN, "PYTHONUTF8": "1", **environment},
    )


def completions(shell: str, line: str, **environment: str) -> list[str]:
    """Return the completions of a command line, by the protocol of the shell's script."""
    words = line.split(" ")
    question = {
        "bash": {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    given = {"LEHR_TOKEN": TOKEN, **environment, **question}
    done = cli.call(cwd=Path.cwd(), **given, _LEHR_COMPLETE=f"complete_{shell}")
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_completes_commands_options_and_names(shell, tmp_path, monkeypatch):
    # A person waits a moment at most; a loaded machine may need longer to answer.
    monkeypatch.setattr(connect, "_TIMEOUT_S", 60.0)
    assert "submit" in " ".join(completions(shell, "lehr su"))
    assert "--dry-run" in " ".join(completions(shell, "lehr submit --dr"))
    with served(tmp_path / "home") as (api, address):
        for name in ("wide-run", "wide-other", "narrow"):
            api.store.runs.create(load_spec({**RUN_SPEC, "name": name}))
        found = " ".join(completions(shell, "lehr watch wide", LEHR_SERVER=address))
        assert "wide-run" in found
        assert "wide-other" in found
        assert "narrow" not in found
    # zsh completes file names if there are no candidates.
    nothing = completions(shell, "lehr watch wide", LEHR_SERVER="http://127.0.0.1:9")
    assert nothing == (["_files"] if shell == "zsh" else [])


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
def test_bash_loads_the_script_and_completes():
    script = (
        'eval "$(lehr --show-completion)"; COMP_WORDS=(lehr comp); COMP_CWORD=1; '
        '_lehr_completion lehr; echo "${COMPREPLY[@]}"'
    )
    assert call("bash", "-c", script).stdout.split() == ["compare"]
