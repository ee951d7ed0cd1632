"""``lehr secret`` against the real API."""

from __future__ import annotations

import json
import re

import pytest

from lehr_testing import cli
from lehr_testing.api import TOKEN, served


@pytest.fixture
def lehr(tmp_path):
    with served(tmp_path / "home") as (_, address):

        def run(*args, given=None):
            environment = {"LEHR_SERVER": address, "LEHR_TOKEN": TOKEN, "COLUMNS": "200"}
            return cli.call(
                *args, cwd=tmp_path, stdin=given, LEHR_HOME=str(tmp_path), **environment
            )

        yield run


def test_secret_is_read_from_standard_input_listed_and_removed(lehr):
    assert "There is no secret" in lehr("secret", "ls").stdout
    done = lehr("secret", "set", "hf-read", given="the-value\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "hf-read is set. In a spec: secrets: {VARIABLE: hf-read}\n"
    shown = lehr("secret", "ls").stdout
    assert re.search(r"hf-read +\S.* +user", shown)
    [listed] = json.loads(lehr("secret", "ls", "--json").stdout)["secrets"]
    assert set(listed) == {"name", "changed_at", "changed_by"}
    assert lehr("secret", "rm", "hf-read").stdout == "hf-read is removed.\n"
    assert lehr("secret", "rm", "hf-read").returncode == 2
    empty = lehr("secret", "set", "hf-read", given="\n")
    assert empty.returncode == 2
    assert "the value of hf-read is empty" in empty.stderr
