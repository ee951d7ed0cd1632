"""Which of several with one name a verb takes, and how a submission names the others."""

import json

import pytest

from lehr import Client
from lehr.control.lifecycle import RunState
from lehr.errors import Conflict
from lehr.specs import load_spec
from lehr_testing import cli, seeding
from lehr_testing.api import RUN_SPEC, TOKEN, begin, end, ingest, served, started

WAITS = None


@pytest.fixture
def server(tmp_path):
    with served(tmp_path / "home") as (api, address), Client(address, TOKEN) as client:
        yield api.store, client


def runs_of(store, *states, name="first"):
    """Create runs of one name, the oldest first; return their ids. WAITS: never started."""
    made = []
    for state in states:
        run = store.runs.create(load_spec({**RUN_SPEC, "name": name}))
        made.append(run.id)
        if state is not WAITS:
            ingest(store, begin(store, run.id), started())
            if state != RunState.RUNNING:
                end(store, run.id, state)
    return made


@pytest.mark.parametrize(
    ("verb", "older", "newest"),
    [
        ("cancel", RunState.RUNNING, RunState.FAILED),
        ("pause", RunState.RUNNING, RunState.COMPLETED),
        ("delete", RunState.COMPLETED, RunState.RUNNING),
        ("retry", RunState.FAILED, RunState.COMPLETED),
        ("compare", RunState.COMPLETED, WAITS),
        ("seeds", RunState.COMPLETED, WAITS),
    ],
)
def test_verb_takes_the_one_it_can_act_on_not_the_newest(server, verb, older, newest):
    store, client = server
    expected, last = runs_of(store, older, newest)
    assert client.run("first", verb).id == client.find_any("first", verb).id == expected
    assert client.run("first").id == last
    assert client.run(last, verb).id == last


def test_run_that_trains_comes_before_a_sweep_of_its_name_that_ended(server):
    store, client = server
    sweep, (trial,) = seeding.create_sweep(store, seeding.lr_sweep("first", [1e-3]))
    (run,) = runs_of(store, RunState.RUNNING)
    assert len({type(one) for one in client.named("first")}) == 2
    with pytest.raises(Conflict):
        client.find("first", "cancel")
    seeding.start(store, trial).end(RunState.COMPLETED, 1)
    assert client.find("first", "cancel").id == run
    assert client.find("first").id == sweep.id


def test_several_that_fit_are_listed_with_what_to_type_and_nothing_is_done(server, tmp_path):
    store, client = server
    one, other, done = runs_of(store, RunState.RUNNING, WAITS, RunState.COMPLETED)
    refused = cli.call(
        *("--server", client.server, "cancel", "first"), cwd=tmp_path, LEHR_TOKEN=TOKEN
    )
    assert refused.returncode == 2
    assert f"lehr cancel {one}    run, running, " in refused.stderr
    assert f"lehr cancel {other}    run, queued, " in refused.stderr
    assert done not in refused.stderr
    assert [store.runs.get(run).desired for run in (one, other)] == ["run", "run"]


def test_submission_names_what_has_its_name_already(server, tmp_path):
    _, client = server
    (tmp_path / "run.yaml").write_text(json.dumps({**RUN_SPEC, "name": "first"}))
    call = ("--server", client.server, "submit", "run.yaml")
    assert "Another" not in cli.call(*call, cwd=tmp_path, LEHR_TOKEN=TOKEN).stderr
    earlier = client.run("first").id
    said = cli.call(*call, cwd=tmp_path, LEHR_TOKEN=TOKEN).stderr
    assert f"Another first exists: {earlier} (run, queued, " in said
    assert f"This one is {client.run('first').id}." in said
