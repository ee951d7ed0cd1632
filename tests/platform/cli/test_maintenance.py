"""``lehr maintenance`` against the real API."""

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
            environment = {
                "LEHR_SERVER": address,
                "LEHR_TOKEN": TOKEN,
                "COLUMNS": "200",
                "TZ": "UTC",
                "LEHR_HOME": str(tmp_path / "none"),
            }
            return cli.call(*args, cwd=tmp_path, **environment)

        yield run


def test_window_is_declared_listed_and_removed(lehr):
    assert "No maintenance is declared." in lehr("maintenance", "ls").stdout
    done = lehr(
        *("maintenance", "add", "--from", "now", "--for", "4h", "--node", "n1"),
        *("--repeat", "weekly", "--note", "new drivers"),
    )
    assert done.returncode == 0, done.stderr
    day = r"\d{4}-\d\d-\d\d \d\d:\d\d"
    assert re.fullmatch(rf"Maintenance 1 of node n1, {day} to {day}, weekly\.\n", done.stdout)
    table = lehr("maintenance", "ls").stdout
    assert re.search(rf"1 +n1 +open +{day} +{day} +weekly +user +new drivers", table)
    [listed] = json.loads(lehr("maintenance", "ls", "--json").stdout)["maintenance"]
    assert listed["ends_at"] - listed["starts_at"] == 4 * 3600
    gone = lehr("maintenance", "rm", "1")
    assert gone.stdout.endswith("weekly is removed.\n")
    assert lehr("maintenance", "rm", "1").returncode == 2


def test_local_times_and_offsets_are_read(lehr):
    for text in ("2020-01-01T02:00", "2020-01-01 02:00+05:00"):
        done = lehr("maintenance", "add", "--from", text, "--for", "4h", "--repeat", "daily")
        assert done.returncode == 2
        assert "must be within two years of now" in done.stderr


@pytest.mark.parametrize(
    ("begin", "length", "message"),
    [
        ("tomorrow", "4h", "--from 'tomorrow' is not a time."),
        ("2026-13-01T02:00", "4h", "--from '2026-13-01T02:00' is not a time."),
        ("now", "4", "--for '4' is not a time."),
        ("now", "0h", "duration_s is 0"),
    ],
)
def test_wrong_time_is_one_clear_error(lehr, begin, length, message):
    done = lehr("maintenance", "add", "--from", begin, "--for", length)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
