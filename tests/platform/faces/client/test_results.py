"""Results in a notebook or a terminal, through a real server: figures, frames, comparisons, progress."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from lehr import Client
from lehr.errors import Conflict, NotFound
from lehr.faces.client.notebook import series_frame
from lehr.schemas.streams import Series
from lehr_testing import cli
from lehr_testing.api import RUN_SPEC, SWEEP_SPEC, TOKEN, served
from lehr_testing.trained import train
from lehr_testing.waiting import until

LEHR = str(Path(sys.executable).parent / "lehr")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with served(tmp_path_factory.mktemp("home")) as pair:
        yield pair


@pytest.fixture
def client(server):
    with Client(server[1], TOKEN) as client:
        yield client


@pytest.fixture
def sweep(server, client):
    made = client.sweep(SWEEP_SPEC)
    for number, run in enumerate(made.runs()):
        train(server[0].store, run.id, 3.0 - number * 0.25)
    return made.refresh()


def panels(drawn):
    """Return the title of each figure of a drawing, with the names in its legend."""
    svg = "{http://www.w3.org/2000/svg}"
    return [
        (
            figure.find(f"{svg}title").text,
            [text.text for text in figure.iterfind(f"{svg}text") if "/" in text.text],
        )
        for figure in ET.fromstring(drawn).iterfind(f"{svg}svg")
    ]


def test_run_figure_has_one_panel_for_losses_and_one_for_each_other_metric(sweep, tmp_path):
    run = sweep.best()
    losses = run.plot()._repr_svg_()
    assert panels(losses) == [("loss", ["train/loss", "val/loss"])]
    assert run.name in losses
    figure = run.plot("train/loss", "train/lr", "val/loss", x="tokens")
    assert panels(figure._repr_svg_()) == [
        ("loss", ["train/loss", "val/loss"]),
        ("train/lr", ["train/lr"]),
    ]
    figure.save(tmp_path / "run.svg")
    assert (tmp_path / "run.svg").read_text() == figure._repr_svg_()
    with pytest.raises(NotFound, match="no metric 'train/los'"):
        run.plot("train/los")


def test_importance_of_each_parameter_is_known_and_shown(server, client, tmp_path):
    rates, decays = [1e-4, 3e-4, 1e-3, 3e-3], [0.0, 0.05, 0.1]
    paths = ["train.optimizer.lr", "train.optimizer.weight_decay"]
    parameters = dict(zip(paths, [{"values": rates}, {"values": decays}], strict=True))
    made = client.sweep({**SWEEP_SPEC, "name": "two", "parameters": parameters})
    assert made.importance() == {}
    for trial in made.trials:
        loss = 3.0 + rates.index(trial.parameters[paths[0]]) / 4
        train(server[0].store, trial.run.id, loss + decays.index(trial.parameters[paths[1]]) / 1e3)
    shares = made.importance()
    assert list(shares) == paths
    assert shares[paths[0]] > 0.6
    assert sum(shares.values()) == pytest.approx(1)
    shown = cli.call("--server", server[1], "show", "two", cwd=tmp_path, LEHR_TOKEN=TOKEN).stdout
    assert f"importance: lr {shares[paths[0]]:.0%}".replace("%", " %") in shown
    assert ", weight_decay " in shown
    found = cli.call("--server", server[1], "show", "two", "--json", cwd=tmp_path, LEHR_TOKEN=TOKEN)
    assert json.loads(found.stdout)["importance"] == shares


def test_a_run_without_metrics_has_no_figure(client):
    with pytest.raises(NotFound, match="has not logged any metric yet"):
        client.submit(RUN_SPEC).plot()


def test_metric_with_the_name_of_the_step_has_a_column_of_its_own():
    logged = Series(run_id="r", name="step", exact=True, total_points=1, step=[2], x=[2], y=[7])
    assert series_frame([logged]).to_dict("records") == [{"step": 2, "program/step": 7.0}]


def test_sweep_figure_accepts_a_varied_parameter(sweep):
    figure = sweep.plot("train.optimizer.lr")
    assert "Best lr 0.01" in figure.title
    assert f'<a href="{sweep.best().url}">' in figure._repr_svg_()
    with pytest.raises(NotFound) as caught:
        sweep.plot("train.optimizer.l")
    assert "train.optimizer.lr" in (caught.value.hint or "")


def test_runs_are_compared_by_reference_or_object(client, sweep):
    one, two, three = sweep.runs()
    found = client.compare(one, two.id, three)
    frame = found.frame()
    assert list(frame["run"]) == [one.id, two.id, three.id]
    assert list(frame["val/loss"]) == [3.0, 2.75, 2.5]
    assert frame["delta"].tolist()[1:] == [-0.25, -0.5]
    assert list(frame["train.optimizer.lr"]) == [1e-4, 1e-3, 1e-2]
    html = found._repr_html_()
    assert "train.optimizer.lr" in html
    assert "val/loss at step 10" in html
    assert "group" not in frame
    grouped = client.compare(one, two, three, by="val/loss<2.75")
    assert list(grouped.frame()["group"]) == ["val/loss from 2.75"] * 2 + ["val/loss below 2.75"]
    assert [group.mean for group in grouped.groups] == [2.875, 2.5]
    assert panels(found.plot()._repr_svg_())[0][0] == "val/loss"
    by_flops = client.compare(one, two, metric="train/loss", x="flops")
    per_token = one.view.flops_per_token
    assert by_flops.curves()[0].x == [step * 256 * per_token for step in range(1, 11)]
    assert ">flops</text>" in by_flops.plot()._repr_svg_()


def test_runs_of_different_held_out_sets_are_not_compared(server, client):
    runs = client.sweep({**SWEEP_SPEC, "name": "other-data"}).runs()
    for run, digest in zip(runs, "aba", strict=True):
        train(server[0].store, run.id, 3.0 - ord(digest) / 100, held_out=digest * 64)
    found = client.compare(*runs)
    assert found.held_out == "different"
    assert found.notes[0].startswith("val/loss cannot be compared")
    assert repr(found) == f"<Comparison of 3 runs by val/loss at step 10: {found.notes[0]}>"
    frame = found.frame()
    assert frame["held_out"].tolist() == ["a" * 64, "b" * 64, "a" * 64]
    assert frame["delta"].isna().tolist() == [False, True, False]
    html = found._repr_html_()
    assert html.index(found.notes[0]) < html.index("<table")
    assert html.count(found.notes[0]) == 1
    assert "another held-out set" in html
    assert found.plot().title == found.notes[0]
    by_train = client.compare(*runs, metric="train/loss")
    assert "different held-out" not in repr(by_train)
    assert "-" not in repr(by_train).removeprefix("<").split(": ")[0]


def test_tasks_of_different_items_are_not_compared_and_a_sweep_says_when_they_disagree(
    server, client
):
    sweep = client.sweep({**SWEEP_SPEC, "name": "tasks"})
    runs = sweep.runs()
    for run, digest, (loss, task) in zip(
        runs, "aab", [(2.0, 0.1), (2.1, 0.3), (2.2, 0.2)], strict=True
    ):
        train(server[0].store, run.id, loss, tasks=(task, digest * 64))
    found = client.compare(*runs, metric="task/mean")
    assert [one.incomparable for one in found.results] == [None, None, "another held-out set"]
    assert found.goal == "maximize"
    assert [
        one.delta for one in client.compare(*runs[:2], metric="task/mean").results
    ] == pytest.approx([0, 0.2])
    assert client.compare(*runs).held_out == "same"
    sweep.refresh()
    assert not any("Tasks and loss" in note for note in sweep.notes)
    sweep = client.sweep({**SWEEP_SPEC, "name": "one-set"})
    for run, (loss, task) in zip(sweep.runs(), [(2.0, 0.1), (2.1, 0.3), (2.2, 0.2)], strict=True):
        train(server[0].store, run.id, loss, tasks=(task, "c" * 64))
    sweep.refresh()
    [note] = [note for note in sweep.notes if "Tasks and loss" in note]
    assert note.startswith("Tasks and loss disagree: task/mean is best at lr ")


def test_a_sweep_over_different_held_out_sets_has_no_best_run(server, client):
    made = client.sweep({**SWEEP_SPEC, "name": "mixed"})
    for run, digest in zip(made.runs(), "aba", strict=True):
        train(server[0].store, run.id, 2.0, held_out=digest * 64)
    made.refresh()
    with pytest.raises(Conflict, match=r"sweep mixed has no best run\. val/loss cannot be"):
        made.best()
    assert made.notes[0] == made.detail.held_out_note
    assert made.frame()["held_out"].tolist() == ["a" * 64, "b" * 64, "a" * 64]
    assert made.frame()["rank"].isna().all()
    html = made._repr_html_()
    assert html.index("cannot be compared") < html.index("<table")
    assert html.count("cannot be compared") == 1
    assert made.plot().title.startswith("No trial is best. val/loss cannot be compared")


WAIT = "import sys; from lehr import Client; Client(sys.argv[1], sys.argv[2]).{what}.wait()"


def waited(address, what, **streams):
    code = WAIT.format(what=what)
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    return subprocess.run(
        [sys.executable, "-c", code, address, TOKEN],
        check=True,
        timeout=120,
        env=environment,
        **streams,
    )


def test_wait_shows_progress_in_a_terminal_and_nothing_in_a_pipe(server, sweep):
    address = server[1]
    found = f"find_sweep({sweep.id!r})"
    piped = waited(address, found, capture_output=True)
    assert (piped.stdout, piped.stderr) == (b"", b"")
    for what, expected in ((found, "3 completed"), (f"run({sweep.best().id!r})", "10 of 100")):
        ours, theirs = pty.openpty()
        shown = waited(address, what, stdout=subprocess.PIPE, stderr=theirs)
        os.close(theirs)
        text = os.read(ours, 1 << 16).decode()
        os.close(ours)
        assert shown.stdout == b""
        assert expected in text


def test_python_client_requests_a_mirror(client, sweep):
    pytest.importorskip("wandb")
    mirror = sweep.best().mirror("offline", project="p", tags=["t"]).detail.wandb
    assert mirror.state == "waiting"
    until(lambda: sweep.best().detail.wandb, within_s=30, what="the request to be shown")
