"""The Python client with a real server: types, exact values, retries, errors with a remedy."""

import threading

import httpx
import pytest

from lehr import Client
from lehr.app.services import many_runs
from lehr.control.lifecycle import RunState
from lehr.errors import Conflict, LehrError, NotFound, SpecError, UserError
from lehr.faces.client import run_data
from lehr.faces.client.transport import Transport
from lehr_testing.api import (
    RUN_SPEC,
    SWEEP_SPEC,
    TOKEN,
    begin,
    end,
    evaluation,
    finished,
    ingest,
    line,
    metrics,
    served,
    started,
)

RUN_YAML = """\
name: from-file
train:
  model: tiny
  data: {corpus: {kind: text, paths: [texts], document: line}, tokenizer: byte}
  batch: {sequences: 4, sequence_length: 64}
  steps: 100
"""


@pytest.fixture
def server(tmp_path):
    with served(tmp_path / "home") as pair:
        yield pair


@pytest.fixture
def client(server):
    _, address = server
    with Client(address, TOKEN) as client:
        yield client


def train(store, run_id, losses, *, number=1, state=RunState.COMPLETED):
    """An attempt that logs these values of train/loss and val/loss, and ends."""
    attempt = begin(store, run_id, number)
    ingest(store, attempt, started(number))
    for step, loss in enumerate(losses, start=1):
        ingest(store, attempt, line("metrics", step=step, tokens=step, values={"train/loss": loss}))
    ingest(store, attempt, evaluation(len(losses), losses[-1]))
    ingest(store, attempt, finished(len(losses), "completed"))
    end(store, run_id, state)
    return attempt


def test_paths_of_a_submitted_file_are_relative_to_its_folder(client, tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("".join(f"line {n} of a text\n" for n in range(2000)))
    path = tmp_path / "run.yaml"
    path.write_text(RUN_YAML)
    run = client.submit(path, {"train.steps": 7})
    assert run.state == "queued"
    assert run.config.steps == 7
    assert run.config.optimizer.lr == 3e-4
    assert run.config.data.corpus.paths == [str(tmp_path / "texts")]
    assert run.detail.provenance["versions"]["lehr"]
    assert client.run("from-file").id == run.id
    assert client.run(run.id[:5]).name == "from-file"


def _pinned(run, code):
    return run.model_copy(update={"code": run.code.model_copy(update={"digest": code.digest})})


def test_a_spec_object_is_not_validated_again_before_it_is_sent(client, monkeypatch):
    import lehr.specs

    run, sweep = map(lehr.specs.load_spec, (RUN_SPEC, SWEEP_SPEC))
    monkeypatch.setattr(lehr.specs, "load_spec", lambda *_: pytest.fail("validated again"))
    recorded = client.submit(run).spec
    assert recorded == _pinned(run, recorded.code)
    assert len(client.sweep(sweep).trials) == 3


def test_invalid_spec_raises_with_its_line_before_any_request(client, tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(RUN_YAML.replace("steps: 100", "stepz: 100"))
    with pytest.raises(SpecError) as caught:
        client.submit(path)
    [problem] = caught.value.problems
    assert problem.line == 6
    assert "steps" in (problem.hint or "")
    assert client.runs() == []


def test_lists_are_read_completely_or_up_to_the_limit(client):
    spec = {**SWEEP_SPEC, "parameters": {"train.seed": {"values": list(range(450))}}}
    client.sweep(spec)
    assert len({run.id for run in client.runs()}) == 450
    assert len(client.runs(limit=3)) == 3
    assert client.runs(limit=0) == []
    assert len(client.runs(sweep="grid", states="queued")) == 450
    assert client.runs(states=["running", "failed"]) == []
    assert [sweep.name for sweep in client.sweeps()] == ["grid"]


def test_history_is_exact_in_order_and_the_same_on_every_call(server, client):
    api, _ = server
    run = client.submit(RUN_SPEC)
    attempt = begin(api.store, run.id)
    ingest(api.store, attempt, started() + metrics(1, 2000) + evaluation(1000, 2.5))
    end(api.store, run.id)
    frame = run.history("train/loss", "val/loss")
    assert list(frame.columns) == ["step", "train/loss", "val/loss"]
    assert list(frame["step"]) == list(range(1, 2001))
    assert list(frame["train/loss"]) == [10.0 / step for step in range(1, 2001)]
    assert frame["val/loss"].notna().sum() == 1
    assert frame.set_index("step")["val/loss"][1000] == 2.5
    assert frame.equals(run.history("train/loss", "val/loss"))
    assert set(run.history().columns) == {"step", *(metric.name for metric in run.metrics())}
    [reduced] = run.series("train/loss", points=50)
    assert len(reduced.y) <= 50
    with pytest.raises(NotFound, match="train/los") as caught:
        run.history("train/los")
    assert "train/loss" in (caught.value.hint or "")


def test_wait_returns_when_the_run_ends_and_shows_progress(server, client):
    api, _ = server
    run = client.submit(RUN_SPEC)
    seen = []

    def progress(view):
        seen.append(view.state)
        if len(seen) == 1:
            train(api.store, run.id, [2.0, 1.0])

    assert run.wait(progress=progress, timeout_s=60) is run
    assert seen == ["queued", "completed"]
    assert (run.state, run.step) == ("completed", 2)


def test_sweep_has_best_frame_and_notes(server, client):
    api, _ = server
    sweep = client.sweep(SWEEP_SPEC)
    with pytest.raises(NotFound, match="finite val/loss"):
        sweep.best()
    for trial, losses in zip(sweep.trials, ([3.0, 2.5], [2.9, 2.1], [4.0, "NaN"]), strict=True):
        train(api.store, trial.run.id, losses)
    # The table of a live sweep has its newest values, also without a refresh.
    assert sweep.frame()["val/loss"].tolist()[:2] == [2.5, 2.1]
    sweep.wait(timeout_s=60, progress=lambda view: None)
    assert sweep.state == "finished"
    best = sweep.best()
    assert best.config.optimizer.lr == 1e-3
    assert [trial.number for trial in sweep.results()] == [2, 1, 3]
    frame = sweep.frame()
    assert list(frame["train.optimizer.lr"]) == [1e-4, 1e-3, 1e-2]
    assert list(frame["rank"].fillna(0)) == [2, 1, 0]
    assert frame["val/loss"].tolist()[:2] == [2.5, 2.1]
    assert any("1 diverged" in note for note in sweep.notes)
    assert client.find_sweep("grid").view.best_run_id == best.id
    assert client.sweeps()[0].view.best_value == 2.1


def test_logs_are_read_from_the_end_and_followed(server, client):
    api, _ = server
    run = client.submit(RUN_SPEC)
    assert list(run.logs()) == []
    attempt = begin(api.store, run.id)
    ingest(api.store, attempt, started())
    ingest(api.store, attempt, "one\ntwo\nthrée".encode(), "rank-0.log")
    assert list(run.logs()) == ["one", "two", "thrée"]
    assert list(run.logs(tail=2)) == ["two", "thrée"]
    with pytest.raises(NotFound) as caught:
        list(run.logs("rank-1.log"))
    assert "rank-0.log" in (caught.value.hint or "")
    lines, got = run.logs(follow=True), []
    got += [next(lines), next(lines)]

    def go_on():
        ingest(api.store, attempt, b" and a half\nfour\n", "rank-0.log")
        moved = api.store.transitions.apply(
            run.id,
            old=RunState.RUNNING,
            new=RunState.QUEUED,
            attempt=1,
            cause="node_lost",
            actor="dispatcher",
        )
        assert moved
        api.store.attempts.close(attempt)
        second = begin(api.store, run.id, 2)
        ingest(api.store, second, started(2))
        ingest(api.store, second, b"again\n", "rank-0.log")
        end(api.store, run.id)

    thread = threading.Thread(target=go_on)
    thread.start()
    got += list(lines)
    thread.join(timeout=30)
    assert got == ["one", "two", "thrée and a half", "four", "again"]
    assert list(run.logs(attempt=1, tail=1)) == ["four"]


def test_methods_act_and_conflicts_give_the_reason(server, client):
    api, _ = server
    run = client.submit(RUN_SPEC)
    assert run.pause().view.desired == "pause"
    assert run.resume().view.desired == "run"
    attempt = begin(api.store, run.id)
    ingest(api.store, attempt, started())
    run.checkpoint()
    assert run.cancel().view.desired == "cancel"
    assert [event.kind for event in run.events()].count("request") == 4
    assert run.checkpoints() == []
    assert run.samples() == []
    ingest(api.store, attempt, b"-GIF89a", "media.bin")
    place = {"name": "x", "type": "image", "offset": 1, "size": 6}
    ingest(api.store, attempt, line("media", step=2, **place))
    [image] = run.media()
    assert (image.step, run.media_content(image)) == (2, b"GIF89a")
    end(api.store, run.id, RunState.FAILED)
    assert run.retry().state == "queued"
    with pytest.raises(Conflict, match="queued"):
        run.retry()
    sweep = client.sweep(SWEEP_SPEC)
    assert {trial.run.desired for trial in sweep.cancel().trials} == {"cancel"}


def test_a_notebook_shows_tables_with_everything_escaped(server, client):
    api, _ = server
    spec = {**SWEEP_SPEC, "notes": "<script>", "tags": ["<b>"]}
    sweep = client.sweep(spec)
    train(api.store, sweep.trials[0].run.id, [3.0, 2.5])
    failing = sweep.trials[1].run.id
    attempt = begin(api.store, failing)
    ingest(api.store, attempt, started())
    moved = api.store.transitions.apply(
        failing,
        old=RunState.RUNNING,
        new=RunState.FAILED,
        attempt=1,
        cause="x",
        message=f"<img src=x onerror=alert(1)> {'long ' * 20}end",
        actor="trainer",
    )
    assert moved
    html = sweep.refresh()._repr_html_() + client.run(failing)._repr_html_()
    assert "<img" not in html
    assert html.count(f"&lt;img src=x onerror=alert(1)&gt; {'long ' * 20}end") == 2
    assert "<script" not in html
    assert "<td>2.5</td>" in html
    assert "grid" in repr(sweep)


def test_wait_times_out_without_affecting_the_run(client):
    run = client.submit(RUN_SPEC)
    with pytest.raises(TimeoutError, match="queued"):
        run.wait(timeout_s=0.01)
    assert run.refresh().view.desired == "run"


def test_spec_of_another_kind_is_not_submitted(client):
    with pytest.raises(UserError, match="sweep"):
        client.submit(SWEEP_SPEC)
    with pytest.raises(UserError, match="run"):
        client.sweep(RUN_SPEC)


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
    names = [metric.name for metric in run.metrics()][:2]
    query = {"run": [run.id], "name": names, "points": 200}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = httpx.get(f"{address}/api/v1/series", params=query, headers=headers)
    assert answer.status_code == 200
    monkeypatch.setattr(many_runs, "MOST_POINTS", 100)
    answer = httpx.get(f"{address}/api/v1/series", params=query, headers=headers)
    assert answer.status_code == 422
    assert "more than 100 points" in answer.json()["detail"]
