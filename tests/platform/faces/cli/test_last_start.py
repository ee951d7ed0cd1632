"""The next `lehr up` can repeat the options of the last one, and a drop of them is shown."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from lehr.base import procfs
from lehr.errors import Conflict
from lehr.faces.cli import daemon, last_start, server
from lehr.faces.cli.daemon import RunningServer
from lehr.faces.cli.last_start import ServerOptions, Start
from lehr.faces.cli.shutdown import ShutdownReport
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
    last_start.write(tmp_path, Start(1, CLUSTER, {"LEHR_RUNS": SHARED}))
    return tmp_path


@pytest.fixture
def starts(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the start of a server, which these tests do not need."""

    def bring_up(options: ServerOptions) -> tuple[RunningServer, bool]:
        start = Start(2, options, last_start.named_files(options))
        return RunningServer(home, "http://10.0.0.1:5347", 2, start), True

    monkeypatch.setattr(server, "bring_up", bring_up)
    monkeypatch.setattr(server, "one_time_login", lambda _: "")


def printed(*words: str, home: Path, **env: str) -> str:
    output = call(*words, cwd=home, LEHR_HOME=str(home), COLUMNS="1000", **env).stdout
    return " ".join(output.split())


def test_command_has_all_options_that_are_no_default_for_a_shell(home: Path) -> None:
    start = last_start.read(home)
    assert start == Start(1, CLUSTER, {"LEHR_RUNS": SHARED})
    assert start.command == COMMAND
    assert shlex.split(start.command)[:2] == [f"LEHR_RUNS={SHARED}", "lehr"]


@pytest.mark.parametrize("public_url", ["http://10.0.0.1:5347", "https://lehr.example"])
def test_authority_is_recorded_for_a_server_that_is_reached_by_tls(
    monkeypatch: pytest.MonkeyPatch, public_url: str
) -> None:
    """Its own workers trust it by this variable; a shell may have it for another server, too."""
    monkeypatch.setenv("LEHR_CA", "/etc/lehr/ca.pem")
    options = ServerOptions(more=("--public-url", public_url))
    command = Start(1, options, last_start.named_files(options)).command
    assert ("LEHR_CA=/etc/lehr/ca.pem lehr up" in command) == public_url.startswith("https")


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
def test_another_folder_of_runs_is_named(home: Path) -> None:
    assert f"The last server had LEHR_RUNS='{SHARED}'," in printed("up", home=home, LEHR_RUNS="/b")
    assert "LEHR_RUNS='" not in printed("up", home=home, LEHR_RUNS=SHARED).partition(" down ")[0]


def test_running_server_with_other_options_is_refused_with_its_command(home: Path) -> None:
    start = last_start.read(home)
    assert start is not None
    running = RunningServer(home, "http://10.0.0.1:5347", 1, start)
    server._check_same(running, CLUSTER)
    with pytest.raises(Conflict, match=r"was started by .*, without --gpus 4\."):
        server._check_same(running, replace(CLUSTER, gpus=4))


def test_down_prints_the_command_that_starts_it_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = ShutdownReport(stopped=["the server"])
    monkeypatch.setattr("lehr.faces.cli.shutdown.take_down", lambda *_, **__: stopped)
    assert printed("down", home=home).endswith(f"To start it again as it was: {COMMAND}")


def test_start_that_succeeds_is_recorded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEHR_RUNS", str(home / "runs"))
    options = ServerOptions(port=free_port(), ray_address=NOWHERE)
    running = daemon.start(home, options)
    try:
        assert running == daemon.running_server(home)
        assert last_start.read(home) == Start(
            running.pid, options, {"LEHR_RUNS": str(home / "runs")}
        )
    finally:
        procfs.end(running.pid, 20)
