"""The command that adds a machine: what a server prints of its address, its token and its TLS."""

from __future__ import annotations

import json
import shlex

import pytest

from lehr import home
from lehr.cli.join_command import join_lines
from lehr_testing.api import TOKEN
from lehr_testing.cli import call

TLS = "https://lehr.example:5347"


@pytest.fixture
def where(tmp_path):
    """The home of a server with a token."""
    where = tmp_path / "home"
    where.mkdir(mode=0o700)
    (where / "token").write_text(TOKEN)
    (where / "token").chmod(0o600)
    return where


@pytest.fixture
def printed(where):
    """Prints the command of this home's server: (the words, what is said beside it)."""

    def run(*arguments):
        done = call("node", "token", *arguments, cwd=where, LEHR_HOME=str(where))
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return run


def serve(where, url, ca_file=None):
    home.write_server(where, home.ServerInfo(url, 1, "1.0", ca_file))


@pytest.mark.parametrize("url", ["http://127.0.0.1:5347", "http://localhost:80", "http://[::1]:1"])
def test_up_with_a_url_of_this_machine_alone_adds_no_nodes(where, url):
    serve(where, url)
    assert join_lines(where, url) == []
    assert join_lines(where, None) == []


def test_up_for_a_network_adds_nodes_by_a_command(where):
    serve(where, "http://lehr.example:5347")
    about, command = join_lines(where, "http://lehr.example:5347")
    assert "add a node" in about
    assert command.endswith("lehr node join http://lehr.example:5347")


def test_command_for_a_server_of_an_own_authority_names_its_certificate(where, printed):
    serve(where, TLS, "/etc/lehr/our ca.pem")
    _, command, about = join_lines(where, TLS)
    copied = "Before that, copy /etc/lehr/our ca.pem to that machine"
    assert shlex.split(command)[-5:] == ["node", "join", TLS, "--ca", "our ca.pem"]
    assert copied in about
    shown, beside = printed()
    assert shlex.split(shown)[-5:] == ["node", "join", TLS, "--ca", "our ca.pem"]
    assert copied in beside
    assert json.loads(printed("--json")[0])["ca_file"] == "/etc/lehr/our ca.pem"


def test_command_for_a_certificate_of_unknown_origin_says_when_it_needs_an_authority(
    where, printed
):
    serve(where, TLS)
    shown, beside = printed()
    assert shown.endswith(f"lehr node join {TLS}\n")
    assert "add: --ca FILE" in beside
    assert json.loads(printed("--json")[0])["ca_file"] is None


def test_command_for_plain_http_says_nothing_of_certificates(where, printed):
    serve(where, "http://lehr.example:5347")
    assert printed()[1] == ""
