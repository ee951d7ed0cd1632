"""What every route does alike: etags, problems, strict queries."""

import pytest

from lehr_testing.api import RUN_SPEC, api_client, submit


def test_reads_have_an_etag_and_unchanged_answers_are_not_sent_again(client):
    submit(client)
    first = client.get("/api/v1/runs/one")
    tag = first.headers["etag"]
    for asked in (tag, f"W/{tag}", f'"x", {tag}', "*"):
        again = client.get("/api/v1/runs/one", headers={"If-None-Match": asked})
        assert again.status_code == 304
        assert again.content == b""
        assert again.headers["etag"] == tag
    client.post("/api/v1/runs/one/cancel")
    changed_ = client.get("/api/v1/runs/one", headers={"If-None-Match": tag})
    assert changed_.status_code == 200
    assert changed_.headers["etag"] != tag


def problem_of(answer, status, code):
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["status"] == status
    assert problem["code"] == code
    assert problem["detail"]
    assert problem["title"]
    return problem


def test_invalid_request_names_the_field_its_value_and_what_is_valid(client):
    wrong = problem_of(client.get("/api/v1/runs?state=runing"), 422, "invalid_request")
    assert wrong["detail"].startswith("state is runing; it must be one of queued, starting, runn")
    assert wrong["hint"] == "Did you mean running?"
    assert wrong["problems"][0]["path"] == "query.state.0"
    low = problem_of(client.get("/api/v1/runs?limit=-1"), 422, "invalid_request")
    assert low["detail"] == "limit is -1: Input should be greater than or equal to 1."
    missing = problem_of(client.get("/api/v1/runs?cursor=" + "z" * 500), 422, "invalid_request")
    assert "zzz" not in missing["detail"]


def test_every_kind_of_error_is_a_problem(client):
    submit(client, name="alpha")
    missing = problem_of(client.get("/api/v1/runs/alpa"), 404, "not_found")
    assert "alpha" in missing["hint"]
    problem_of(client.get("/api/v1/nothing"), 404, "not_found")
    method = problem_of(client.put("/api/v1/cluster"), 405, "method_not_allowed")
    assert "GET" in method["hint"]
    problem_of(client.post("/api/v1/runs", content=b"{"), 422, "invalid_request")
    problem_of(client.post("/api/v1/runs", json={"spec": 5}), 422, "invalid_request")
    problem_of(client.post("/api/v1/runs", json={"sepc": {}}), 422, "invalid_request")
    problem_of(client.post("/api/v1/runs", json={"spec": {}}), 422, "invalid_spec")
    problem_of(client.get("/api/v1/runs/alpha/series"), 422, "invalid_request")
    problem_of(client.get("/api/v1/runs/alpha/series", params={"name": "x"}), 404, "not_found")
    problem_of(client.get("/api/v1/runs/alpha/logs/x.log"), 404, "not_found")
    problem_of(client.post("/api/v1/runs", content=b" " * (5 << 20)), 413, "too_large")


def test_an_internal_error_does_not_reveal_details(tmp_path):
    with api_client(tmp_path) as (api_, client):

        def broken():
            raise RuntimeError("secret detail")

        api_.dispatcher.cluster = broken
        answer = client.get("/api/v1/cluster")
        problem_of(answer, 500, "internal")
        assert "secret" not in answer.text
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"spec": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
        b"\xff\xfe",
        b'{"spec":1e999}',
    ],
)
def test_hostile_bodies_are_refused_as_problems(client, body):
    answer = client.post("/api/v1/runs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in {400, 422}
    assert answer.headers["content-type"] == "application/problem+json"


def test_body_without_a_length_is_limited_as_it_is_read(api):
    _, client = api

    def endless():
        for _ in range(6):
            yield b" " * (1 << 20)

    problem_of(client.post("/api/v1/runs", content=endless()), 413, "too_large")


def test_a_misspelt_key_of_the_body_names_the_right_one(client):
    answer = client.post("/api/v1/runs", json={"spce": RUN_SPEC})
    assert answer.status_code == 422
    problems = {problem["path"]: problem for problem in answer.json()["problems"]}
    assert problems["body.spce"]["message"] == "spce is not a field."
    assert problems["body.spce"]["hint"].startswith("Did you mean spec?   Fields here: spec, ")


def test_node_is_excluded_and_readmitted_and_a_misspelt_one_is_rejected(client):
    path = "/api/v1/cluster/nodes/n1"
    shown = client.post(f"{path}/exclude", json={"reason": "its fans"}).json()
    assert shown["nodes"][0]["excluded"] == "its fans"
    assert client.post(f"{path}/readmit").json()["nodes"][0]["excluded"] is None
    assert client.post(f"{path}/exclude", json={"reason": ""}).status_code == 422
    for missing in (
        client.post("/api/v1/cluster/nodes/n7/readmit"),
        client.post("/api/v1/cluster/nodes/n7/until", json={"until": None}),
    ):
        assert missing.status_code == 404
        assert "'n7'" in missing.json()["detail"]


@pytest.mark.parametrize("days", [-1, 800])
def test_end_of_a_node_that_is_over_or_too_far_is_rejected(store, client, days):
    until = store.clock() + days * 86_400
    answer = client.post("/api/v1/cluster/nodes/n1/until", json={"until": until})
    assert answer.status_code == 422
    assert "it must be after now" in answer.json()["detail"]
    assert store.nodes.until() == {}


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/api/v1/runs?stat=running", "Did you mean state?   There are: state, sweep, "),
        ("/api/v1/compare?run=a&run=b&metrics=x", "Did you mean metric?"),
        ("/api/v1/queue?limit=3", "This route takes none."),
    ],
)
def test_unknown_query_parameter_is_rejected(client, path, meant):
    answer = client.get(path)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert "is not a query parameter of this route" in answer.json()["detail"]
    assert answer.json()["hint"].startswith(meant)
