"""Imports of other tools' runs, with a real server: W&B, TensorBoard and CSV by the real packages,
MLflow and Trackio by what their packages answered.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from textwrap import dedent
from types import ModuleType, SimpleNamespace
from unittest import mock

import pytest
from typer.testing import CliRunner

from lehr.errors import Conflict, ServerUnavailable, UserError
from lehr.faces import import_tools, imported
from lehr.faces.cli.main import root
from lehr.faces.client import Client
from lehr.faces.imported import SourceRun, send_runs
from lehr.node.http_client import ServerConnection
from lehr_testing.api import TOKEN, served
from lehr_testing.paths import DATA

NAN, INF = math.nan, math.inf


class Lehr:
    def __init__(self, api, url):
        self.api, self.client = api, Client(url, TOKEN)

    def send(self, runs) -> list[str]:
        self.runs = list(runs)
        for _ in send_runs(self.client, self.runs):
            pass
        return [run.result for run in self.runs]

    def rows(self):
        return {run.name: run for run in self.api.store.runs.page(limit=100).items}

    def points(self, run, metric) -> dict[int, float]:
        series = self.api.store.series.read(run.id, metric, exact=True)
        return dict(zip(series.step, map(repr, series.y), strict=True))

    def sweep(self, run):
        """Return the sweep of the run as the client has it."""
        return next(one.detail for one in self.client.sweeps() if one.id == run.sweep_id)

    def equal(self, run, metric, points: dict[int, float]) -> bool:
        return self.points(run, metric) == {step: repr(float(y)) for step, y in points.items()}


@pytest.fixture
def lehr(tmp_path, monkeypatch):
    monkeypatch.setenv("LEHR_HOME", str(tmp_path / "home"))
    with served(tmp_path / "server") as (api, url):
        yield Lehr(api, url)


def csv_file(path, rows, header="step,loss"):
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows), ""]))
    return path


def test_csv_has_its_points_and_times_and_no_double(lehr, tmp_path):
    at = 1.7e9
    rows = [(1, 3.0, "", at), (2, "nan", 0.2, at + 5), (3, "-inf", 0.30000000000000004, at + 9)]
    path = csv_file(tmp_path / "my run.csv", rows, "step,loss,acc,wall time")
    assert lehr.send(import_tools.csv(str(path))) == ["imported"]
    run = lehr.rows()["my-run"]
    assert (run.state, run.id, run.project) == ("completed", lehr.runs[0].run_id, "my-run")
    assert lehr.equal(run, "loss", {1: 3, 2: NAN, 3: -INF})
    assert lehr.equal(run, "acc", {2: 0.2, 3: 0.30000000000000004})
    assert run.ended_at == at + 9
    time_ = lehr.api.store.series.read(run.id, "acc", x_axis="time", exact=True)
    assert list(time_.x) == [5, 9]
    assert lehr.send(import_tools.csv(str(path))) == ["unchanged"]
    assert len(lehr.rows()) == 1
    source = lehr.api.store.runs.provenance(run)["imported"]
    assert (source["tool"], source["name"]) == ("csv", "my run")
    assert source["address"].endswith(str(path))


def test_interrupted_import_goes_on_where_it_was(lehr, tmp_path, monkeypatch):
    path = csv_file(tmp_path / "long.csv", [(step, 1 / step) for step in range(1, 3001)])
    monkeypatch.setattr(imported, "_PIECE", 20_000)
    put, sent = ServerConnection.put, []

    def few(self, where, data):
        if len(sent) == 5:
            raise ServerUnavailable("away")
        sent.append(where)
        return put(self, where, data)

    monkeypatch.setattr(ServerConnection, "put", few)
    with pytest.raises(ServerUnavailable):
        lehr.send(import_tools.csv(str(path)))
    assert lehr.rows()["long"].state == "external"
    sent.clear()
    monkeypatch.setattr(
        ServerConnection, "put", lambda *given: sent.append(given[1]) or put(*given)
    )
    assert lehr.send(import_tools.csv(str(path))) == ["imported"]
    assert sent[0].endswith("?offset=100000")
    run = lehr.rows()["long"]
    assert (run.state, run.attempt) == ("completed", 1)
    assert lehr.equal(run, "loss", {step: 1 / step for step in range(1, 3001)})


def source(points, **fields):
    rows = [import_tools.CurveRow(step, dict(values), "", at) for step, values, at in points]
    fresh = [lambda: iter([row._replace(values=dict(row.values)) for row in rows])]
    return SourceRun("mlflow", "http://m", "r1", "mine", "p", fresh[0], 1.6e9, **fields)


def test_run_that_goes_on_grows_and_one_that_changed_is_a_new_attempt(lehr):
    points = [(step, {"x": step}, 1.6e9 + step) for step in range(5)]
    assert lehr.send([source(points[:3], outcome=None)]) == ["imported"]
    assert lehr.rows()["mine"].state == "external"
    assert lehr.send([source(points)]) == ["imported"]
    run = lehr.rows()["mine"]
    assert (run.state, run.attempt) == ("completed", 1)
    assert lehr.equal(run, "x", {step: step for step in range(5)})
    sizes = lehr.api.store.streams.sizes(f"{run.id}-1")
    points[1] = (1, {"x": 7}, 1.6e9)
    assert lehr.send([source(points, outcome="failed", reason="crashed")]) == ["changed"]
    run = lehr.rows()["mine"]
    assert (run.state, run.attempt, run.reason) == ("failed", 2, "crashed")
    assert lehr.api.store.streams.sizes(f"{run.id}-1") == sizes
    assert lehr.equal(run, "x", {0: 0, 1: 7, 2: 2, 3: 3, 4: 4})
    assert lehr.send([source(points, outcome="failed", reason="crashed")]) == ["unchanged"]


def test_group_is_a_sweep_with_its_varied_parameters_and_a_verdict(lehr):
    def trial(rate, seed=0, **fields):
        loss = 3 + math.log(rate / 1e-3) ** 2 / 9 + seed / 500
        config = {"opt": {"lr": rate}, "seed": seed, "width": 64, "out_dir": f"/x/{rate}"}
        points = [(s, {"eval/loss": loss + 1 / s}, None) for s in (1, 9)]
        own = source(points, config=config, **fields)
        own.id, own.name, own.group = f"{rate} {seed}", f"at {rate}", ("g1", "rates")
        return own

    lehr.send([trial(rate * 1e-4) for rate in (1, 3, 9, 27, 81)])
    lehr.send([trial(9e-4, seed=1, outcome=None)])
    [opened] = lehr.client.sweeps()
    sweep = opened.detail
    assert (sweep.name, sweep.method, sweep.metric) == ("rates", "list", "eval/loss")
    assert sweep.parameters == ["trainer.args.opt.lr", "trainer.args.seed"]
    assert (sweep.counts, sweep.state) == ({"completed": 5, "external": 1}, "running")
    lehr.send([trial(9e-4, seed=1)])
    sweep = opened.refresh().detail
    assert (sweep.state, sweep.best_parameters["trainer.args.opt.lr"]) == ("finished", 9 * 1e-4)
    figure = lehr.client.transport.get(f"/sweeps/{sweep.id}/figure")
    assert (b"the best rate is between" in figure, sweep.next_trials) == (True, None)
    with pytest.raises(Conflict, match="did not start"):
        opened.retry()


def test_import_from_another_machine_makes_no_second_run(lehr, tmp_path, monkeypatch):
    points = [(1, {"x": 1.0}, 1.6e9)]
    lehr.send([source(points)])
    monkeypatch.setenv("LEHR_HOME", str(tmp_path / "other"))
    lehr.send([source(points)])
    [run] = lehr.rows().values()
    assert run.attempt == 2
    assert lehr.equal(run, "x", {1: 1})


def test_odd_points_are_counted_and_deleted_runs_are_refused(lehr):
    odd = {"x": 1.0, "n" * 201: 2.0, "mfu": 45.0}
    points = [(-1, {"x": 1.0}, None), (2**62, {"x": 1.0}, None), (1, odd, -5.0)]
    assert lehr.send([source(points, tags=["a"], notes="why", config={"lr": NAN})]) == ["imported"]
    assert (lehr.runs[0].sent, lehr.runs[0].left_out) == (2, 3)
    run = lehr.rows()["mine"]
    assert lehr.equal(run, "program/mfu", {1: 45})
    assert (run.tags, run.note, run.stored.config["args"]) == (["a"], "why", {"lr": "nan"})
    assert run.created_at == run.ended_at == 1.6e9
    lehr.client.run(run.id).delete()
    assert lehr.send([source([*points, (2, {"x": 1.0}, None)])]) == ["refused"]
    assert "was deleted" in lehr.runs[0].reason


def test_tensorboard_folders_are_runs(lehr, tmp_path):
    from tensorboardX import SummaryWriter

    for name in ("a", "b/c"):
        with SummaryWriter(str(tmp_path / "logs" / name)) as writer:
            for step in range(50):
                writer.add_scalar("Loss/train", 3 / (step + 1), step)
                writer.add_scalar("lr", NAN if step == 7 else 0.5, step, walltime=1.6e9 + step)
    assert lehr.send(import_tools.tensorboard(str(tmp_path / "logs"))) == ["imported"] * 2
    run = lehr.rows()["b-c"]
    assert lehr.equal(run, "lr", {s: NAN if s == 7 else 0.5 for s in range(50)})
    assert len(lehr.points(run, "Loss/train")) == 50
    assert lehr.send(import_tools.tensorboard(str(tmp_path / "logs"))) == ["unchanged"] * 2


OFFLINE = """
    import wandb
    run = wandb.init(project="my project", name="one", config={"lr": 0.1, "opt": {"b": 2}},
                     tags=["a"], notes="why", group="g", id="abc123")
    run.define_metric("eval/*", step_metric="eval_iter")
    run.define_metric("acc", step_metric="epoch")
    for step in range(20):
        row = {"loss": 1 / (step + 1), "deep": {"x": step}}
        if step % 5 == 4:
            row |= {"eval_iter": step - 2, "eval/loss": float("nan"), "epoch": step / 20, "acc": 1.0}
        run.log(row)
    run.config["late"] = "x"
    run.finish(exit_code=3)
"""


def test_wandb_offline_has_its_config_its_end_and_each_x_axis(lehr, tmp_path):
    environment = {**os.environ, "WANDB_MODE": "offline", "WANDB_SILENT": "true"}
    command = [sys.executable, "-c", dedent(OFFLINE)]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
    assert lehr.send(import_tools.wandb_offline(str(tmp_path))) == ["imported"]
    run = lehr.rows()["one"]
    assert (run.state, run.reason, run.project) == ("failed", "exit code 3", "my-project")
    sweep = lehr.sweep(run)
    assert (run.tags, run.note, sweep.name, sweep.parameters) == (["a"], "why", "g", ["name"])
    assert run.stored.config["args"] == {"lr": 0.1, "opt": {"b": 2}, "late": "x"}
    assert abs(run.created_at - time.time()) < 600
    assert lehr.equal(run, "loss", {step: 1 / (step + 1) for step in range(20)})
    assert lehr.equal(run, "deep.x", {step: step for step in range(20)})
    # eval_iter has whole steps that grow; an epoch has not, so its metrics keep W&B's own step.
    assert lehr.equal(run, "eval/loss", dict.fromkeys((2, 7, 12, 17), NAN))
    assert lehr.equal(run, "acc", dict.fromkeys((4, 9, 14, 19), 1.0))
    assert lehr.send(import_tools.wandb_offline(str(tmp_path))) == ["unchanged"]


class Answers(BaseHTTPRequestHandler):
    """W&B's endpoint: answers in its form to what the real package asks, as recorded."""

    recorded = json.loads((DATA / "wandb_answers.json").read_bytes())

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
        names = map(asked.get("variables", {}).get, ("name", "run", "runName", "cursor"))
        verb = re.search(r"query\s+(\w+)", asked["query"])[1]
        answer = self.recorded[f"{verb} {next(filter(None, names), '')}"]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": answer}).encode())


def test_wandb_online_by_its_package_with_recorded_answers(lehr, tmp_path):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    own = {"WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40, "WANDB_DIR": str(tmp_path)}
    own |= {"WANDB_CACHE_DIR": str(tmp_path), "TZ": "EST5"}  # W&B's times are in UTC.
    with mock.patch.dict(os.environ, own):
        time.tzset()
        assert lehr.send(import_tools.wandb("me/p")) == ["imported"] * 2
        assert lehr.send(import_tools.wandb("me/p")) == ["unchanged"] * 2
    time.tzset()
    row, alone = lehr.rows()["sunny-1"], lehr.rows()["sunny-2"]
    assert (row.state, row.reason, row.tags) == ("failed", "crashed", ["t"])
    sweep = lehr.sweep(row)
    assert (alone.state, lehr.sweep(alone).name, sweep.name) == ("external", "alone", "my-sweep")
    assert (sweep.metric, sweep.goal) == ("acc", "maximize")
    assert (row.stored.config["args"], lehr.runs[0].address) == ({"lr": 0.1}, f"{address}/me/p")
    assert (row.created_at, row.ended_at) == (1767323045, 1767326400)
    assert lehr.equal(row, "loss", {s * 10: NAN if s == 3 else s for s in range(9)})


def test_mlflow_as_its_client_answers(lehr, monkeypatch):
    def run(run_id, status, tags=(), params=(), metrics=()):
        info = SimpleNamespace(
            run_id=run_id, run_name=f"run {run_id}", experiment_id="7", status=status,
            start_time=1_600_000_000_000, end_time=None if status == "RUNNING" else 1_600_000_100_000,
        )  # fmt: skip
        data = SimpleNamespace(tags=dict(tags), params=dict(params), metrics=dict(metrics))
        return SimpleNamespace(info=info, data=data)

    series = {"val": [(10, 5, 2.0), (0, 1, NAN)], "loss": [(s, s, s) for s in range(11)]}
    series["stepless"] = [(0, 9 - s, float(s)) for s in range(4)]
    client = SimpleNamespace(
        get_metric_history=lambda run_id, name: [
            SimpleNamespace(step=s, timestamp=t, value=v) for s, t, v in series[name]
        ]
    )
    tags = {"team": "blue", "mlflow.parentRunId": "p1", "mlflow.note.content": "why"}
    params = {"lr": "0.001", "layers": "2", "opt": "adam"}
    mlflow = ModuleType("mlflow")
    mlflow.set_tracking_uri, mlflow.MlflowClient = str, lambda: client
    mlflow.search_experiments = lambda: [SimpleNamespace(experiment_id="7", name="exp")]
    mlflow.search_runs = lambda **given: [
        run("p1", "FINISHED"), run("c1", "FINISHED", tags, params, dict.fromkeys(series)),
        run("c2", "RUNNING"), run("c3", "KILLED"),
    ]  # fmt: skip
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    assert lehr.send(import_tools.mlflow("http://m")) == ["imported"] * 4
    found = lehr.rows()
    states = {name: row.state for name, row in found.items()}
    assert states == {
        "run-p1": "completed", "run-c1": "completed", "run-c2": "external", "run-c3": "cancelled"
    }  # fmt: skip
    child = found["run-c1"]
    assert (child.note, child.tags, lehr.sweep(child).name) == ("why", ["team=blue"], "run-p1")
    assert child.stored.config["args"] == {"lr": 0.001, "layers": 2, "opt": "adam"}
    assert (child.created_at, child.ended_at, child.project) == (1.6e9, 1_600_000_100.0, "exp")
    assert lehr.equal(child, "val", {0: NAN, 10: 2})
    assert lehr.equal(child, "loss", {s: s for s in range(11)})
    assert lehr.equal(child, "stepless", {s: 3 - s for s in range(4)})


def test_trackio_as_its_storage_answers(lehr, tmp_path, monkeypatch):
    monkeypatch.delenv("TRACKIO_DIR", raising=False)
    begun = "2026-01-02T03:04:05.5+00:00"
    row = {"timestamp": begun, "txt": "hey"}
    storage = SimpleNamespace(
        get_projects=lambda: ["p"],
        get_run_records=lambda project: [{"id": "i1", "name": "run 0", "created_at": begun}],
        get_run_config=lambda *given, run_id: {"lr": 1, "_Group": "g", "_Created": begun},
        get_logs=lambda *given, run_id: [{**row, "step": s, "loss": [NAN, 1][s]} for s in (0, 1)],
    )
    module = ModuleType("trackio.sqlite_storage")
    module.SQLiteStorage = storage
    monkeypatch.setitem(sys.modules, "trackio", ModuleType("trackio"))
    monkeypatch.setitem(sys.modules, "trackio.sqlite_storage", module)
    assert lehr.send(import_tools.trackio(str(tmp_path))) == ["imported"]
    [run] = lehr.rows().values()
    assert (lehr.sweep(run).name, run.stored.config["args"]) == ("g", {"lr": 1})
    assert run.created_at == datetime.fromisoformat(begun).timestamp()
    assert lehr.equal(run, "loss", {0: NAN, 1: 1})
    assert os.environ["TRACKIO_DIR"] == str(tmp_path)


def test_command_counts_shows_json_and_names_what_is_refused(lehr, tmp_path, monkeypatch):
    monkeypatch.setenv("LEHR_SERVER", lehr.client.server)
    monkeypatch.setenv("LEHR_TOKEN", TOKEN)
    (tmp_path / "two").mkdir()
    csv_file(tmp_path / "two" / "a.csv", [(1, 2)])
    csv_file(tmp_path / "two" / "b.csv", [(1, 1), (2, "x")])
    call = CliRunner().invoke
    done = call(root, ["import", "csv", str(tmp_path / "two")])
    assert done.exit_code == 1
    assert "1 imported, 1 refused" in done.stdout
    assert "line 3, loss: 'x' is not a number." in done.stdout
    assert "2 of 2 runs, 1 points" in done.stderr
    shown = json.loads(call(root, ["import", "csv", str(tmp_path / "two"), "--json"]).stdout)
    assert [run["result"] for run in shown["runs"]] == ["unchanged", "refused"]
    (tmp_path / "none").mkdir()
    assert json.loads(call(root, ["import", "csv", str(tmp_path / "none"), "--json"]).stdout) == {
        "runs": []
    }
    with pytest.raises(UserError, match="no such file or folder"):
        list(import_tools.tensorboard(str(tmp_path / "missing")))
