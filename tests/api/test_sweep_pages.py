"""A sweep's trials come in pages; what is said of the whole sweep does not depend on the page."""

from __future__ import annotations

from typing import Any

import pytest

from lehr import Client
from lehr.app.presenters.sweeps import BEST, PAGE
from lehr.control.lifecycle import RunState
from lehr.faces.client import sweeps as client_sweeps
from lehr_testing.api import SWEEP_SPEC, TOKEN, begin, end, evaluation, ingest, served, started
from lehr_testing.statements import read_statements

TRIALS = 25
PAGED = {"trials", "next_cursor", "trials_total"}


def launched(client, trials: int = TRIALS) -> str:
    values = [1e-4 * n for n in range(1, trials + 1)]
    spec = {**SWEEP_SPEC, "parameters": {"train.optimizer.lr": {"values": values}}}
    answer = client.post("/api/v1/sweeps", json={"spec": spec})
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def show(client, sweep: str, **params: Any) -> dict:
    given = {name: value for name, value in params.items() if value is not None}
    answer = client.get(f"/api/v1/sweeps/{sweep}", params=given)
    assert answer.status_code == 200, answer.text
    return answer.json()


def numbers(page: dict, field: str = "trials") -> list[int]:
    return [trial["number"] for trial in page[field]]


def train(store, sweep: str, losses: dict[int, float]) -> None:
    """Trials by number that end at step 100 with this loss."""
    for trial in store.sweeps.trials(sweep):
        if trial.number in losses:
            attempt = begin(store, trial.run_id)
            ingest(store, attempt, started() + evaluation(100, losses[trial.number]))
            store.event_applier.apply(attempt)
            end(store, trial.run_id, RunState.COMPLETED)


@pytest.mark.parametrize("limit", [1, 7, 24, 25, 26, 1000])
def test_pages_together_are_all_trials_once_in_order(client, limit):
    sweep = launched(client)
    found, cursor, pages = [], None, 0
    while cursor is not None or not pages:
        page = show(client, sweep, limit=limit, cursor=cursor)
        found += numbers(page)
        cursor = page["next_cursor"]
        pages += 1
        assert pages <= TRIALS
        assert page["trials_total"] == TRIALS
        assert page["counts"] == {"queued": TRIALS}
    assert found == list(range(1, TRIALS + 1))
    assert pages == -(-TRIALS // limit)


def test_a_page_has_a_hundred_trials_unless_another_number_is_requested(client):
    sweep = launched(client, PAGE + 1)
    first = show(client, sweep)
    assert len(first["trials"]) == PAGE
    assert numbers(show(client, sweep, cursor=first["next_cursor"])) == [PAGE + 1]
    for bad in ({"limit": 0}, {"limit": 1001}, {"cursor": "x"}):
        answer = client.get(f"/api/v1/sweeps/{sweep}", params=bad)
        assert answer.status_code == 422
        assert next(iter(bad)) in answer.text


def test_what_is_known_of_the_whole_sweep_is_on_each_page(store, client):
    sweep = launched(client)
    train(store, sweep, {n: 3.0 + abs(n - 20) for n in range(1, 23)})
    first, last = show(client, sweep, limit=3), show(client, sweep, limit=3, cursor="22")
    whole = show(client, sweep, limit=1000)
    assert whole["counts"] == {"completed": 22, "queued": 3}
    for page in (first, last):
        assert {k: v for k, v in page.items() if k not in PAGED} == {
            k: v for k, v in whole.items() if k not in PAGED
        }
    assert numbers(first, "best_trials")[:2] == [20, 19]
    assert len(first["best_trials"]) == BEST
    by_number = {trial["number"]: trial for trial in whole["trials"]}
    assert all(trial == by_number[trial["number"]] for trial in first["best_trials"])
    assert (first["steps_made"], first["steps_done"]) == (22 * 100, 22 * 100)
    assert first["steps_total"] == TRIALS * 100
    ended = [trial["run"]["ended_at"] for trial in whole["trials"] if trial["run"]["ended_at"]]
    assert first["ended_at"] == max(ended)


def test_only_trials_in_the_requested_states_are_on_the_pages(store, client):
    sweep = launched(client)
    train(store, sweep, {4: 3.0, 9: 2.0, 11: 4.0})
    page = show(client, sweep, state=["completed", "failed"], limit=2)
    assert (numbers(page), page["trials_total"]) == ([4, 9], 3)
    rest = show(client, sweep, state=["completed", "failed"], cursor=page["next_cursor"])
    assert (numbers(rest), rest["next_cursor"]) == ([11], None)
    assert rest["counts"] == {"completed": 3, "queued": TRIALS - 3}
    assert client.get(f"/api/v1/sweeps/{sweep}", params={"state": "gone"}).status_code == 422


def test_a_live_page_reads_the_changed_trials_and_how_all_stand(store, client):
    sweep = launched(client)
    train(store, sweep, {4: 3.0, 9: 2.0, 11: 4.0})
    whole = show(client, sweep)
    ninth = whole["trials"][8]
    news = show(client, sweep, run=[ninth["run"]["id"]])
    assert news["trials"] == [ninth]
    assert whole["standings"] == []
    fields = ("number", "value", "step", "compared_value", "rank", "best")
    assert news["standings"] == [{one: t[one] for one in fields} for t in whole["trials"]]
    assert [one["number"] for one in news["standings"] if one["best"]] == [9]
    assert news["counts"] == whole["counts"]
    assert show(client, sweep, run=["gone"])["trials"] == []


def test_statements_of_a_page_do_not_grow_with_the_sweep_nor_read_its_specs(store, client):
    counts = []
    for trials in (8, 40):
        sweep = launched(client, trials)
        show(client, sweep, limit=5)
        with read_statements(store) as found:
            show(client, sweep, limit=5)
        counts.append(len(found))
        specs = [one for one in found if ", runs.spec," in one]
        assert len(specs) == 1  # Those of the page.
        assert not [one for one in found if "FROM provenance" in one]
    assert counts[0] == counts[1]


# ------------------------------------------------------------------------------- the client


@pytest.fixture
def long_sweep(tmp_path, monkeypatch):
    """A sweep of 25 trials for a client whose pages have 4."""
    with served(tmp_path / "home") as (api, address), Client(address, TOKEN) as client:
        values = [1e-4 * n for n in range(1, TRIALS + 1)]
        spec = {**SWEEP_SPEC, "parameters": {"train.optimizer.lr": {"values": values}}}
        sweep = client.sweep(spec)
        monkeypatch.setattr(client_sweeps, "PAGE", 4)
        yield api, client, sweep.refresh()


def requests(client, monkeypatch) -> list[dict]:
    found: list[dict] = []
    get = client.transport.get

    def noted(path, params=None):
        found.append(dict(params or {}))
        return get(path, params)

    monkeypatch.setattr(client.transport, "get", noted)
    return found


def test_the_client_reads_further_pages_when_they_are_used(long_sweep, monkeypatch):
    api, client, sweep = long_sweep
    train(api.store, sweep.id, {n: 3.0 + abs(n - 20) for n in range(1, 23)})
    asked = requests(client, monkeypatch)
    assert sweep.refresh().state == "waiting" or sweep.state == "running"
    assert sweep.best().name == "grid-20"
    assert sweep.notes == sweep.view.notes
    assert len(asked) == 1
    assert [trial.number for trial in sweep.trials] == list(range(1, TRIALS + 1))
    assert len(asked) == 7
    assert len(sweep.runs()) == len(sweep.detail.trials) == TRIALS
    assert sweep.results()[0].number == 20
    assert len(asked) == 7
    assert len(sweep.frame()) == TRIALS
    assert len(asked) == 14, "the frame of a live sweep has its newest values"


def test_waiting_for_a_long_sweep_reads_only_what_trains_or_failed(long_sweep, monkeypatch):
    api, client, sweep = long_sweep
    first = api.store.sweeps.trials(sweep.id)[19].run_id
    ingest(api.store, begin(api.store, first), started() + evaluation(50, 3.0))
    asked = requests(client, monkeypatch)
    seen = []

    def progress(view):
        seen.append(([trial.number for trial in view.trials], view.counts, view.state))
        if len(seen) == 1:
            end(api.store, first, RunState.COMPLETED)
            api.store.sweep_progress.cancel(sweep.id, actor="user")

    assert sweep.wait(timeout_s=60, progress=progress) is sweep
    assert seen[0] == ([20], {"queued": 24, "running": 1}, "running")
    assert seen[-1] == ([], {"cancelled": 24, "completed": 1}, "finished")
    assert all(params["state"] for params in asked[: len(seen)])
    assert (sweep.state, sweep.view.counts) == ("finished", seen[-1][1])
    assert len(sweep.trials) == TRIALS
