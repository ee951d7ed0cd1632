"""``lehr token``, ``lehr audit`` and ``lehr login-link`` against the real API."""

from __future__ import annotations

import json
import re

import pytest

from lehr_testing import cli
from lehr_testing.api import TOKEN, served


@pytest.fixture
def lehr(tmp_path):
    with served(tmp_path / "home") as (_, address):

        def run(*args, token=TOKEN):
            environment = {"LEHR_SERVER": address, "LEHR_TOKEN": token, "COLUMNS": "200"}
            return cli.call(*args, cwd=tmp_path, LEHR_HOME=str(tmp_path / "none"), **environment)

        yield run


def test_token_is_created_used_rotated_and_revoked(lehr):
    assert "There is no named token" in lehr("token", "ls").stdout
    done = lehr("token", "create", "anna", "--role", "viewer", "--expires", "30d")
    assert done.returncode == 0, done.stderr
    assert "anna is a viewer. Until " in done.stdout
    [token] = re.findall(r"LEHR_TOKEN=(\S+)", done.stdout)
    assert lehr("ls", token=token).returncode == 0
    assert re.search(r"anna +viewer +valid", lehr("token", "ls").stdout)
    refused = lehr("token", "ls", token=token)
    assert refused.returncode == 4
    assert "this needs the role admin; the token 'anna' has the role viewer." in refused.stderr
    rotated = json.loads(lehr("token", "rotate", "anna", "--json").stdout)["token"]
    assert lehr("ls", token=token).returncode == 4
    assert lehr("ls", token=rotated["token"]).returncode == 0
    assert lehr("token", "revoke", "anna").stdout == "anna is revoked.\n"
    ended = lehr("ls", token=rotated["token"])
    assert ended.returncode == 4
    assert "the token 'anna' is revoked." in ended.stderr


def test_audit_lists_who_did_what(lehr):
    lehr("token", "create", "anna", "--role", "viewer")
    shown = lehr("audit", "--since", "1h").stdout
    assert re.search(r"user +admin +POST /api/v1/tokens +201 +127.0.0.1", shown)
    assert lehr("audit", "--by", "anna").stdout == "Nothing is recorded.\n"
    [entry] = json.loads(lehr("audit", "--json").stdout)["audit"]
    assert (entry["name"], entry["status"]) == ("user", 201)


def test_login_link_is_an_address_without_the_token(lehr):
    shown = lehr("login-link").stdout
    assert re.fullmatch(r"http://127.0.0.1:\d+/login\?code=\S+\n", shown)
    assert TOKEN not in shown


@pytest.mark.parametrize("time", ["30", "d", "-1d", "30 weeks"])
def test_wrong_time_is_an_error_that_shows_right_ones(lehr, time):
    done = lehr("token", "create", "anna", "--role", "viewer", f"--expires={time}")
    assert done.returncode == 2
    assert f"--expires {time!r} is not a time." in done.stderr
    assert "30m, 12h, 7d" in done.stderr
