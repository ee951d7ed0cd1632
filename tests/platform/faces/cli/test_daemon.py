"""A server is started, stopped by Ctrl-C, and explained when it fails."""

from __future__ import annotations

import errno
import json
import socket
import subprocess
import sys
from dataclasses import asdict

import pytest

from lehr import Client
from lehr.base import procfs
from lehr.cluster import ray_process
from lehr.errors import LehrError, ServerUnavailable, UserError
from lehr.faces.cli import daemon, last_start
from lehr.faces.cli.daemon import did_not_start, explaining_lines
from lehr.faces.cli.last_start import ServerOptions, Start

SLEEPS = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(daemon, "NOTICE_S", 0.0)
    monkeypatch.setattr(daemon, "server_command", lambda *_: SLEEPS)


def test_ctrl_c_while_the_server_starts_stops_it_and_its_ray(
    tmp_path, impatient, monkeypatch, capsys
):
    def press(_message):
        with pytest.raises(ServerUnavailable, match="is being started or stopped"):
            Client()
        # If this command is killed now, `lehr down` stops that server.
        assert last_start.read(tmp_path).options == ServerOptions()
        monkeypatch.setattr(daemon.procfs, "end", stop_server)
        raise KeyboardInterrupt

    def stop_server(pid, within_s):
        assert "Stopping the server and Ray" in capsys.readouterr().err
        assert end(pid, 20.0) is False
        pids.append(pid)
        # What it has started when it ends: a process with the mark of a recorded Ray.
        rays.append(subprocess.Popen(SLEEPS, env={ray_process.MARK: "m"}))
        started = procfs.start_time(rays[0].pid)
        head = ray_process.RayProcess("127.0.0.1:1", 1, "m", rays[0].pid, started, procfs.boot_id())
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "head.json").write_text(json.dumps(asdict(head)))

    pids, rays, end = [], [], procfs.end
    monkeypatch.setenv("LEHR_HOME", str(tmp_path))
    with pytest.raises(KeyboardInterrupt), daemon.one_at_a_time(tmp_path):
        daemon.start(tmp_path, ServerOptions(), press)
    assert procfs.start_time(pids[0]) is procfs.start_time(rays[0].pid) is None
    assert not (tmp_path / "up.json").exists()
    with pytest.raises(ServerUnavailable, match="no Lehr server is running"):
        Client()


def test_server_that_does_nothing_is_stopped_after_the_limit(tmp_path, impatient, monkeypatch):
    monkeypatch.setattr(daemon, "LIMIT_S", 0.0)
    earlier = Start(1, ServerOptions(gpus=4))
    last_start.write(tmp_path, earlier)
    with pytest.raises(LehrError, match="did not start: no answer within 0 minutes"):
        daemon.start(tmp_path, ServerOptions())
    assert last_start.read(tmp_path) == earlier


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
    assert raised.value.hint.splitlines()[-3:] == [
        "    lehr.errors.HomeUnusable: lehr.db was written by a newer version.",
        "      Install that version again.",
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


TRACEBACK = """\
Traceback (most recent call last):
  File "/x/uvicorn/server.py", line 90, in serve
    config.load()
    ^^^^^^^^^^^^^
ValueError: the first
  with its cure

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/uvicorn/config.py", line 131, in load
    load()
OSError: the second
"""


def event(text, level="info"):
    return json.dumps({"event": text, "level": level}) + "\n"


def test_errors_are_shown_without_the_frames_of_their_tracebacks():
    lines = explaining_lines(TRACEBACK)
    assert lines[:2] == ["ValueError: the first", "  with its cure"]
    assert lines[-1] == "OSError: the second"
    assert not [line for line in lines if "File" in line or "load()" in line or "^" in line]


def test_what_went_well_is_not_shown_beside_an_error():
    output = event("store opened") + event("cannot listen", "error") + event("server stops")
    assert explaining_lines(output) == ["cannot listen"]
    assert explaining_lines(event("store opened") + "lehr: wrong\n  The cure.\n") == [
        "lehr: wrong",
        "  The cure.",
    ]


def test_server_without_an_error_is_explained_by_its_last_lines():
    output = "".join(event(f"step {number}") for number in range(20))
    assert explaining_lines(output) == [f"step {number}" for number in range(8, 20)]


def test_only_the_output_of_this_start_is_shown(tmp_path):
    log = tmp_path / "server.out"
    log.write_text("lehr: an earlier failure\n")
    begin = log.stat().st_size
    assert did_not_start("it ended", log, begin).hint == f"Its log: {log}"
    with log.open("a") as file:
        file.write("lehr: no space\n")
    assert did_not_start("it ended", log, begin).hint == f"The end of {log}:\n    lehr: no space"
