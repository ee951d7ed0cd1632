"""The server process: signals, ports, options."""

from __future__ import annotations

import resource
import signal
import socket
import threading

import pytest
from cryptography.hazmat.primitives import serialization

from lehr.errors import UserError
from lehr_api.__main__ import main
from lehr_api.settings import check_certificate, check_public_url
from lehr_testing.processes import Process
from lehr_testing.server import alive
from lehr_testing.tls import private_authority

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


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return private_authority(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize(
    "url", [None, "http://10.0.0.1:5347", "https://lehr.example", "http://[::1]:1/x"]
)
def test_urls_of_servers_are_accepted(url):
    check_public_url(url)


@pytest.mark.parametrize(
    "url",
    ["10.0.0.1:5347", "lehr.example:5347", "ftp://a", "http://", "http://a:b", "http://a:70000"],
)
def test_other_public_urls_are_named_with_an_example(url):
    with pytest.raises(UserError, match="is no URL of a server") as raised:
        check_public_url(url)
    assert f"--public-url {url}" in raised.value.message
    assert "http://10.0.0.1:5347" in raised.value.hint


def test_certificate_with_its_key_in_one_or_two_files_is_accepted(made, tmp_path):
    check_certificate(None, None)
    check_certificate(made.certificate, made.key)
    both = tmp_path / "both.pem"
    both.write_bytes(made.certificate.read_bytes() + made.key.read_bytes())
    check_certificate(both, None)


def refusal(certificate, key):
    with pytest.raises(UserError) as raised:
        check_certificate(certificate, key)
    return raised.value


def test_each_wrong_file_is_named(made, tmp_path):
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    assert f"--tls-certificate {junk} has no certificate" in refusal(junk, made.key).message
    assert f"--tls-key {junk} has no private key" in refusal(made.certificate, junk).message
    alone = refusal(made.certificate, None)
    assert "has no private key" in alone.message
    assert "--tls-key FILE" in alone.hint
    assert "without --tls-certificate" in refusal(None, made.key).message
    nowhere = tmp_path / "nowhere.pem"
    assert f"--tls-certificate {nowhere}: No such file" in refusal(nowhere, made.key).message
    torn = tmp_path / "torn.pem"
    torn.write_bytes(made.certificate.read_bytes()[:200])
    assert f"--tls-certificate {torn} and its key cannot be used" in refusal(torn, made.key).message


def test_key_of_another_certificate_and_an_encrypted_one_are_named(made, tmp_path):
    other = private_authority(tmp_path / "other").key
    assert f"--tls-key {other} is not the key of" in refusal(made.certificate, other).message
    key = serialization.load_pem_private_key(made.key.read_bytes(), None)
    encrypted = tmp_path / "encrypted.pem"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    found = refusal(made.certificate, encrypted)
    assert "is encrypted" in found.message
    assert "openssl pkey" in found.hint


@pytest.mark.parametrize("option", ["--public-url", "--tls-certificate"])
def test_server_refuses_them_before_it_makes_anything(tmp_path, capsys, option):
    home = tmp_path / "home"
    # Even without these checks, no server starts: this is no address of this machine.
    words = ["--home", str(home), "--host", "198.51.100.1", "--insecure", option, "nowhere"]
    assert main(words) == 2
    assert f"{option} nowhere" in capsys.readouterr().err
    assert not home.exists()
