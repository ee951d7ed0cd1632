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


@pytest.mark.parametrize(
    ("url", "ca_file", "words", "about"),
    [
        (TLS, "/etc/lehr/our ca.pem", [TLS, "--ca", "our ca.pem"], "copy /etc/lehr/our ca.pem to"),
        (TLS, None, ["join", TLS], "add: --ca FILE"),
        ("http://lehr.example:5347", None, ["http://lehr.example:5347"], ""),
    ],
)
def test_command_says_what_an_own_authority_needs(where, printed, url, ca_file, words, about):
    serve(where, url, ca_file)
    shown, beside = printed()
    assert shlex.split(shown)[-len(words) :] == words
    assert about in beside
    assert bool(beside) == bool(about)
    assert about in "".join(join_lines(where, url))
    assert json.loads(printed("--json")[0])["ca_file"] == ca_file
