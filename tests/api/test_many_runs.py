"""The metrics and curves of many runs in one answer: the same as each run's own answer."""

import pytest

from lehr.control.lifecycle import RunState
from lehr_testing.api import begin, end, evaluation, ingest, metrics, started, submit
from lehr_testing.statements import read_statements


@pytest.fixture
def three(store, client):
    """Two runs of different lengths, and one without a step."""
    ids = [submit(client, name=name)["id"] for name in ("short", "long", "empty")]
    for run, steps in zip(ids, (5, 40, 0), strict=True):
        attempt = begin(store, run)
        lines = started() + (metrics(1, steps) if steps else b"")
        if steps == 40:
            lines += evaluation(40, 2.5)
        ingest(store, attempt, lines)
    return ids


def test_curves_of_many_runs_are_those_of_each(api, three):
    _, client = api
    short, long, _ = three
    for params in (
        {"name": ["train/loss"]},
        {"name": ["train/loss"], "x": "tokens", "points": 4, "smoothing": 0.5},
        {"name": ["train/loss"], "from": 3, "to": 30, "superseded": True},
    ):
        found = client.get("/api/v1/series", params={"run": [long, short], **params}).json()
        own = [
            client.get(f"/api/v1/runs/{run}/series", params=params).json()[0]
            for run in (long, short)
        ]
        assert found == own
        assert [one["run_id"] for one in found] == [long, short]


def test_metrics_of_many_runs_are_those_of_each(client, three):
    found = client.get("/api/v1/metrics", params={"run": three}).json()
    assert found == [
        {"run_id": run, "metrics": client.get(f"/api/v1/runs/{run}/metrics").json()}
        for run in three
    ]
    assert found[2]["metrics"] == []


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("series", {"name": "train/loss"}),
        ("metrics", {}),
        ("compare", {"metric": "train/loss"}),
        ("values", {}),
    ],
)
def test_runs_are_found_by_their_ids_in_one_statement(store, client, three, path, params):
    def reads(runs):
        with read_statements(store) as found:
            answer = client.get(f"/api/v1/{path}", params={"run": runs, **params})
        assert answer.status_code == 200
        return sum("FROM runs" in one for one in found)

    assert reads(three) == reads(three[:2])


@pytest.mark.parametrize(
    ("path", "params", "status", "words"),
    [
        ("series", {"run": ["shrt", "long"], "name": "train/loss"}, 404, "short"),
        ("metrics", {"run": ["shrt", "long"]}, 404, "short"),
        (
            "series",
            {"run": ["short", "long"], "name": "train/loss", "from": [1, 2, 3]},
            422,
            "from",
        ),
        ("series", {"run": ["short"], "name": "train/loss", "from": "nan"}, 422, "from"),
        ("series", {"run": ["short"] * 101, "name": "train/loss"}, 422, "run"),
        ("series", {"name": "train/loss"}, 422, "run"),
    ],
)
def test_bad_requests_are_answered_with_what_is_wrong(client, three, path, params, status, words):
    answer = client.get(f"/api/v1/{path}", params=params)
    assert answer.status_code == status
    assert words in answer.text


def test_runs_are_listed_by_id_archived_or_not(store, client):
    ids = [submit(client, name=name)["id"] for name in ("a", "b", "c")]
    begin(store, ids[0])
    end(store, ids[0], RunState.FAILED)
    client.post(f"/api/v1/runs/{ids[0]}/archive")
    assert store.runs.get(ids[0]).archived
    page = client.get("/api/v1/runs", params={"run": [ids[0], ids[2], "absent"]}).json()
    assert {run["id"] for run in page["items"]} == {ids[0], ids[2]}
    assert page["total"] == 2
