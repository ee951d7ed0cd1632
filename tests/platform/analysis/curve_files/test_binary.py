"""Files of TensorBoard and W&B."""

from __future__ import annotations

import json
import struct
import subprocess
import sys

import pytest

from lehr.analysis.curve_files import binary, read_curves
from lehr.errors import UserError
from lehr_testing import cli
from lehr_testing.tfevents import scalar, tensor, version, write
from lehr_trainer import extras

NAME = "events.out.tfevents.1700000000.host.1.0"


def test_scalars_of_pytorch_are_read_under_their_usual_names(tmp_path):
    events = [version()] + [
        scalar(step, train__loss=10 - step, lr=0.5, other__thing=1.0) for step in range(1, 6)
    ]
    found = read_curves(write(tmp_path / NAME, events))
    assert found.form == "tensorboard"
    assert list(found.curves["train/loss"].steps) == [1, 2, 3, 4, 5]
    assert list(found.curves["train/loss"].values) == [9, 8, 7, 6, 5]
    assert set(found.curves) == {"train/loss", "train/lr"}
    assert found.remarks == ["Not used, 1: other/thing."]


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("content", [False, True])
def test_scalars_of_tensorflow_2_are_tensors(tmp_path, double, content):
    events = [tensor(7, "loss", 2.5, double=double, content=content)]
    curve = read_curves(write(tmp_path / NAME, events)).curves["train/loss"]
    assert (list(curve.steps), list(curve.values)) == ([7], [2.5])


def test_files_of_a_folder_are_one_run_of_which_later_points_count(tmp_path):
    write(tmp_path / NAME, [scalar(step, loss=1.0) for step in range(1, 9)])
    write(tmp_path / NAME.replace("17", "18"), [scalar(step, loss=2.0) for step in range(5, 11)])
    found = read_curves(tmp_path)
    curve = found.curves["train/loss"]
    assert list(curve.steps) == list(range(1, 11))
    assert list(curve.values) == [1.0] * 4 + [2.0] * 6
    assert any("Steps go back 1 times" in remark for remark in found.remarks)


def test_folder_of_several_runs_lists_them(tmp_path):
    for run in ("first", "second"):
        write(tmp_path / run / NAME, [scalar(1, loss=1.0)])
    with pytest.raises(UserError, match="it has 2 TensorBoard runs: first, second"):
        read_curves(tmp_path)


def test_torn_last_event_is_skipped_with_a_remark(tmp_path):
    path = write(tmp_path / NAME, [scalar(step, loss=1.0) for step in (1, 2, 3)])
    path.write_bytes(path.read_bytes()[:-9])
    found = read_curves(path)
    assert list(found.curves["train/loss"].steps) == [1, 2]
    assert "ends within a record, after 2 events" in found.remarks[0]


def test_file_of_another_kind_under_that_name_is_an_error(tmp_path):
    path = tmp_path / NAME
    path.write_bytes(b"step,loss\n1,2\n" * 10)
    with pytest.raises(UserError, match="it is no TensorBoard event file"):
        read_curves(path)


def test_undecodable_event_is_named(tmp_path):
    path = write(tmp_path / NAME, [scalar(1, loss=1.0), b"\xff\xff\xff"])
    with pytest.raises(UserError, match="event 2 cannot be decoded"):
        read_curves(path)


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_missing_package_is_one_error_that_names_its_extra(tmp_path, monkeypatch, package):
    path = write(tmp_path / NAME, [scalar(1, loss=1.0)])
    if package == "wandb":
        path = tmp_path / "run-a.wandb"
        path.write_bytes(b":W&B\xe1\xbe\x00")
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"needs the {package} package, which is not") as error:
        read_curves(path)
    assert extras.install(f"lehr[{package}]") in error.value.hint


WRITE = """
import sys, wandb
run = wandb.init(mode="offline", project="p", dir=sys.argv[1])
for step in range(400):
    run.log({"train/loss": 10 - step / 100, "eval": {"loss": 3.5}, "text": "x" * 100}, step=step)
run.finish()
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A run of two blocks (32 KiB each). wandb starts a process of its own, which takes 3 s."""
    folder = tmp_path_factory.mktemp("wandb")
    subprocess.run(
        [sys.executable, "-c", WRITE, str(folder)], check=True, capture_output=True, timeout=120
    )
    (file,) = folder.rglob("run-*.wandb")
    assert file.stat().st_size > 2 * 32_768
    return folder, file


def test_history_of_an_offline_run_is_read(written):
    folder, file = written
    for path in (folder, file):
        found = read_curves(path)
        assert found.form == "wandb"
        loss = found.curves["train/loss"]
        assert list(loss.steps) == list(range(400))
        assert list(loss.values) == [10 - step / 100 for step in range(400)]
        assert set(found.curves["val/loss"].values) == {3.5}


def test_offline_run_is_diagnosed_by_its_folder_and_by_its_file(written, tmp_path):
    for path in written:
        done = cli.call("diagnose", str(path), "--json", cwd=tmp_path, HOME=str(tmp_path))
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)["diagnosis"]
        assert found["last_step"] == 399
        assert [alert["code"] for alert in found["alerts"]] == ["low_lr"]
        assert "diverging" not in found["unjudged"]
        assert "exploding" in found["unjudged"]


def test_torn_file_is_read_as_far_as_it_goes(written, tmp_path):
    _, file = written
    torn = tmp_path / "torn.wandb"
    torn.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    steps = list(read_curves(torn).curves["train/loss"].steps)
    assert steps == list(range(len(steps)))
    assert 100 < len(steps) < 300


def test_damaged_record_ends_the_file_with_a_remark(written, tmp_path):
    data = bytearray(written[1].read_bytes())
    at = 7
    for _ in range(5):
        at += 7 + struct.unpack_from("<IHB", data, at)[1]
    data[at + 7 : at + 12] = b"\xff" * 5
    damaged = tmp_path / "damaged.wandb"
    damaged.write_bytes(bytes(data))
    with pytest.raises(UserError, match="no known metric"):
        read_curves(damaged)


def framed(records) -> bytes:
    """Return an offline file of these records, each within one block."""
    data = [record.SerializeToString() for record in records]
    return b":W&B\xe1\xbe\x00" + b"".join(struct.pack("<IHB", 0, len(d), 1) + d for d in data)


def test_metric_that_is_declared_as_the_step_of_all_others_is_the_step(tmp_path):
    from wandb.proto import wandb_internal_pb2 as pb

    records = [pb.Record() for _ in range(5)]
    records[0].metric.glob_name, records[0].metric.step_metric = "*", "train/global_step"
    records[1].metric.glob_name, records[1].metric.step_metric = "gpu/*", "seconds"
    rows = [
        {"train/loss": 3.0, "train/global_step": 10, "seconds": 7, "_step": 0},
        {"train/loss": 2.0, "train/global_step": 20, "seconds": 8, "_step": 1},
        {"gpu/power": 300.0, "seconds": 9, "_step": 25},
    ]
    for record, row in zip(records[2:], rows, strict=True):
        for key, value in row.items():
            item = record.history.item.add()
            item.key, item.value_json = key, json.dumps(value)
    (tmp_path / "run-a.wandb").write_bytes(framed(records))
    found = list(binary.wandb_points(tmp_path / "run-a.wandb"))
    assert [row.step for row in found] == [10, 20, 25]
