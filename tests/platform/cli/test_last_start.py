"""The next `lehr up` can repeat the options of the last one, and a drop of them is shown."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import pytest

from lehr.cli import daemon, last_start, server
from lehr.cli.daemon import RunningServer, ServerOptions
from lehr.cli.processes import ProcessId, stop
from lehr.cli.shutdown import ShutdownReport
from lehr_testing.cli import call
from lehr_testing.processes import NOWHERE
from lehr_testing.server import free_port

SHARED = "/mnt/shared/all runs"
CLUSTER = ServerOptions(
    host="0.0.0.0",
    gpus=2,
    more=("--public-url", "http://10.0.0.1:5347", "--allowed-host", "a", "--insecure"),
)
COMMAND = (
    f"LEHR_RUNS='{SHARED}' lehr up --gpus 2 --host 0.0.0.0 --public-url http://10.0.0.1:5347 "
    "--allowed-host a --insecure"
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a home whose server was started with ``CLUSTER``, and has ended."""
    (tmp_path / "up.json").write_text(
        json.dumps(
            {
                "process": asdict(ProcessId(1, "gone")),
                "options": asdict(CLUSTER),
                "folders": {"LEHR_RUNS": SHARED},
            }
        )
    )
    return tmp_path


@pytest.fixture
def starts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the start of a server, which these tests do not need."""
    running = RunningServer(home, "http://10.0.0.1:5347", ProcessId(1, "x"), ServerOptions())
    monkeypatch.setattr(server, "bring_up", lambda _: (running, True))
    monkeypatch.setattr(server, "one_time_login", lambda _: "")


def printed(*words: str, home: Path, **env: str) -> str:
    output = call(*words, cwd=home, LEHR_HOME=str(home), COLUMNS="1000", **env).stdout
    return " ".join(output.split())


def test_command_has_all_options_that_are_no_default(home: Path) -> None:
    assert last_start.up_command(last_start.last_options(home)) == COMMAND


def test_command_can_be_pasted_into_a_shell(home: Path) -> None:
    words = shlex.split(last_start.up_command(last_start.last_options(home)))
    assert words[:2] == [f"LEHR_RUNS={SHARED}", "lehr"]
    assert words[-3:] == ["--allowed-host", "a", "--insecure"]


@pytest.mark.parametrize("public_url", ["http://10.0.0.1:5347", "https://lehr.example"])
def test_authority_is_recorded_for_a_server_that_is_reached_by_tls(
    monkeypatch: pytest.MonkeyPatch, public_url: str
) -> None:
    """Its own workers trust it by this variable; a shell may have it for another server, too."""
    monkeypatch.setenv("LEHR_CA", "/etc/lehr/ca.pem")
    options = ServerOptions(more=("--public-url", public_url))
    found = last_start.up_command(
        last_start.non_default_options(options, daemon.named_files(options))
    )
    assert ("LEHR_CA=/etc/lehr/ca.pem lehr up" in found) == public_url.startswith("https")


@pytest.mark.usefixtures("starts")
def test_up_without_the_options_of_before_names_them_and_the_command(home: Path) -> None:
    output = printed("up", home=home)
    assert (
        f"! The last server had LEHR_RUNS='{SHARED}', --host 0.0.0.0, --public-url http://10.0.0.1:5347"
        in output
    )
    assert "--gpus 2," not in output
    assert output.partition("lehr down --keep-runs, then ")[2].startswith(COMMAND)


@pytest.mark.usefixtures("starts")
def test_folder_of_runs_that_a_running_server_does_not_use_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, _ = server.bring_up(ServerOptions())
    monkeypatch.setattr(server, "bring_up", lambda _: (running, False))
    output = printed("up", home=home, LEHR_RUNS="/other")
    assert f"! The running server has its runs in {SHARED}. LEHR_RUNS=/other counts only" in output
    assert "!" not in printed("up", home=home)
    assert "!" not in printed("up", home=home, LEHR_RUNS=SHARED)


def test_down_prints_the_command_that_starts_it_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = ShutdownReport(stopped=["the server"])
    monkeypatch.setattr("lehr.cli.shutdown.take_down", lambda *_, **__: stopped)
    assert printed("down", home=home).endswith(f"To start it again as it was: {COMMAND}")


def test_start_that_succeeds_is_recorded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEHR_RUNS", str(home / "runs"))
    options = ServerOptions(port=free_port(), ray_address=NOWHERE)
    running = daemon.start(home, options)
    try:
        assert running.options == options
        assert daemon.recorded_start(home) == (options, {"LEHR_RUNS": str(home / "runs")})
    finally:
        stop(running.process, timeout_s=20)
