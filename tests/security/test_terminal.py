"""Text of a worker and of a user that would control a terminal: the CLI shows it without that."""

from __future__ import annotations

import json
import unicodedata

import pytest

from lehr.control.lifecycle import RunState
from lehr_testing import cli, seeding
from lehr_testing.api import TOKEN, begin, end, ingest, line, metrics, served, started

# Clear the screen, set the title, and the same by the single characters CSI and OSC.
CONTROLS = "h\ra\x1b[2Jb\x1b]0;title\x07c\x9b2Jd\x9d0;title\x9ce\x08f\x7fg"
SHOWING = (
    "show {run}",
    "show {sweep}",
    "logs {run}",
    "logs {run} --grep title",
    "export {run}",
    "note {run}",
    "watch {run}",
)
"""Commands whose output has the text."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    folder = tmp_path_factory.mktemp("terminal")
    with served(folder / "home") as (api, address):

        def lehr(*args: str) -> cli.CommandResult:
            return cli.call("--server", address, *args, cwd=folder, LEHR_TOKEN=TOKEN)

        runs = [api.store.runs.create(seeding.run_spec(name)) for name in ("one", "two")]
        sweep, _ = seeding.create_sweep(api.store, seeding.lr_sweep("grid", [1e-3, 1e-2]))
        for run in runs:
            attempt = begin(api.store, run.id)
            notice = {"message": CONTROLS, "name": CONTROLS, "text": CONTROLS}
            ingest(
                api.store,
                attempt,
                started()
                + metrics(1, 3)
                + line("metrics", step=4, tokens=4, values={CONTROLS: 1.0})
                + line("notice", step=4, **notice)
                + line("warning", step=4, **notice)
                + line(CONTROLS, step=4, **notice),
            )
            ingest(api.store, attempt, CONTROLS.encode() + b"\n", "rank-0.log")
            api.store.event_applier.apply(attempt)
            end(api.store, run.id, RunState.FAILED, CONTROLS)
            assert lehr("note", run.id, CONTROLS).returncode == 0
        assert lehr("note", sweep.id, CONTROLS).returncode == 0
        names = {"run": runs[0].id, "sweep": sweep.id}
        yield lambda command: lehr(*command.format(**names).split())


@pytest.mark.parametrize("command", SHOWING)
@pytest.mark.parametrize("option", ["", " --json"])
def test_no_command_prints_control_characters(scene, command, option):
    done = scene(command + option)
    assert not {"Usage:", "Traceback"} & {*done.stderr.split()}, done.stderr
    if (command, option) != ("export {run}", " --json"):
        assert "0;title" in done.stdout + done.stderr
    for text in (done.stdout, done.stderr):
        assert not {c for c in text if unicodedata.category(c) == "Cc"} - {"\n", "\t"}


def test_json_keeps_the_text_as_it_is(scene):
    """A program that reads it gets what was written; only its form on the terminal is safe."""
    assert json.loads(scene("show {run} --json").stdout)["run"]["note"] == CONTROLS
