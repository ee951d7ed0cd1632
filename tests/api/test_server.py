"""The server as a process: one per home, published address, clean stop and restart."""

import resource
import signal
import socket
import threading

import pytest

from lehr_testing.processes import Process
from lehr_testing.server import alive

HOSTS = [
    "0.0.0.0",
    *(pytest.param(host, marks=pytest.mark.nightly) for host in ("::", "192.0.2.1")),
]


@pytest.fixture
def start(tmp_path):
    started = []

    def begin(*options, home=tmp_path / "home", **named):
        process = Process(home, *options, **named)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.end()


def test_a_server_stops_on_a_signal_despite_open_event_streams(start):
    server = start().ready()
    ended, greeted = threading.Event(), threading.Semaphore(0)
    rest = []

    def listen():
        with server.http() as http, http.stream("GET", "/api/v1/stream") as answer:
            for line in answer.iter_lines():
                if line.startswith("event: hello"):
                    greeted.release()
                rest.append(line)
        ended.set()

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    assert greeted.acquire(timeout=60)
    server.child.send_signal(signal.SIGTERM)
    assert server.wait() == 0
    assert ended.wait(timeout=30), "the stream was not ended properly"
    assert not server.info_path.exists()
    assert not alive(server.child.pid)


def test_server_may_open_many_files(start):
    """Each live attempt keeps a connection open; most systems begin with 1,024 files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
    try:
        server = start().ready()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert resource.prlimit(server.child.pid, resource.RLIMIT_NOFILE)[0] == min(hard, 65_536)


def test_a_taken_port_is_reported_before_the_store_is_opened(start):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        server = start(port=port)
        assert server.wait() == 2
    output = "".join(server.output)
    assert str(port) in output
    assert "--port" in output
    assert "Traceback" not in output
    assert not (server.home / "lehr.db").exists()


@pytest.mark.parametrize("host", HOSTS)
def test_network_address_needs_tls_or_insecure(start, host):
    server = start("--host", host)
    assert server.wait() == 2
    output = "".join(server.output)
    assert "--insecure" in output
    assert "Traceback" not in output
