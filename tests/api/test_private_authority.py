"""A server with TLS and a private authority: the CLI and workers reach it by ``--ca``."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import threading
from dataclasses import replace

import httpx
import pytest

from lehr import Client
from lehr.base import signed_tokens
from lehr.errors import UserError
from lehr.faces.join import drain
from lehr.faces.join.keeper import NodeKeeper
from lehr.faces.join.record import JoinRecord
from lehr.schemas.cluster import JoinView
from lehr_testing.api import RUN_SPEC
from lehr_testing.cli import call
from lehr_testing.processes import Process
from lehr_testing.tls import private_authority

CA = "/etc/lehr/ca.pem"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("private")
    made = private_authority(folder / "tls")
    options = ("--tls-certificate", str(made.certificate), "--tls-key", str(made.key))
    process = Process(folder / "home", *options)
    try:
        yield process.ready(), made
    finally:
        process.end()


@pytest.fixture
def lehr(served, tmp_path, monkeypatch):
    """Runs the command line as on a person's machine."""
    process, _ = served
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    token = process.headers["Authorization"].removeprefix("Bearer ")

    def run(*arguments):
        done = call(
            *arguments,
            cwd=tmp_path,
            LEHR_HOME=str(tmp_path / "mine"),
            LEHR_SERVER=process.info()["url"],
            LEHR_TOKEN=token,
            LEHR_JOIN_TOKEN=token,
        )
        return done.returncode, done.stdout, done.stderr

    return run


def test_command_line_reaches_it_by_ca_and_is_refused_without(served, lehr, tmp_path):
    _, made = served
    (tmp_path / "run.json").write_text(json.dumps({"kind": "run", **RUN_SPEC}))
    code, _, error = lehr("--ca", str(made.authority), "submit", "run.json", "--json")
    assert code == 0, error
    assert json.loads(lehr("--ca", str(made.authority), "ls", "--json")[1])
    code, _, error = lehr("ls")
    assert code == 4
    assert "certificate" in error.lower()
    assert "--ca" in error


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_server_tells_its_authority_to_those_who_print_the_command_to_join(tmp_path, scheme):
    """A shell may name the authority of another server: one without TLS has none."""
    made = private_authority(tmp_path / "tls")
    tls = ("--tls-certificate", str(made.certificate), "--tls-key", str(made.key))
    process = Process(tmp_path / "home", *(tls if scheme == "https" else ()), env={"LEHR_CA": CA})
    try:
        told = process.ready().info()["ca_file"]
    finally:
        process.end()
    assert told == (CA if scheme == "https" else None)


def test_ca_that_is_no_file_is_named(lehr):
    code, _, error = lehr("--ca", "nowhere.pem", "ls")
    assert code == 2
    assert "--ca nowhere.pem: no such file" in error


WORKER = """
import sys
from lehr.node import facts
from lehr.node.http_client import Outage, ServerConnection

url, token, attempt = sys.argv[1:]
print(facts.server_problem(url) or "reached")
try:
    ServerConnection(lambda: url, token, attempt).get("streams")
except Outage as error:
    print(error)
"""


def worker(where, url, record):
    """What a worker of a joined machine says of the server: by the environment that its keeper gives
    to Ray, as far as the agent hands it on.
    """
    view = JoinView.model_construct(server_url=url, ray_address="127.0.0.1:1", ray_token=None)
    (where / "join").mkdir(parents=True, exist_ok=True)
    environment = NodeKeeper(where, record, threading.Event()).environment(view, "127.0.0.1")
    script = f"import os\nfrom lehr.node.agent import clean_environment\n{WORKER}"
    done = subprocess.run(
        [sys.executable, "-c", script, url, "wrong", "abc-1"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_worker_of_a_machine_that_joined_by_ca_reaches_it_and_another_does_not(
    served, tmp_path, monkeypatch
):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    process, made = served
    url = process.info()["url"]
    joined = JoinRecord(url, "n1", "t", 1, logical=True, ca_file=str(made.authority))
    said = worker(tmp_path / "one", url, joined)
    # It is heard: only its token is wrong.
    assert said.startswith("reached\n")
    assert "answered 401" in said
    said = worker(tmp_path / "two", url, replace(joined, ca_file=None))
    assert "it does not trust the certificate" in said
    assert "lehr node join --ca FILE" in said


def test_machine_joins_by_ca_and_is_refused_without(served, lehr):
    process, made = served
    url = process.info()["url"]
    join = ("node", "join", url, "--gpus", "1", "--check")
    code, _, error = lehr(*join)
    assert code == 4
    assert "certificate" in error.lower()
    # It is heard: only the server itself can answer that its URL is one of its machine alone.
    for words in ((*join, "--ca", str(made.authority)), ("--ca", str(made.authority), *join)):
        assert "other machines cannot join: this server's URL" in lehr(*words)[2]


@pytest.mark.parametrize("trusted", [True, False])
def test_machine_leaves_by_the_authority_with_which_it_joined(
    served, tmp_path, monkeypatch, trusted
):
    """The server is told that it leaves, also by a command line without --ca."""
    process, made = served
    monkeypatch.setenv("SSL_CERT_FILE", "")  # So that it is as before at the end.
    monkeypatch.delenv("SSL_CERT_FILE")
    secret = process.headers["Authorization"].removeprefix("Bearer ")
    joined = JoinRecord(
        server_url=process.info()["url"],
        node="gpu-9",
        node_token=signed_tokens.node_token(secret, "gpu-9"),
        gpus=1,
        logical=True,
        ca_file=str(made.authority) if trusted else None,
    )
    result = drain.drain(tmp_path, joined, wait=False, timeout_s=5)
    assert (result.unreachable is None) == trusted


def test_missing_certificate_file_is_named_and_read_for_https_alone(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with pytest.raises(UserError, match=r"SSL_CERT_FILE is '/nowhere/ca.pem'"):
        Client("https://127.0.0.1:1", "t")
    monkeypatch.setattr(ssl, "create_default_context", lambda *_, **__: pytest.fail("was read"))
    Client("http://127.0.0.1:1", "t").close()


def test_login_cookie_is_for_https_only_and_plain_http_is_rejected(served):
    process, made = served
    url = process.info()["url"]
    token = process.headers["Authorization"].removeprefix("Bearer ")
    context = ssl.create_default_context(cafile=str(made.authority))
    with httpx.Client(base_url=url, verify=context, trust_env=False) as http:
        answer = http.post("/login", data={"token": token}, headers={"Origin": url})
        assert answer.status_code == 303, answer.text
        assert "secure" in answer.headers["set-cookie"].lower()
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{process.port}/api/v1/health", trust_env=False, timeout=20)
