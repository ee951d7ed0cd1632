"""`lehr up` waits for a server that works, and gives up on one that does nothing."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
from dataclasses import asdict

import pytest

from lehr import Client
from lehr.cli import daemon
from lehr.cli.daemon import ServerOptions
from lehr.cli.processes import identify, stop
from lehr.cluster import ray_process
from lehr.errors import LehrError, ServerUnavailable, UserError
from lehr.node import procfs

SLEEPS = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(daemon, "START_TIMEOUT_S", 0.0)
    monkeypatch.setattr(daemon, "_IDLE_S", 0.0)
    monkeypatch.setattr(daemon, "server_command", lambda *_: SLEEPS)


def test_server_that_works_is_awaited_and_one_that_does_nothing_is_not(
    tmp_path, impatient, monkeypatch
):
    used_s = iter([1.0, 2.0, 3.0, 3.01])
    monkeypatch.setattr(daemon, "processor_s", lambda pid: next(used_s))
    messages = []
    with pytest.raises(LehrError, match="does not answer, and does nothing"):
        daemon.start(tmp_path / "home", ServerOptions(), messages.append)
    assert len(messages) == 3
    assert next(used_s, None) is None


def test_ctrl_c_while_the_server_starts_stops_it_and_its_ray(
    tmp_path, impatient, monkeypatch, capsys
):
    pids = []
    monkeypatch.setattr(daemon, "processor_s", lambda pid: pids.append(pid) or 9.0)

    def press(_message):
        with pytest.raises(ServerUnavailable, match="is being started or stopped"):
            Client()
        monkeypatch.setattr(daemon, "stop", stop_server)
        raise KeyboardInterrupt

    def stop_server(process, *, timeout_s):
        assert "Stopping the server and Ray" in capsys.readouterr().err
        stop(process, timeout_s=timeout_s)
        # What it has started when it ends: a process with the mark of a recorded Ray.
        rays.append(subprocess.Popen(SLEEPS, env={ray_process.MARK: "m"}))
        started = procfs.start_time(rays[0].pid)
        head = ray_process.RayProcess("127.0.0.1:1", 1, "m", rays[0].pid, started, procfs.boot_id())
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "head.json").write_text(json.dumps(asdict(head)))

    rays = []
    monkeypatch.setenv("LEHR_HOME", str(tmp_path))
    with pytest.raises(KeyboardInterrupt), daemon.one_at_a_time(tmp_path):
        daemon.start(tmp_path, ServerOptions(), press)
    assert identify(pids[0]) is identify(rays[0].pid) is None
    assert not (tmp_path / "up.json").exists()
    with pytest.raises(ServerUnavailable, match="no Lehr server is running"):
        Client()


FAILS = """
import json, sys, traceback
from lehr.errors import HomeUnusable
def open_it():
    raise HomeUnusable("lehr.db was written by a newer version.", hint="Install that version again.")
try:
    try:
        {}["home"]
    except KeyError:
        open_it()
except HomeUnusable:
    print(json.dumps({"event": traceback.format_exc()}))
print(json.dumps({"event": "Application startup failed. Exiting."}))
sys.exit(3)
"""


def test_server_that_fails_is_explained_by_its_error_and_the_cure(tmp_path, monkeypatch):
    monkeypatch.setattr(daemon, "server_command", lambda *_: [sys.executable, "-c", FAILS])
    with pytest.raises(LehrError, match="it ended with exit code 3") as raised:
        daemon.start(tmp_path / "home", ServerOptions())
    assert raised.value.hint.splitlines()[1:] == [
        (
            "    lehr.errors.HomeUnusable: lehr.db was written by a newer version. "
            "Install that version again."
        ),
        "    Application startup failed. Exiting.",
    ]


def test_address_of_another_machine_is_named_with_those_of_this_one(tmp_path):
    with pytest.raises(
        UserError, match=r"--host 198.51.100.1 is no address of this machine"
    ) as raised:
        daemon.start(tmp_path / "home", ServerOptions(host="198.51.100.1"))
    assert "127.0.0.1" in raised.value.hint
    assert "--host 0.0.0.0" in raised.value.hint


def test_port_that_this_user_may_not_use_is_named(tmp_path, monkeypatch):
    def bind(self, address):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(daemon.socket, "socket", type("S", (socket.socket,), {"bind": bind}))
    with pytest.raises(UserError, match=r"--port 80: this user may not listen there"):
        daemon.start(tmp_path / "home", ServerOptions(port=80))
