"""The examples of the client page and the example notebook run with a real server."""

import json
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from lehr.base import home as homes
from lehr.control.lifecycle import RunState
from lehr_testing import seeding
from lehr_testing.api import TOKEN, served
from lehr_testing.paths import ROOT

_TRAINED = 200
"""The most steps recorded for a run; quick tests need no more."""


@contextmanager
def quick_trainer(store: Any) -> Iterator[None]:
    """Train and complete every run that is queued in ``store``, until the block ends."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def serve() -> None:
        while not stop.wait(0.05):
            for run in store.runs.by_state([RunState.QUEUED]):
                try:
                    _settle(store, run)
                except BaseException as error:
                    failures.append(error)
                    return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
    assert not failures, failures


def _settle(store: Any, run: Any) -> None:
    if run.desired == "run":
        # One that is cancelled just now is seen to at the next look.
        with suppress(seeding.NotWaiting):
            _train(store, run)
        return
    store.transitions.apply(
        run.id,
        old=RunState.QUEUED,
        new=RunState.CANCELLED,
        attempt=run.attempt,
        cause="user",
        actor="user",
    )


def _train(store: Any, run: Any) -> None:
    train = run.spec["train"]
    steps = train["steps"]
    assert steps <= _TRAINED
    first = int(run.resume_from.rpartition("-")[2]) if run.resume_from else 0
    attempt = seeding.start(store, run)
    attempt.log(f"{run.name} trains\n")
    every, save = train["validation"]["every"] or steps, train["checkpoint"]["every"] or steps
    for start in range(first, steps, min(every, save)):
        end = min(start + min(every, save), steps)
        attempt.train(range(start + 1, end + 1))
        if end % every == 0 or end == steps:
            loss = seeding.loss_at(end, train["optimizer"]["lr"], seed=run.name, steps=steps)
            attempt.evaluate(end, loss)
        if end % save == 0 or end == steps:
            # A fork checks that they exist; their content is not read.
            name = f"attempt-{attempt.number}/checkpoints/step-{end:08d}"
            folder = homes.runs_dir(store.home) / run.id / name
            folder.mkdir(parents=True)
            (folder / "manifest.json").write_text("{}")
            attempt.checkpoint(end)
    attempt.sample(steps, "said")
    attempt.end(RunState.COMPLETED, steps)


NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with served(tmp_path_factory.mktemp("home")) as (api, address), quick_trainer(api.store):
        yield address


@pytest.fixture(autouse=True)
def found(address, monkeypatch):
    monkeypatch.setenv("LEHR_SERVER", address)
    monkeypatch.setenv("LEHR_TOKEN", TOKEN)


def test_every_example_of_the_client_page_runs(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    text = (ROOT / "docs" / "python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 9
    names = {}
    for number, block in enumerate(blocks, start=1):
        exec(compile(block, f"docs/python.md, example {number}", "exec"), names)
    assert names["run"].state == "completed"
    assert names["fork"].view.forked_from == names["run"].id
    assert names["best"].id == names["sweep"].view.best_run_id
    printed = capsys.readouterr().out
    assert "train.optimizer.learning_rate is not a field." in printed
    assert "Did you mean train/loss?" in printed


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path):
    notebook = nbformat.read(path, as_version=4)
    [small] = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", [])]
    small.source = "STEPS = 60\nRATES = [3e-4, 1e-3, 3e-3]"
    client = NotebookClient(
        notebook,
        timeout=240,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute(env=dict(os.environ))
    shown = json.dumps([cell.get("outputs") for cell in notebook.cells])
    assert shown.count("image/svg+xml") == 3
    assert "Best lr" in shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_recorded_notebook_outputs_are_complete_and_name_no_machine(path):
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [o for cell in cells for o in cell.outputs if o.output_type == "error"]
    kept = json.dumps([cell.outputs for cell in cells])
    assert not re.findall(r"/(?:home|root|tmp|work|Users|usr|opt|var)/[\w.]+", kept)
    figures = [o for cell in cells for o in cell.outputs if "image/svg+xml" in o.get("data", {})]
    assert len(figures) == 3
