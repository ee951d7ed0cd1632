"""A command imports only what it needs: start-up is what people wait for most often."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from lehr.cli.main import MODULES

HEAVY = ("torch", "ray", "pandas", "plotly", "sqlmodel", "fastapi", "numpy", "pyarrow", "optuna")
SCRIPT = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from lehr.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["lehr", *arguments]
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            main.run()
    except SystemExit:
        pass
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def imported(*commands: list[str], home: str) -> set[str]:
    """Top-level modules of a fresh process once it has run these commands."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(commands)],
        check=True,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "LEHR_HOME": home, "LEHR_SERVER": "http://127.0.0.1:9"},
    )
    return set(json.loads(done.stdout))


def test_help_of_every_command_needs_nothing_but_typer(tmp_path):
    found = imported(["--help"], *([name, "--help"] for name in MODULES), home=str(tmp_path))
    assert "typer" in found
    assert found.isdisjoint({*HEAVY, "httpx", "lehr_api"})
    alone = imported(["--help"], home=str(tmp_path))
    assert alone.isdisjoint({*HEAVY, "httpx", "pydantic", "rich", "yaml"})


@pytest.mark.parametrize(
    "arguments",
    [
        ["ls"],
        ["show", "x"],
        ["watch", "x"],
        ["compare", "x", "y"],
        ["cancel", "x"],
        ["plan", "-"],
        ["presets"],
    ],
    ids=" ".join,
)
def test_what_talks_to_a_server_or_plans_needs_no_trainer_and_no_database(tmp_path, arguments):
    found = imported(arguments, home=str(tmp_path))
    assert "pydantic" in found  # The command ran.
    assert found.isdisjoint(HEAVY)
