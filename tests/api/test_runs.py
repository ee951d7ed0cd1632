"""Runs and sweeps over HTTP: submitted once, completely or not at all; lists, actions, tags."""

import copy
import threading

import pytest

from lehr.control.lifecycle import RunState
from lehr.control.liveness import Liveness
from lehr.presenters.runs import RunPresenter, no_liveness, no_mirror
from lehr.schemas.runs import RunView
from lehr_testing.api import (
    RUN_SPEC,
    SWEEP_SPEC,
    api_client,
    begin,
    end,
    evaluation,
    ingest,
    line,
    metrics,
    started,
)


@pytest.fixture
def api(tmp_path):
    with api_client(tmp_path) as pair:
        yield pair


def changed(spec, path, value):
    spec = copy.deepcopy(spec)
    *way, last = path.split(".")
    here = spec
    for name in way:
        here = here.setdefault(name, {})
    here[last] = value
    return spec


def submit(client, **fields):
    answer = client.post("/api/v1/runs", json={"spec": {**RUN_SPEC, **fields}})
    assert answer.status_code == 201, answer.text
    return answer.json()


def counts(api_):
    return api_.store.runs.page(archived=None).total, api_.store.sweeps.page(archived=None).total


# ------------------------------------------------------------------------------------ submitting


def test_a_submitted_run_is_queued_resolved_and_found_by_id_and_name(api):
    api_, client = api
    run = submit(client)
    assert run["state"] == "queued"
    assert run["spec"]["train"]["model"]["hidden_size"] == 128
    assert run["tokens_per_step"] == 256
    assert run["latest"] == {}
    assert run["step"] is None
    assert api_.dispatcher.woken == 1
    for ref in (run["id"], "one", run["id"][:6]):
        assert client.get(f"/api/v1/runs/{ref}").json()["id"] == run["id"]


def test_overrides_change_the_submitted_spec(api):
    _, client = api
    for overrides in ({"train.steps": 7}, ["train.steps=7"]):
        answer = client.post("/api/v1/runs", json={"spec": RUN_SPEC, "overrides": overrides})
        assert answer.json()["total_steps"] == 7


def test_provenance_is_stored_unchanged(api):
    _, client = api
    body = {"spec": RUN_SPEC, "provenance": {"git": {"commit": "abc"}, "n": [1, None]}}
    run = client.post("/api/v1/runs", json=body).json()
    assert client.get(f"/api/v1/runs/{run['id']}").json()["provenance"] == body["provenance"]


def test_a_bad_spec_names_every_problem_and_records_nothing(api):
    api_, client = api
    spec = changed(RUN_SPEC, "train.optimizer.learning_rate", 1e-3)
    spec = changed(spec, "train.steps", -5)
    answer = client.post("/api/v1/runs", json={"spec": spec})
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert problem["code"] == "invalid_spec"
    assert problem["status"] == 422
    found = {one["path"]: one for one in problem["problems"]}
    assert "train.optimizer.lr" in found["train.optimizer.learning_rate"]["hint"]
    assert "-5" in found["train.steps"]["message"]
    assert counts(api_) == (0, 0)
    assert api_.dispatcher.woken == 0


def test_more_gpus_than_the_cluster_has_are_rejected_at_submission(api):
    api_, client = api
    spec = changed(RUN_SPEC, "resources.gpus", 16)
    spec = changed(spec, "train.batch.sequences", 16)
    answer = client.post("/api/v1/runs", json={"spec": spec})
    assert answer.status_code == 422
    [problem] = answer.json()["problems"]
    assert problem["path"] == "resources.gpus"
    assert "needs 16 GPUs" in problem["message"]
    assert "8 x logical GPU" in problem["message"]
    sweep = changed(SWEEP_SPEC, "run.resources.gpus", 16)
    sweep = changed(sweep, "run.train.batch.sequences", 16)
    answer = client.post("/api/v1/sweeps", json={"spec": sweep})
    [problem] = answer.json()["problems"]
    assert problem["path"] == "run.resources.gpus"
    assert counts(api_) == (0, 0)


def with_corpus(paths):
    return changed(RUN_SPEC, "train.data.corpus", {"kind": "text", "paths": paths})


def test_missing_corpus_is_rejected_at_submission(api, tmp_path):
    api_, client = api
    (tmp_path / "there.txt").write_text("text")
    good, bad = str(tmp_path / "there.txt"), str(tmp_path / "nowhere")
    answer = client.post("/api/v1/runs", json={"spec": with_corpus([good, bad])})
    assert answer.status_code == 422
    [problem] = answer.json()["problems"]
    assert problem["path"] == "train.data.corpus.paths"
    assert bad in problem["message"]
    assert counts(api_) == (0, 0)
    for paths in ([good], [str(tmp_path)], [f"{tmp_path}/*.txt"]):
        answer = client.post("/api/v1/runs", json={"spec": with_corpus(paths)})
        assert answer.status_code == 201, answer.text
    answer = client.post("/api/v1/runs", json={"spec": with_corpus([f"{tmp_path}/*.jsonl"])})
    assert "no file matches" in answer.json()["detail"]


def with_mix(web, tmp_path):
    parts = {
        "web": {"weight": 3, "corpus": {"kind": "text", "paths": [web]}},
        "code": {"weight": 1, "corpus": {"kind": "text", "paths": [str(tmp_path)]}},
    }
    return changed(RUN_SPEC, "train.data.corpus", {"kind": "mix", "parts": parts})


def test_corpora_of_a_mix_are_checked_at_submission(api, tmp_path):
    api_, client = api
    (tmp_path / "there.txt").write_text("text")
    field = "train.data.corpus.parts.web.corpus.paths"
    for path, says in ((str(tmp_path / "nowhere"), "there is no"), ("here", "relative path")):
        answer = client.post("/api/v1/runs", json={"spec": with_mix(path, tmp_path)})
        assert answer.status_code == 422
        [problem] = answer.json()["problems"]
        assert problem["path"] == field
        assert says in problem["message"]
    spec = with_mix(str(tmp_path / "there.txt"), tmp_path)
    body = {"spec": spec, "overrides": {field: ["here"]}}
    assert "relative" in client.post("/api/v1/runs", json=body).json()["detail"]
    (tmp_path / "empty").mkdir()
    answer = client.post("/api/v1/runs", json={"spec": with_mix(f"{tmp_path}/empty", tmp_path)})
    assert f"{field}: the folder {tmp_path}/empty holds no text file" in answer.json()["detail"]
    assert counts(api_) == (0, 0)
    assert client.post("/api/v1/runs", json={"spec": spec}).status_code == 201


@pytest.mark.parametrize(
    ("tokenizer", "wording"),
    [("tekken", "131,072 tokens"), ("tekkn", "did you mean tekken?")],
)
def test_tokenizer_that_does_not_fit_the_model_is_rejected_at_submission(api, tokenizer, wording):
    api_, client = api
    spec = changed(RUN_SPEC, "train.data.tokenizer", tokenizer)
    answer = client.post("/api/v1/runs", json={"spec": spec})
    assert answer.status_code == 422
    [problem] = answer.json()["problems"]
    assert problem["path"] == "train.data"
    assert wording in problem["message"]
    assert counts(api_) == (0, 0)


def test_a_relative_corpus_path_is_rejected(api):
    _, client = api
    answer = client.post("/api/v1/runs", json={"spec": with_corpus(["here/text"])})
    assert answer.status_code == 422
    assert "relative" in answer.json()["detail"]
    for overrides in (
        {"train.data.corpus.paths": ["here"]},
        ["train.data.corpus.paths=[here]"],
    ):
        body = {"spec": with_corpus(["/"]), "overrides": overrides}
        answer = client.post("/api/v1/runs", json=body)
        assert answer.status_code == 422
        assert "relative" in answer.json()["detail"]


def test_corpus_is_not_checked_locally_for_a_remote_cluster(tmp_path):
    with api_client(tmp_path, ray_address="10.0.0.1:6379") as (_, client):
        answer = client.post("/api/v1/runs", json={"spec": with_corpus(["/data/on/the/nodes"])})
        assert answer.status_code == 201


def test_a_sweep_is_recorded_with_all_its_runs_in_order(api):
    _, client = api
    sweep = client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}).json()
    assert [trial["parameters"]["train.optimizer.lr"] for trial in sweep["trials"]] == [
        1e-4,
        1e-3,
        1e-2,
    ]
    assert [trial["run"]["name"] for trial in sweep["trials"]] == ["grid-1", "grid-2", "grid-3"]
    assert sweep["counts"] == {"queued": 3}
    assert sweep["state"] == "waiting"
    assert sweep["best_run_id"] is None


def test_one_bad_trial_records_nothing_of_the_sweep(api):
    api_, client = api
    spec = changed(SWEEP_SPEC, "parameters", {"train.optimizer.lr": {"values": [1e-3, -1]}})
    answer = client.post("/api/v1/sweeps", json={"spec": spec})
    assert answer.status_code == 422
    assert counts(api_) == (0, 0)


def test_spec_sent_to_the_wrong_route_is_rejected_with_the_right_one(api):
    _, client = api
    answer = client.post("/api/v1/runs", json={"spec": SWEEP_SPEC})
    assert answer.status_code == 422
    assert "/api/v1/sweeps" in answer.json()["hint"]
    answer = client.post("/api/v1/sweeps", json={"spec": RUN_SPEC})
    assert "/api/v1/runs" in answer.json()["hint"]


# ----------------------------------------------------------------------------------- idempotency


@pytest.mark.parametrize(("path", "spec"), [("runs", RUN_SPEC), ("sweeps", SWEEP_SPEC)])
def test_the_same_key_and_body_get_the_same_answer_and_record_once(api, path, spec):
    api_, client = api
    key = {"Idempotency-Key": "k1"}
    first = client.post(f"/api/v1/{path}", json={"spec": spec}, headers=key)
    before = counts(api_)
    again = client.post(f"/api/v1/{path}", json={"spec": spec}, headers=key)
    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert "idempotency-replayed" not in first.headers
    assert again.headers["idempotency-replayed"] == "true"
    assert counts(api_) == before


def test_the_same_key_with_another_body_is_refused(api):
    api_, client = api
    key = {"Idempotency-Key": "k1"}
    client.post("/api/v1/runs", json={"spec": RUN_SPEC}, headers=key)
    other = client.post("/api/v1/runs", json={"spec": {**RUN_SPEC, "name": "two"}}, headers=key)
    assert other.status_code == 409
    assert "key" in other.json()["detail"]
    elsewhere = client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}, headers=key)
    assert elsewhere.status_code == 409
    assert counts(api_) == (1, 0)


def test_a_repeated_request_gets_its_first_answer_despite_later_changes(api):
    api_, client = api
    key = {"Idempotency-Key": "k1"}
    first = client.post("/api/v1/runs", json={"spec": RUN_SPEC}, headers=key)
    api_.dispatcher.largest = 0
    again = client.post("/api/v1/runs", json={"spec": RUN_SPEC}, headers=key)
    assert again.json() == first.json()


def test_a_refused_request_may_be_tried_again_with_its_key(api):
    api_, client = api
    key = {"Idempotency-Key": "k1"}
    api_.dispatcher.largest = 0
    assert client.post("/api/v1/runs", json={"spec": RUN_SPEC}, headers=key).status_code == 422
    api_.dispatcher.largest = 8
    assert client.post("/api/v1/runs", json={"spec": RUN_SPEC}, headers=key).status_code == 201


def test_ten_clients_with_one_key_record_one_run(api):
    api_, client = api
    ids, gate = [], threading.Barrier(10)

    def send():
        gate.wait(timeout=20)
        answer = client.post(
            "/api/v1/runs", json={"spec": RUN_SPEC}, headers={"Idempotency-Key": "k1"}
        )
        ids.append((answer.status_code, answer.json()["id"]))

    threads = [threading.Thread(target=send) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(ids) == 10
    assert len(set(ids)) == 1
    assert counts(api_) == (1, 0)


# -------------------------------------------------------------------------------------- listing


def test_pages_are_newest_first_without_gaps_or_duplicates(api):
    _, client = api
    names = [f"run-{n}" for n in range(7)]
    for name in names:
        submit(client, name=name)
    seen, cursor = [], None
    while True:
        params = {"limit": 3} | ({"cursor": cursor} if cursor else {})
        page = client.get("/api/v1/runs", params=params).json()
        assert page["total"] == 7
        seen += [run["name"] for run in page["items"]]
        submit(client, name="meanwhile") if len(seen) == 100 else None
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == names[::-1]


def test_runs_are_filtered(api):
    api_, client = api
    submit(client, name="a", project="p", tags=["x"])
    submit(client, name="b", tags=["y"])
    sweep = client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}).json()

    def names(**params):
        answer = client.get("/api/v1/runs", params=params)
        assert answer.status_code == 200, answer.text
        return sorted(run["name"] for run in answer.json()["items"])

    assert names(project="p") == ["a"]
    assert names(tag="y") == ["b"]
    assert names(name="b") == ["b"]
    assert names(search="grid") == ["grid-1", "grid-2", "grid-3"]
    assert names(sweep="grid") == names(sweep=sweep["id"]) == ["grid-1", "grid-2", "grid-3"]
    begin(api_.store, client.get("/api/v1/runs/a").json()["id"])
    assert names(state="starting") == ["a"]
    assert names(state=["starting", "queued"], project="p") == ["a"]


@pytest.mark.parametrize(
    "params",
    [
        {"limit": 0},
        {"limit": 1001},
        {"limit": "x"},
        {"state": "runing"},
        {"cursor": "x"},
        {"cursor": "-1"},
        {"cursor": "9" * 30},
        {"archived": "perhaps"},
    ],
)
def test_a_wrong_filter_is_a_problem_that_names_it(api, params):
    _, client = api
    submit(client)
    answer = client.get("/api/v1/runs", params=params)
    assert answer.status_code == 422
    assert next(iter(params)) in answer.json()["detail"]


def test_list_of_a_thousand_runs_needs_few_queries(api):
    api_, client = api
    spec = changed(SWEEP_SPEC, "parameters", {"train.seed": {"values": list(range(1000))}})
    assert client.post("/api/v1/sweeps", json={"spec": spec}).status_code == 201
    statements = []
    from sqlalchemy import event

    engine = api_.store.db._readers
    event.listen(engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    page = client.get("/api/v1/runs", params={"limit": 1000}).json()
    assert len(page["items"]) == 1000
    assert len(statements) <= 12


# ------------------------------------------------------------------------------------ the view


def test_each_field_of_a_run_has_its_value(api):
    """A forgotten field would have its default."""
    api_, client = api
    run = api_.store.runs.get(submit(client)["id"])
    [fields] = RunPresenter(api_.store, no_liveness, no_mirror)._fields([run])
    assert fields.keys() == RunView.model_fields.keys()


def test_running_run_shows_its_step_and_remaining_time(api):
    api_, client = api
    run = submit(client)
    attempt = begin(api_.store, run["id"])
    ingest(api_.store, attempt, started() + metrics(1, 40, mfu=0.5) + evaluation(40, 2.5))
    view = client.get("/api/v1/runs/one").json()
    assert view["state"] == "running"
    assert view["step"] == 40
    assert view["latest"]["train/loss"] == {"value": 0.25, "step": 40}
    assert view["latest"]["val/loss"] == {"value": 2.5, "step": 40}
    assert len(view["trend"]) == 24
    assert view["trend"][-1] == 0.25
    assert view["eta_s"] == pytest.approx(30.0)
    assert view["placement"] == [{"node": "n1", "gpu": 0}]
    assert view["device"] == "cpu (logical GPU)"
    assert view["parameters"] == 1000
    assert view["alerts"] == []
    [listed] = client.get("/api/v1/runs").json()["items"]
    assert listed["latest"] == view["latest"]
    # A run without contact has no estimated time.
    for liveness in (Liveness.UNREACHABLE, Liveness.STALLED):
        api_.dispatcher.silent = {run["id"]: liveness}
        view = client.get("/api/v1/runs/one").json()
        assert (view["liveness"], view["eta_s"]) == (liveness.value, None)


@pytest.mark.parametrize("other", [False, True])
def test_other_data_after_a_resume_raises_an_alert(api, other):
    """Digests of superseded steps are compared with those of the attempt that repeated them."""
    api_, client = api
    store, run = api_.store, submit(client)

    def steps(first, last, more=0):
        return b"".join(
            metrics(step, step, **{"data/digest": step * 2.0**40 + more, "data/epoch": step / 99})
            for step in range(first, last + 1)
        )

    ingest(store, begin(store, run["id"]), started() + steps(1, 8))
    end(store, run["id"], RunState.QUEUED)
    resumed = line("resumed", step=5, checkpoint="attempt-1/checkpoints/step-00000005")
    second = begin(store, run["id"], 2)
    ingest(store, second, started(2) + resumed + steps(6, 6) + steps(7, 10, more=int(other)))
    alerts = client.get("/api/v1/runs/one/alerts").json()
    assert [(alert["code"], alert["step"]) for alert in alerts] == [("other_data", 7)] * other
    view = client.get("/api/v1/runs/one").json()
    assert view["latest"]["data/epoch"] == {"value": pytest.approx(10 / 99), "step": 10}


def test_non_finite_values_are_sent_by_name_and_raise_an_alert(api):
    api_, client = api
    run = submit(client)
    attempt = begin(api_.store, run["id"])
    ingest(api_.store, attempt, started() + metrics(1, 3) + evaluation(3, "NaN"))
    ingest(api_.store, attempt, line("warning", code="loss_spike", message="the loss jumped"))
    ingest(
        api_.store,
        attempt,
        line("metrics", step=4, tokens=9, values={"train/loss": "Infinity"}),
    )
    view = client.get("/api/v1/runs/one").json()
    assert view["latest"]["val/loss"]["value"] == "NaN"
    assert view["latest"]["train/loss"]["value"] == "Infinity"
    assert view["trend"][-1] == "Infinity"
    assert "val/loss is nan at step 3" in view["alerts"]
    assert "the loss jumped" in view["alerts"]
    assert any("the loss became inf at step 4" in alert for alert in view["alerts"])
    [listed] = client.get("/api/v1/runs").json()["items"]
    assert listed["alerts"] == view["alerts"]
    [series] = client.get("/api/v1/runs/one/series", params={"name": "val/loss"}).json()
    assert series["y"] == ["NaN"]
    evaluations = [
        e for e in client.get("/api/v1/runs/one/events").json() if e["kind"] == "evaluation"
    ]
    assert evaluations[0]["data"]["values"] == {"val/loss": "NaN"}


def test_liveness_is_shown_while_a_run_is_active(api):
    from lehr.control.liveness import Liveness

    api_, client = api
    run = submit(client)
    api_.dispatcher.silent[run["id"]] = Liveness.STALLED
    assert client.get("/api/v1/runs/one").json()["liveness"] == "ok"
    attempt = begin(api_.store, run["id"])
    assert client.get("/api/v1/runs/one").json()["liveness"] == "stalled"
    ingest(api_.store, attempt, started())
    end(api_.store, run["id"])
    assert client.get("/api/v1/runs/one").json()["liveness"] == "ok"


def test_events_merge_transitions_requests_and_trainer_records(api):
    api_, client = api
    run = submit(client)
    attempt = begin(api_.store, run["id"])
    ingest(api_.store, attempt, line("notice", phase="data", message="prepares", done=0.5))
    assert client.get("/api/v1/runs/one").json()["reason"] == "prepares (50%)"
    ingest(api_.store, attempt, started())
    client.post("/api/v1/runs/one/pause")
    events = client.get("/api/v1/runs/one/events").json()
    assert [event["kind"] for event in events] == [
        "transition",
        "transition",
        "notice",
        "started",
        "transition",
        "request",
    ]
    assert events[0]["data"] == {
        "from": None,
        "to": "queued",
        "cause": "submitted",
        "actor": "user",
    }


def test_checkpoints_and_samples_are_listed_with_best_and_latest(api):
    api_, client = api
    run = submit(client)
    attempt = begin(api_.store, run["id"])
    ingest(api_.store, attempt, started())
    for step, loss in ((10, 3.0), (20, 2.0), (30, 2.5)):
        ingest(
            api_.store,
            attempt,
            line(
                "checkpoint",
                step=step,
                path=f"attempt-1/checkpoints/step-{step:08d}",
                size_bytes=5,
                digest="d",
                val_loss=loss,
            ),
        )
    ingest(
        api_.store,
        attempt,
        line("checkpoint_removed", step=10, path="attempt-1/checkpoints/step-00000010"),
    )
    ingest(api_.store, attempt, line("sample", step=20, prompt="The ", text="end"))
    found = client.get("/api/v1/runs/one/checkpoints").json()
    assert [(c["step"], c["best"], c["latest"]) for c in found] == [
        (10, False, False),
        (20, True, False),
        (30, False, True),
    ]
    assert found[0]["removed_at"] is not None
    [sample] = client.get("/api/v1/runs/one/samples").json()
    assert (sample["step"], sample["prompt"], sample["text"]) == (20, "The ", "end")


def test_config_is_yaml_that_reproduces_the_run(api):
    from lehr.specs import read_yaml
    from lehr_trainer.configs.train import TrainConfig

    _, client = api
    run = submit(client)
    answer = client.get("/api/v1/runs/one/config")
    assert answer.headers["content-type"].startswith("application/yaml")
    config = TrainConfig.model_validate(read_yaml(answer.text).data)
    assert config.model_dump(mode="json") == run["spec"]["train"]


# --------------------------------------------------------------------------------------- acting


def test_cancel_is_idempotent_and_wakes_the_dispatcher(api):
    api_, client = api
    submit(client)
    for _ in range(2):
        answer = client.post("/api/v1/runs/one/cancel")
        assert answer.status_code == 200
        assert answer.json()["desired"] == "cancel"
    assert api_.dispatcher.woken == 3
    assert client.post("/api/v1/runs/one/pause").status_code == 409


def test_action_on_an_ended_run_is_a_conflict(api):
    api_, client = api
    run = submit(client)
    attempt = begin(api_.store, run["id"])
    ingest(api_.store, attempt, started())
    end(api_.store, run["id"])
    for verb in ("cancel", "pause", "resume", "retry", "checkpoint"):
        answer = client.post(f"/api/v1/runs/one/{verb}")
        assert answer.status_code == 409, verb
        assert answer.json()["code"] == "conflict"
        assert "completed" in answer.json()["detail"]


def test_only_a_failed_run_can_be_retried_by_hand(api):
    api_, client = api
    run = submit(client)
    attempt = begin(api_.store, run["id"])
    ingest(api_.store, attempt, started())
    end(api_.store, run["id"], RunState.FAILED, "boom")
    failed = client.get("/api/v1/runs/one").json()
    assert (failed["state"], failed["reason"]) == ("failed", "boom")
    answer = client.post("/api/v1/runs/one/retry")
    assert answer.json()["state"] == "queued"
    assert answer.json()["ended_at"] is None
    assert client.post("/api/v1/runs/one/retry").status_code == 409


def test_cancel_of_a_sweep_cancels_all_its_runs(api):
    api_, client = api
    sweep = client.post("/api/v1/sweeps", json={"spec": SWEEP_SPEC}).json()
    first = sweep["trials"][0]["run"]["id"]
    attempt = begin(api_.store, first)
    ingest(api_.store, attempt, started())
    end(api_.store, first)
    answer = client.post("/api/v1/sweeps/grid/cancel")
    assert answer.status_code == 200
    desired = {trial["run"]["id"]: trial["run"]["desired"] for trial in answer.json()["trials"]}
    assert desired.pop(first) == "run"
    assert set(desired.values()) == {"cancel"}


# ------------------------------------------------------------------------------ etags, problems


def test_reads_have_an_etag_and_unchanged_answers_are_not_sent_again(api):
    _, client = api
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


def test_invalid_request_names_the_field_its_value_and_what_is_valid(api):
    _, client = api
    wrong = problem_of(client.get("/api/v1/runs?state=runing"), 422, "invalid_request")
    assert wrong["detail"].startswith("state is runing; it must be one of queued, starting, runn")
    assert wrong["hint"] == "Did you mean running?"
    assert wrong["problems"][0]["path"] == "query.state.0"
    low = problem_of(client.get("/api/v1/runs?limit=-1"), 422, "invalid_request")
    assert low["detail"] == "limit is -1: Input should be greater than or equal to 1."
    missing = problem_of(client.get("/api/v1/runs?cursor=" + "z" * 500), 422, "invalid_request")
    assert "zzz" not in missing["detail"]


def test_a_body_that_is_not_json_is_an_error_with_a_hint(api):
    _, client = api
    json_type = {"content-type": "application/json"}
    broken = client.post("/api/v1/runs", content=b"{bad", headers=json_type)
    detail = problem_of(broken, 422, "invalid_request")["detail"]
    assert detail.startswith("body is not JSON: ")
    form = {"content-type": "application/x-www-form-urlencoded"}
    untyped = client.post("/api/v1/runs", content=b'{"spec": {}}', headers=form)
    hint = problem_of(untyped, 422, "invalid_request")["hint"]
    assert hint == (
        "Send it as Content-Type: application/json (it was application/x-www-form-urlencoded)."
    )


def test_every_kind_of_error_is_a_problem(api):
    _, client = api
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
def test_hostile_bodies_are_refused_as_problems(api, body):
    _, client = api
    answer = client.post("/api/v1/runs", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in {400, 422}
    assert answer.headers["content-type"] == "application/problem+json"


def test_body_without_a_length_is_limited_as_it_is_read(api):
    _, client = api

    def endless():
        for _ in range(6):
            yield b" " * (1 << 20)

    problem_of(client.post("/api/v1/runs", content=endless()), 413, "too_large")


def test_a_misspelt_key_of_the_body_names_the_right_one(api):
    _, client = api
    answer = client.post("/api/v1/runs", json={"spce": RUN_SPEC})
    assert answer.status_code == 422
    problems = {problem["path"]: problem for problem in answer.json()["problems"]}
    assert problems["body.spce"]["message"] == "spce is not a field."
    assert problems["body.spce"]["hint"].startswith("Did you mean spec?   Fields here: spec, ")


def test_misspelt_gpu_type_gets_a_suggestion(api):
    _, client = api
    spec = changed(RUN_SPEC, "resources.gpu_type", "H1000")
    answer = client.post("/api/v1/runs", json={"spec": spec})
    assert answer.status_code == 422
    [problem] = answer.json()["problems"]
    assert problem["path"] == "resources.gpu_type"
    assert "'H1000'" in problem["message"]
    assert "Did you mean H100?" in problem["hint"]
    assert client.get("/api/v1/runs").json()["items"] == []
    assert submit(client, resources={"gpu_type": "H100"})["gpu_type"] == "H100"


def test_node_is_excluded_and_readmitted_and_a_misspelt_one_is_rejected(api):
    _, client = api
    path = "/api/v1/cluster/nodes/n1"
    shown = client.post(f"{path}/exclude", json={"reason": "its fans"}).json()
    assert shown["nodes"][0]["excluded"] == "its fans"
    assert client.post(f"{path}/readmit").json()["nodes"][0]["excluded"] is None
    assert client.post(f"{path}/exclude", json={"reason": ""}).status_code == 422
    missing = client.post("/api/v1/cluster/nodes/n7/readmit")
    assert missing.status_code == 404
    assert "'n7'" in missing.json()["detail"]


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/api/v1/runs?stat=running", "Did you mean state?   There are: state, sweep, "),
        ("/api/v1/compare?run=a&run=b&metrics=x", "Did you mean metric?"),
        ("/api/v1/queue?limit=3", "This route takes none."),
    ],
)
def test_unknown_query_parameter_is_rejected(api, path, meant):
    _, client = api
    answer = client.get(path)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert "is not a query parameter of this route" in answer.json()["detail"]
    assert answer.json()["hint"].startswith(meant)
