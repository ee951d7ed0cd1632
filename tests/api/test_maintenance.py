"""The routes of maintenance windows."""

from __future__ import annotations

import pytest

from lehr_testing.api import api_client

PATH = "/api/v1/maintenance"
HOUR = 3600.0


@pytest.fixture
def opened(tmp_path):
    with api_client(tmp_path) as pair:
        yield pair


def declare(api, client, starts_in=HOUR, **changes):
    body = {"starts_at": api.store.clock() + starts_in, "duration_s": 2 * HOUR, **changes}
    return client.post(PATH, json={k: v for k, v in body.items() if v is not None})


def test_window_is_declared_listed_and_removed(opened):
    api, client = opened
    later = declare(api, client, note="new\n drivers", node="n1").json()
    assert (later["state"], later["node"], later["note"]) == ("coming", "n1", "new drivers")
    now = declare(api, client, starts_in=-60.0, repeat="weekly").json()
    assert (now["state"], now["node"], now["repeat"]) == ("open", None, "weekly")
    assert now["ends_at"] - now["starts_at"] == 2 * HOUR
    assert now["created_by"] == "user"
    listed = client.get(PATH).json()["windows"]
    assert [one["id"] for one in listed] == [now["id"], later["id"]]
    woken = api.dispatcher.woken
    assert client.delete(f"{PATH}/{now['id']}").json()["id"] == now["id"]
    assert api.dispatcher.woken == woken + 1
    assert [one["id"] for one in client.get(PATH).json()["windows"]] == [later["id"]]
    missing = client.delete(f"{PATH}/{now['id']}")
    assert missing.status_code == 404
    assert missing.json()["hint"] == "List them: lehr maintenance ls"


def test_repeated_window_shows_its_next_time(opened):
    api, client = opened
    made = declare(api, client, starts_in=-3 * 24 * HOUR, repeat="daily").json()
    assert made["state"] == "open"
    made = declare(api, client, starts_in=-3 * 24 * HOUR - 3 * HOUR, repeat="daily").json()
    assert made["state"] == "coming"
    assert made["starts_at"] - api.store.clock() == pytest.approx(21 * HOUR, abs=60)


@pytest.mark.parametrize(
    ("wrong", "status", "message"),
    [
        ({"duration_s": 0}, 422, "duration_s is 0; it must be from 1 s to 7.776e+06 s (90 days)."),
        ({"duration_s": 1e9}, 422, "it must be from 1 s"),
        ({"repeat": "weekley"}, 422, "repeat is 'weekley'; it must be daily or weekly"),
        ({"repeat": "daily", "duration_s": 90_000}, 422, "must be shorter than 86400 s"),
        ({"starts_in": -3 * HOUR}, 422, "the window is over already."),
        ({"starts_in": 1e12}, 422, "it must be within two years of now"),
        ({"node": "n11"}, 404, "The cluster has no node 'n11'."),
        ({"note": "x" * 501}, 422, "note"),
        ({"starts_in": float(2**63)}, 422, "within two years"),
        ({"more": 1}, 422, "more"),
    ],
)
def test_wrong_window_is_one_clear_error_and_declares_nothing(opened, wrong, status, message):
    answer = declare(*opened, **wrong)
    assert answer.status_code == status
    assert message in answer.json()["detail"]
    assert opened[1].get(PATH).json() == {"windows": []}
    if wrong.get("node"):
        assert answer.json()["hint"] == "Did you mean n1?"
    if wrong.get("repeat") == "weekley":
        assert answer.json()["hint"] == "Did you mean weekly?"


def test_windows_that_are_over_make_room(opened, monkeypatch):
    api, client = opened
    monkeypatch.setattr("lehr.store.records.maintenance.MOST", 1)
    made = declare(api, client)
    assert made.status_code == 201
    full = declare(api, client)
    assert (full.status_code, full.json()["detail"]) == (
        422,
        "there are 1 maintenance windows, the maximum.",
    )
    at = made.json()["ends_at"] + 1
    monkeypatch.setattr(api.store.maintenance, "_clock", lambda: at)
    monkeypatch.setattr(api.store, "clock", lambda: at)
    assert declare(api, client).status_code == 201
    assert states(client) == ["over", "coming"]


def states(client) -> list[str]:
    return [one["state"] for one in client.get(PATH).json()["windows"]]


def test_window_that_is_over_is_kept_for_a_day_since_clocks_are_set_back(opened, monkeypatch):
    api, client = opened
    made = declare(api, client).json()
    for at, then in (
        (made["ends_at"] + 1, ["over", "coming"]),
        (made["ends_at"] - 1, ["open", "coming"]),
        (made["ends_at"] + 24 * HOUR + 1, ["over", "coming"]),
    ):
        monkeypatch.setattr(api.store.maintenance, "_clock", lambda at=at: at)
        monkeypatch.setattr(api.store, "clock", lambda at=at: at)
        if then[0] == "over":
            declare(api, client)
        assert states(client) == then
