"""Tables in a terminal of 80 characters: ids, losses and states are whole."""

from __future__ import annotations

import re

import pytest

from lehr.control.lifecycle import RunState
from lehr_testing import cli, seeding
from lehr_testing.api import TOKEN, served

LONG = "llama-two-gpus-resumed-with-a-name-that-is-long"


@pytest.fixture
def at_80(tmp_path):
    with served(tmp_path / "home") as (api, address):
        ids = []
        for number, name in enumerate(("lr-grid-small-1", LONG), start=1):
            run = api.store.runs.create(seeding.run_spec(name, project=f"project-{number}"))
            attempt = seeding.start(api.store, run)
            attempt.train(range(1, 101))
            attempt.warn("stalled", "the data loader waits for a very slow network disk " * 3, 99)
            attempt.end(RunState.COMPLETED, 100)
            ids.append(run.id)

        def run(*args):
            environment = {"LEHR_SERVER": address, "LEHR_TOKEN": TOKEN, "COLUMNS": "80"}
            done = cli.call(*args, cwd=tmp_path, LEHR_HOME=str(tmp_path), **environment)
            assert done.returncode == 0, done.stderr
            return done.stdout

        yield run, ids


def test_lists_leave_out_columns_rather_than_cut_values(at_80):
    run, ids = at_80
    listed = run("ls")
    for one in ids:
        row = next(line for line in listed.splitlines() if line.startswith(one))
        assert re.search(r" completed +100/1,000 +\d\.\d{3} +\d\.\d{3} ", row)
    assert "…" not in listed
    assert all(len(line) <= 80 for line in listed.splitlines())
    # The rest of the name is in the next lines.
    assert LONG in "".join(line[10:].split("  ")[0].strip() for line in listed.splitlines()[1:-1])
    table = run("compare", *ids).split("\n\n")[0]
    assert "…" not in table
    assert "baseline" in table


def test_long_texts_continue_in_the_next_line(at_80):
    run, ids = at_80
    assert "…" not in run("spec", "presets")
    words = " ".join(run("show", ids[0]).split())
    assert "the data loader waits for a very slow network disk" in words
