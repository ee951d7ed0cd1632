"""Notes on runs, sweeps and rollouts: kept, found, edited, by every face."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lehr.faces.client import Client
from lehr_testing import rollouts
from lehr_testing.api import RUN_SPEC, SWEEP_SPEC, TOKEN, served
from lehr_testing.cli import call


@pytest.fixture
def lehr(tmp_path: Path):
    with served(tmp_path / "home") as (_, address), Client(address, TOKEN) as client:
        yield client


@pytest.fixture
def command(lehr, tmp_path):
    def run(*args: str, stdin: str | None = None):
        return call(*args, cwd=tmp_path, stdin=stdin, LEHR_SERVER=lehr.server, LEHR_TOKEN=TOKEN)

    return run


def test_note_begins_as_the_specs_and_can_be_replaced_and_found(lehr) -> None:
    first = lehr.submit({**RUN_SPEC, "notes": "warmup of 10 %"})
    second = lehr.submit({**RUN_SPEC, "name": "two"})
    assert (first.note, second.note) == ("warmup of 10 %", "")
    second.set_note("  Diverged at 400, see https://example.org/x  ")
    assert second.note == "Diverged at 400, see https://example.org/x"
    assert [run.name for run in lehr.runs(note="diverged")] == ["two"]
    assert [run.name for run in lehr.runs(note="10 %")] == ["one"]
    assert second.detail.spec["notes"] == ""
    assert second.set_note("").note == ""
    assert lehr.runs(note="diverged") == []


def test_sweeps_and_rollouts_have_notes_too(lehr) -> None:
    sweep = lehr.sweep({**SWEEP_SPEC, "notes": "grid"})
    rollout = lehr.rollout(rollouts.plain(name="staged"))
    assert sweep.note == "grid"
    sweep.set_note("the second grid")
    rollout.set_note("before the long run")
    assert [one.id for one in lehr.sweeps(note="second")] == [sweep.id]
    assert [one.id for one in lehr.rollouts(note="LONG")] == [rollout.id]
    assert lehr.sweeps(note="no such") == []
    assert {run.note for run in sweep.runs()} == {""}


def test_command_shows_replaces_and_removes_a_note(lehr, command) -> None:
    lehr.submit(RUN_SPEC)
    assert "one has no note" in command("note", "one").stdout
    assert command("note", "one", "too hot").stdout.strip() == "too hot"
    assert command("note", "one", "-", stdin="two\nlines\n").stdout == "two\nlines\n"
    assert json.loads(command("note", "one", "--json").stdout)["note"] == "two\nlines"
    assert "one" in command("ls", "--note", "LINES").stdout
    assert "No run matches" in command("ls", "--note", "hot").stderr
    assert "the note is empty" in command("note", "one", " ").stderr
    command("note", "one", "--clear")
    assert lehr.run("one").note == ""
    assert "both given" in command("note", "one", "x", "--clear").stderr
