"""TensorBoard event files: scalars of both kinds, several files, damage."""

import sys

import pytest

from lehr.analysis.curve_files import read_curves
from lehr.errors import UserError
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
