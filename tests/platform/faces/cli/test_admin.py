"""``lehr admin token``, ``lehr admin audit`` and ``lehr admin login-link`` against the real API."""

from __future__ import annotations

import json
import re

import pytest

from lehr_testing import cli
from lehr_testing.api import TOKEN, served


@pytest.fixture
def lehr(tmp_path):
    with served(tmp_path / "home") as (api, address):

        def run(*args, token=TOKEN, stdin=None):
            environment = {"LEHR_SERVER": address, "LEHR_TOKEN": token, "COLUMNS": "200"}
            environment["LEHR_HOME"] = str(tmp_path / "none")
            args = args if args[0] == "ls" else ("admin", *args)
            return cli.call(*args, cwd=tmp_path, stdin=stdin, **environment)

        run.api = api
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


def test_quota_is_set_listed_and_removed(lehr):
    assert "No project has a quota" in lehr("quota", "ls").stdout
    done = lehr("quota", "set", "ablations", "16")
    assert done.stdout == "ablations: at most 16 GPUs at a time.\n", done.stderr
    made = json.loads(lehr("quota", "set", "one", "1", "--json").stdout)["quota"]
    assert set(made) == {"project", "gpus", "changed_at", "changed_by"}
    assert re.search(r"ablations +16 .* user", lehr("quota", "ls").stdout)
    listed = json.loads(lehr("quota", "ls", "--json").stdout)["quotas"]
    assert [(one["project"], one["gpus"]) for one in listed] == [("ablations", 16), ("one", 1)]
    assert lehr("quota", "rm", "one").stdout == "one has no quota.\n"
    again = lehr("quota", "rm", "one")
    assert again.returncode == 2
    assert "has no quota" in again.stderr
    assert lehr("quota", "set", "one", "-1").returncode == 2


def test_secret_is_read_from_standard_input_listed_and_removed(lehr):
    assert "There is no secret" in lehr("secret", "ls").stdout
    done = lehr("secret", "set", "hf-read", stdin="the-value\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hf-read is set. In a spec: secrets: {VARIABLE: hf-read}, or ")
    lehr.api.services.sender.results["hf-read"] = "answered 404"
    shown = lehr("secret", "ls").stdout
    assert re.search(r"hf-read +\S.* +user +answered 404", shown)
    [listed] = json.loads(lehr("secret", "ls", "--json").stdout)["secrets"]
    assert set(listed) == {"name", "changed_at", "changed_by", "last_message"}
    assert lehr("secret", "rm", "hf-read").stdout == "hf-read is removed.\n"
    assert lehr("secret", "rm", "hf-read").returncode == 2
    empty = lehr("secret", "set", "hf-read", stdin="\n")
    assert empty.returncode == 2
    assert "the value of hf-read is empty" in empty.stderr
