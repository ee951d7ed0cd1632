"""W&B offline files, written by wandb itself."""

import json
import struct
import subprocess
import sys

import pytest

from lehr.analysis.curve_files import read_curves, wandb_file
from lehr.errors import UserError
from lehr_testing import cli

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
    found = list(wandb_file.points(tmp_path / "run-a.wandb"))
    assert [row.step for row in found] == [10, 20, 25]
