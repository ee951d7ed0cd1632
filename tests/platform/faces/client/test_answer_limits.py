"""One answer has a limit of points; the client reads the curves of a run in parts."""

import httpx
import pytest

from lehr import Client
from lehr.app.services import many_runs
from lehr.errors import LehrError
from lehr.faces.client import run_data
from lehr.faces.client.transport import Transport
from lehr_testing.api import RUN_SPEC, TOKEN, begin, evaluation, ingest, metrics, served, started


@pytest.fixture
def server(tmp_path):
    with served(tmp_path / "home") as pair:
        yield pair


@pytest.fixture
def client(server):
    _, address = server
    with Client(address, TOKEN) as client:
        yield client


def test_an_answer_has_a_limit_of_points_and_the_client_asks_again(server, client, monkeypatch):
    api, _ = server
    run = client.submit(RUN_SPEC)
    attempt = begin(api.store, run.id)
    ingest(api.store, attempt, started() + metrics(1, 300) + evaluation(100, 2.5))
    whole = run.history()
    names = [metric.name for metric in run.metrics()]
    assert len(names) >= 3
    asked = []
    real = Transport.get
    monkeypatch.setattr(
        Transport,
        "get",
        lambda self, path, *given, **more: (asked.append(path), real(self, path, *given, **more))[
            1
        ],
    )
    monkeypatch.setattr(many_runs, "MOST_POINTS", 350)
    with pytest.raises(LehrError, match="more than 350 points") as refused:
        run.history(*names[:2], "val/loss")
    assert "Ask for fewer metrics" in (refused.value.hint or "")
    monkeypatch.setattr(run_data, "_POINTS_A_PART", 350)
    asked.clear()
    assert run.history().equals(whole)
    assert len([path for path in asked if path.endswith("/series")]) > 1
    monkeypatch.setattr(many_runs, "MOST_POINTS", 10)
    assert len(run.history(names[0])) == 300, "one metric can always be read"
    monkeypatch.setattr(run_data, "_NAMES_A_PART", 1)
    asked.clear()
    assert [one.name for one in run.series(*names, points=5)] == names
    assert len(asked) == len(names)


def test_chart_of_many_runs_has_a_limit_of_points(server, client, monkeypatch):
    api, address = server
    run = client.submit(RUN_SPEC)
    ingest(api.store, begin(api.store, run.id), started() + metrics(1, 300))
    query = {"run": [run.id], "name": ["train/loss"], "points": 200}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = httpx.get(f"{address}/api/v1/series", params=query, headers=headers)
    assert answer.status_code == 200
    monkeypatch.setattr(many_runs, "MOST_POINTS", 100)
    answer = httpx.get(f"{address}/api/v1/series", params=query, headers=headers)
    assert answer.status_code == 422
    assert "more than 100 points" in answer.json()["detail"]
