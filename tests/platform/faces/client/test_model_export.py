"""Models of a server's runs become folders that transformers loads."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from lehr import Client
from lehr.checkpoints.copies import Copy, Folder
from lehr.errors import Conflict, NotFound, UserError
from lehr.specs import load_spec
from lehr.store.records.checkpoints import CopyReport
from lehr_testing.api import RUN_SPEC, TOKEN, begin, end, ingest, line, served, started
from lehr_testing.cli import call
from lehr_testing.exports import CONFIG, save
from lehr_trainer.configs.train import TrainConfig


@pytest.fixture
def server(tmp_path: Path):
    with served(tmp_path / "home") as pair:
        yield pair


def trained(api, train=CONFIG, losses=((5, 2.5), (10, 3.0))):
    """A run with a checkpoint for each (step, val/loss); returns it and its models by step."""
    upload = f"file://{api.settings.home}/shared"
    spec = {**RUN_SPEC, "train": train, "checkpoints": {"upload": upload}}
    provenance = {"git": {"commit": "c" * 40, "dirty": False}, "host": "secret-host"}
    run = api.store.runs.create(load_spec(spec), provenance=provenance)
    attempt = begin(api.store, run.id)
    ingest(api.store, attempt, started())
    models = {}
    for step, loss in losses:
        path = f"attempt-1/checkpoints/step-{step:08d}"
        folder = api.settings.home / "runs" / run.id / path
        models[step] = save(folder, TrainConfig.model_validate(train), step, step, val_loss=loss)
        digest = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
        record = {"path": path, "size_bytes": 10, "digest": digest, "val_loss": loss}
        ingest(api.store, attempt, line("checkpoint", step=step, reason="interval", **record))
        url = f"{upload}/{run.id}/{path}"
        with Folder(folder) as held:
            Copy(url).write(held)
        api.store.checkpoints.note_copies(run.id, [CopyReport(path, url, "there")])
    return run, models


def test_command_exports_the_best_checkpoint_from_its_copy(server, tmp_path: Path) -> None:
    api, address = server
    run, models = trained(api)
    shutil.rmtree(api.settings.home / "runs" / run.id)  # The node's disk is gone.
    access = {"LEHR_SERVER": address, "LEHR_TOKEN": TOKEN}
    arguments = ["checkpoints", "export", "one", "out", "--step", "best", "--json"]
    done = call(*arguments, cwd=tmp_path, **access)
    assert done.returncode == 0, done.stderr
    out = tmp_path / "out"
    # tests/trainer/export shows that transformers loads such a folder.
    for name, weight in load_file(out / "model.safetensors").items():
        assert weight.equal(models[5].state_dict()[name.removeprefix("model.")]), name
    size = sum(path.stat().st_size for path in out.iterdir())
    assert json.loads(done.stdout)["exported"] == {"run": run.id, "path": "out", "bytes": size}
    card = (out / "README.md").read_text()
    for fact in (run.id, "c" * 40, "**2.5000**, of these weights, at step 5"):
        assert fact in card
    assert "secret-host" not in card
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "out"]

    again = call(*arguments[:-1], cwd=tmp_path, **access)
    assert again.returncode != 0
    assert "is not empty" in again.stderr
    assert "--overwrite" in again.stderr
    wrong = call("checkpoints", "export", "one", "x", "--step", "newest", cwd=tmp_path, **access)
    assert "--step 'newest' is not a step: give a number, best or last." in wrong.stderr


def test_checkpoint_in_a_file_is_used_where_the_file_is_opened(server, tmp_path: Path) -> None:
    api, address = server
    run, models = trained(api)
    end(api.store, run.id)
    access = {"LEHR_SERVER": address, "LEHR_TOKEN": TOKEN}
    file, mine = tmp_path / "one.lehr.html", Client(address, token=TOKEN).run("one")
    with served(tmp_path / "other") as (_, place):
        there = Client(place, token=TOKEN)
        there.open(mine.report(file))
        call("report", "one", "-o", str(file), "--checkpoint", "best", cwd=tmp_path, **access)
        content = file.read_bytes()
        file.write_bytes(content.replace(b'"__metadata__"', b'"__metadat___"', 1))
        with pytest.raises(UserError, match=r"the file is refused: .*model.safetensors"):
            there.open(file)
        file.write_bytes(content)
        assert not there.open(file).new
        there.run("one").export_model(tmp_path / "out", 5)
    for name, weight in load_file(tmp_path / "out" / "model.safetensors").items():
        assert weight.equal(models[5].state_dict()[name.removeprefix("model.")]), name
    with pytest.raises(UserError, match=r"only a file NAME.lehr.html can have a checkpoint"):
        mine.report(tmp_path / "page.html", checkpoint="last")


def test_command_averages_checkpoints_and_lists_them(server, tmp_path: Path) -> None:
    api, address = server
    run, models = trained(api)
    access = {"LEHR_SERVER": address, "LEHR_TOKEN": TOKEN}
    arguments = ["checkpoints", "average", "one@5", run.id, "-o", "out", "--json"]
    done = call(*arguments, cwd=tmp_path, **access)
    assert done.returncode == 0, done.stderr
    averaged = json.loads(done.stdout)["averaged"]
    named = [(one["run"], one["step"], one["val_loss"]) for one in averaged["ingredients"]]
    assert named == [(run.id, 5, 2.5), (run.id, 10, 3.0)]
    for name, weight in load_file(tmp_path / "out" / "model.safetensors").items():
        own = [models[step].state_dict()[name.removeprefix("model.")] for step in (5, 10)]
        assert weight.equal(((own[0].double() + own[1].double()) / 2).float()), name
    assert f"`{run.id}`, step 5" in (tmp_path / "out" / "README.md").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "out"]

    for refs, problem in (
        (["one@7", "one"], "has no checkpoint of step 7"),
        (["one", "one@10"], "are the same checkpoint"),
        (["one@first", "one"], "'first' is not a step: give a number, best or last"),
    ):
        wrong = call("checkpoints", "average", *refs, "-o", "x", cwd=tmp_path, **access)
        assert wrong.returncode == 2
        assert problem in " ".join(wrong.stderr.split())


def test_command_evaluates_a_checkpoint_and_adds_the_values_to_its_run_once(
    server, tmp_path: Path
) -> None:
    api, address = server
    run, _ = trained(api)
    transport, path = Client(address, token=TOKEN).transport, f"/runs/{run.id}/checkpoints/5"
    values = {"task/own/accuracy": 0.5, "task/own/accuracy_stderr": "NaN"}
    body = {"time": 0, "step": 5, "tokens": 160, "values": values, "tasks": {"own": "c1"}}
    for _ in range(2):  # While the training goes on.
        recorded = json.loads(transport.post(f"{path}/evaluations", body))
        assert recorded["values"] == values
    with pytest.raises(UserError, match="val/loss is not of a task"):
        transport.post(f"{path}/evaluations", {**body, "values": {"val/loss": 1.0}})

    access = {"LEHR_SERVER": address, "LEHR_TOKEN": TOKEN}
    arguments = ["eval", "one", "--step", "5", "--tasks", "stdlib_modules", "--json"]
    done = call(*arguments, cwd=tmp_path, **access)
    assert done.returncode == 0, done.stderr
    evaluated = json.loads(done.stdout)["evaluated"]
    for name, value in {**evaluated["values"], "task/own/accuracy": 0.5}.items():
        series = api.store.series.read(run.id, name, exact=True)
        assert (list(series.step), list(series.y)) == ([5], [value]), name
    asked = api.store.events.held_out([run.id], "task/stdlib_modules/accuracy")[run.id]
    assert asked == evaluated["tasks"]["stdlib_modules"]
    assert len(api.store.events.records(run.id, {"evaluation"})) == 2


def test_commands_verify_and_download_a_checkpoint(server, tmp_path: Path) -> None:
    api, address = server
    run, _ = trained(api)
    access = {"LEHR_SERVER": address, "LEHR_TOKEN": TOKEN}
    saved = api.settings.home / "runs" / run.id / "attempt-1/checkpoints/step-00000010"
    done = call("checkpoints", "download", "one", "out", "--json", cwd=tmp_path, **access)
    size = sum(path.stat().st_size for path in saved.iterdir())
    expected = {"run": run.id, "step": 10, "path": "out", "bytes": size}
    assert json.loads(done.stdout)["downloaded"] == expected
    for path in saved.iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()

    verify = ["checkpoints", "verify", "one", "--step", "10"]
    whole = call(*verify, cwd=tmp_path, **access)
    assert (whole.returncode, whole.stdout.count("step 10  whole")) == (0, 2), whole.stderr
    (saved / "model.safetensors").write_bytes(b"")
    damaged = call(*verify, cwd=tmp_path, **access)
    assert (damaged.returncode, damaged.stdout.count("step 10  damaged")) == (1, 1), damaged.stderr


def test_error_of_the_trainer_is_the_error_of_the_client(server, tmp_path: Path) -> None:
    api, address = server
    missing = str(tmp_path / "gone.json")
    data = {"corpus": {"kind": "stdlib"}, "tokenizer": missing}
    with pytest.MonkeyPatch.context() as patch:
        # The file was there when the run was submitted.
        patch.setattr("lehr_trainer.data.checks.check_tokenizer", lambda _name: None)
        run, _ = trained(api, {**CONFIG, "data": data}, losses=((5, None),))
    with (
        Client(address, TOKEN) as client,
        pytest.raises(UserError, match="--tokenizer PATH") as caught,
    ):
        client.run(run.id).export_model(tmp_path / "out")
    assert missing in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_what_cannot_be_exported_is_refused_before_anything_is_converted(
    server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, address = server
    run, _ = trained(api, losses=((5, None), (10, None)))
    monkeypatch.setattr("lehr.faces.client.checkpoints._convert", None)
    with Client(address, TOKEN) as client:
        found = client.run(run.id)
        with pytest.raises(NotFound, match="no best checkpoint") as caught:
            found.export_model(tmp_path / "out", "best")
        assert "steps 5, 10" in str(caught.value.hint)
        with pytest.raises(NotFound, match="step 7"):
            found.export_model(tmp_path / "out", 7)
        with pytest.raises(Conflict, match="is not empty"):
            found.export_model(api.settings.home)
        for place in ("runs", "shared"):
            shutil.rmtree(api.settings.home / place / run.id)
        with pytest.raises(Conflict, match="cannot be read"):
            found.export_model(tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


def test_only_the_model_s_files_are_downloaded(
    server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, address = server
    run, _ = trained(api)
    found: list[list[str]] = []

    def convert(arguments: list[str], *_: object, **__: object) -> None:
        folder = Path(arguments[1])
        found.append(sorted(path.name for path in folder.iterdir()))

    monkeypatch.setattr("lehr.faces.client.checkpoints._convert", convert)
    with Client(address, TOKEN) as client:
        client.run(run.id).export_model(tmp_path / "out", 5)
    assert found == [["manifest.json", "model.safetensors", "state.json"]]
