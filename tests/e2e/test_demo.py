"""`lehr demo`, small: from an empty machine to the ranked table, and again with a running server."""

from __future__ import annotations

import json
import re
import shutil
import socket
from contextlib import suppress

import pytest

from lehr import Client
from lehr.base import home
from lehr_testing.server import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

RATES = [1e-3, 1e-2, 1e-1]
SMALL = (
    f"parameters={json.dumps({'train.optimizer.lr': {'values': RATES}})}",
    "run.train.steps=4",
    "run.train.batch={sequences: 4, sequence_length: 64}",
    "run.train.validation={tokens: 4096, share: 0.05, every: 2}",
    "run.train.data.max_tokens=100000",
)


@pytest.fixture
def taken():
    """Hold the default port unless another program already does."""
    with socket.socket() as holder:
        with suppress(OSError):
            holder.bind((home.DEFAULT_HOST, home.DEFAULT_PORT))
            holder.listen()
        yield


@pytest.fixture
def machine(tmp_path):
    """A machine without a running Lehr."""
    server = Server(tmp_path / "home", gpus=8)
    yield server
    server.down()


def ranked(stdout: str) -> list[list[str]]:
    """The rows of the ranked table."""
    lines = stdout.splitlines()
    head = next(index for index, line in enumerate(lines) if line.startswith("#"))
    return [line.split() for line in lines[head + 1 : head + 1 + len(RATES)]]


def prepared(machine: Server) -> dict[str, int]:
    """Return the manifests of prepared corpora with their times."""
    files = (machine.home / "data").rglob("*.json")
    return {str(path): path.stat().st_mtime_ns for path in files}


@pytest.mark.usefixtures("taken")
def test_the_demo_prints_a_ranked_table(machine):
    first = machine.cli("demo", *SMALL, timeout=600)
    output = " ".join(first.stderr.split())
    assert "server http://127.0.0.1:" in output
    assert "already running" not in output
    if shutil.which("nvidia-smi") is None:
        assert "cluster 8 x logical GPU (training runs on the CPU)" in output
    assert "corpus Python's standard library: " in output
    assert "sweep lr-grid-small: 3 learning rates, one trial a GPU" in output

    rows = ranked(first.stdout)
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert sorted(float(row[2]) for row in rows) == RATES
    losses = [float(row[3]) for row in rows]
    assert losses == sorted(losses)
    assert ["best" in row for row in rows] == [True, False, False]
    address = json.loads((machine.home / "server.json").read_text())["url"]
    client = Client(address, token=(machine.home / "token").read_text().strip())
    [sweep] = client.sweeps()
    # It ends with what the trials show of the best rate, and what they do not.
    shown = " ".join(first.stdout.split())
    for note in sweep.notes:
        assert " ".join(note.split()) in shown
    assert re.search(
        r"(best|best learning rate) is (probably near|above|below) \d|there is no interval", shown
    )
    runs = {run.id: run.view.attempt for run in client.runs()}
    assert list(runs.values()) == [1, 1, 1]
    best = sweep.best().name
    assert f"lehr show {best}" in " ".join(first.stdout.split())
    assert f"dashboard  {address}" in first.stdout
    assert f"log in     {address}/login?code=" in first.stdout
    assert prepared(machine)
    if shutil.which("nvidia-smi") is None:
        status = " ".join(machine.cli("status").stdout.split())
        assert "8 GPUs busy (logical GPUs: training runs on the CPU)" in status


def test_unknown_override_is_rejected_before_anything_starts(machine):
    done = machine.cli("demo", "run.train.stepps=4", check=False)
    assert done.returncode == 2
    assert "Did you mean run.train.steps?" in done.stderr
    assert machine.cli("down").stdout == "Lehr is not running.\n"
