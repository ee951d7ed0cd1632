"""``lehr quota`` against the real API."""

from __future__ import annotations

import json
import re

import pytest

from lehr_testing import cli
from lehr_testing.api import TOKEN, served


@pytest.fixture
def lehr(tmp_path):
    with served(tmp_path / "home") as (_, address):

        def run(*args):
            environment = {"LEHR_SERVER": address, "LEHR_TOKEN": TOKEN, "COLUMNS": "200"}
            return cli.call(*args, cwd=tmp_path, LEHR_HOME=str(tmp_path), **environment)

        yield run


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
