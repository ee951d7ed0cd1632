"""The command line with a real server: commands and their output."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lehr_testing.fakes import faked
from lehr_testing.specs import lr_sweep, run
from lehr_testing.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("platform"),
]

LEHR = str(Path(sys.executable).parent / "lehr")


@pytest.fixture
def write(tmp_path):
    """Writes a spec as a file; JSON is YAML."""

    def write(spec: dict) -> str:
        path = tmp_path / f"{spec['name']}.yaml"
        path.write_text(json.dumps(spec, indent=1))
        return str(path)

    return write


def test_run_is_submitted_watched_and_its_logs_read(server, corpus, write):
    file = write(run(corpus, "cli-run", steps=12))
    server.cli("submit", file)
    watched = server.cli("watch", "cli-run")
    # Which states it prints depends on the speed of the machine; the last is always printed.
    state_lines = [line for line in watched.stderr.splitlines() if line.startswith("cli-run: ")]
    assert state_lines[-1] == "cli-run: completed"
    assert "completed" in watched.stdout
    assert "step 12/12" in watched.stdout
    assert "\x1b" not in watched.stdout + watched.stderr

    shown = json.loads(server.cli("show", "cli-run", "--json").stdout)
    assert set(shown) == {"run", "checkpoints", "events"}
    assert shown["run"]["state"] == "completed"
    assert [c["step"] for c in shown["checkpoints"] if c["latest"]] == [12]

    listed = json.loads(server.cli("ls", "cli-run", "--json").stdout)["runs"]
    assert [row["id"] for row in listed] == [shown["run"]["id"]]
    assert "step 12/12" in server.cli("logs", "cli-run").stdout
    names = {
        log["name"]
        for log in json.loads(server.cli("logs", "cli-run", "-l", "--json").stdout)["logs"]
    }
    assert "rank-0.log" in names


def test_a_sweep_is_planned_launched_watched_and_ranked(server, corpus, write):
    file = write(faked(lr_sweep(corpus, "cli-sweep", [1e-3, 1e-5], steps=6)))
    done = server.cli("sweep", file, "-y", "-w")
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    head = next(index for index, line in enumerate(lines) if line.startswith("#"))
    first, second = lines[head + 1].split(), lines[head + 2].split()
    assert first[:3] == ["1", "cli-sweep-1", "1.0e-3"]
    assert first[4] == "best"
    assert second[:3] == ["2", "cli-sweep-2", "1.0e-5"]
    assert float(first[3]) < float(second[3])
    assert "completed" in first
    shown = json.loads(server.cli("show", "cli-sweep", "--json").stdout)["sweep"]
    assert shown["best_parameters"] == {"train.optimizer.lr": 1e-3}


def test_ending_a_watch_does_not_stop_the_run(server, corpus, write):
    server.cli("submit", write(faked(run(corpus, "cli-detach", steps=100_000))))
    client = server.client()
    watching = subprocess.Popen(
        [LEHR, "watch", "cli-detach"],
        env=server.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert watching.stderr is not None
        for line in watching.stderr:
            if line.startswith("cli-detach: running"):
                break
        watching.send_signal(signal.SIGINT)
        _, output = watching.communicate(timeout=30)
        assert watching.returncode == 0
        assert "Detached. Nothing was stopped." in output
        assert f"Watch again: lehr watch {client.run('cli-detach').id}" in output
        step = client.run("cli-detach").view.step or 0
        until(
            lambda: (client.run("cli-detach").view.step or 0) > step,
            within_s=60,
            what="the run to continue",
        )
    finally:
        watching.kill()
        watching.wait()


def test_up_reuses_a_running_server(server):
    again = server.cli("up", "--gpus", "8", "--port", str(server.port))
    assert "already running" in again.stdout
    refused = server.cli("up", "--gpus", "4", check=False)
    assert refused.returncode == 2
    assert "without --gpus 4" in refused.stderr
    answer = json.loads(server.cli("up", "--json").stdout)
    assert answer["started"] is False
    assert answer["pid"] == server.pid


def test_requested_port_of_another_program_is_rejected(server, tmp_path):
    done = subprocess.run(
        [LEHR, "up", "--port", str(server.port), "--gpus", "1"],
        env={**server.environment, "LEHR_HOME": str(tmp_path / "other")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert f"port {server.port} is used by another program" in done.stderr
