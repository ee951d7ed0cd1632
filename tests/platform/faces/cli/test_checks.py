"""``lehr doctor`` on machines with a problem: each problem is named with its remedy."""

from __future__ import annotations

import json
import subprocess
import types

import pytest

from lehr.base import filesystems
from lehr.faces.cli import checks
from lehr.faces.cli.checks import Check
from lehr_trainer import extras

GB = 10**9


@pytest.fixture
def home(tmp_path, monkeypatch):
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("LEHR_HOME", str(folder))
    for name in ("LEHR_RUNS", "LEHR_DATA", "LEHR_SERVER", "LEHR_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return folder


def one(found: list[Check]) -> Check:
    [check] = found
    return check


# ---------------------------------------------------------------------------------- disk, memory


def usage(**sizes):
    return lambda _path: types.SimpleNamespace(**{"total": 100 * GB, "free": 100 * GB} | sizes)


@pytest.mark.parametrize(
    ("free", "status", "fix"),
    [
        (100 * GB, "ok", None),
        (20 * GB, "ok", None),
        (19 * GB, "note", "A checkpoint of a 1B model takes 15 GB, and two are kept."),
        (1 * GB, "note", "A checkpoint of a 1B model takes 15 GB, and two are kept."),
        (GB - 1, "bad", "Free some space: a checkpoint would not fit."),
        (0, "bad", "Free some space: a checkpoint would not fit."),
    ],
)
def test_nearly_full_disk_is_reported(home, monkeypatch, free, status, fix):
    monkeypatch.setattr(checks.shutil, "disk_usage", usage(free=free))
    check = one(checks.check_disk())
    assert (check.name, check.status, check.fix) == ("disk", status, fix)
    assert str(home) in check.found


@pytest.mark.parametrize("kind", sorted(filesystems.NETWORK))
def test_home_on_a_network_file_system_is_an_error(home, monkeypatch, kind):
    table = home / "mountinfo"
    table.write_text(f"1 0 0:1 / {home} rw - {kind} server:/x rw\n")
    monkeypatch.setattr(filesystems, "MOUNTS", table)
    check = one(checks.check_filesystem())
    assert check.status == "bad"
    assert f"{home} is on {kind}" in check.found
    assert "LEHR_HOME" in check.fix


def test_low_shared_memory_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "_SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(checks.shutil, "disk_usage", usage(total=64 << 20))
    check = one(checks.check_shared_memory())
    assert check.status == "note"
    assert "--shm-size" in check.fix
    monkeypatch.setattr(checks.shutil, "disk_usage", usage(total=GB))
    assert one(checks.check_shared_memory()).status == "ok"
    monkeypatch.setattr(checks, "_SHARED_MEMORY", tmp_path / "missing")
    assert checks.check_shared_memory() == []


# ----------------------------------------------------------------------------------- torch, GPUs


def says(monkeypatch, *, seen=None, code=0, error="", driver=()):
    """Fake the output of torch's process and the driver's list of GPUs."""
    monkeypatch.setattr(checks, "_version", lambda _name: "2.13.0")
    monkeypatch.setattr(checks, "_nvidia_smi", lambda _fields: list(driver))
    done = subprocess.CompletedProcess([], code, json.dumps(seen or {}), error)
    monkeypatch.setattr(checks.subprocess, "run", lambda *_args, **_named: done)


CPU = {"version": "2.13.0+cpu", "cuda": None, "gpus": [], "nccl": None}


def test_torch_without_cuda_beside_a_driver_is_an_error(monkeypatch):
    says(monkeypatch, seen=CPU, driver=["NVIDIA H100, 570.1"] * 8)
    _, gpus = checks.check_torch()
    assert (gpus.status, gpus.found) == ("bad", "8 GPUs found by the driver, none by torch")
    assert "built without CUDA" in gpus.fix


@pytest.mark.parametrize(
    ("torch", "requires", "driver", "status"),
    [
        ("2.13.0", ["cuda-toolkit[cudart]==13.0.3; platform_system == 'Linux'"], "570.1", "bad"),
        ("2.13.0", ["cuda-toolkit[cudart]==13.0.3; platform_system == 'Linux'"], "580.95", "ok"),
        ("2.8.0", ["nvidia-cudnn-cu12==9.10"], "570.1", "ok"),
        ("2.13.0+cu126", ["nvidia-nccl-cu13==2"], "570.1", "ok"),
        (None, [], "570.1", "bad"),
        ("2.13.0+cpu", [], "470.1", None),
        ("2.13.0", [], "", None),
    ],
)
def test_driver_is_checked_against_the_cuda_of_torch(monkeypatch, torch, requires, driver, status):
    monkeypatch.setattr(checks, "_version", lambda _name: torch)
    monkeypatch.setattr(checks, "_nvidia_smi", lambda _fields: driver.split() * 8)
    monkeypatch.setattr(checks.importlib.metadata, "requires", lambda _name: requires)
    found = [(check.status, check.found.partition(";")[0]) for check in checks.check_driver()]
    assert found == ([] if status is None else [(status, driver)])


def test_gpus_are_counted_by_type_and_their_absence_is_a_warning(monkeypatch):
    two = ["NVIDIA H100", "NVIDIA A100", "NVIDIA H100"]
    says(monkeypatch, seen=CPU | {"cuda": "12.8", "gpus": two, "nccl": "2.27.3"}, driver=["x"] * 3)
    _, gpus = checks.check_torch()
    assert (gpus.status, gpus.found) == ("ok", "2 x NVIDIA H100, 1 x NVIDIA A100; NCCL 2.27.3")
    says(monkeypatch, seen=CPU)
    _, gpus = checks.check_torch()
    assert gpus.status == "note"


def test_torch_that_cannot_be_imported_is_an_error_with_its_message(monkeypatch):
    says(monkeypatch, code=1, error="Traceback ...\nImportError: libcudnn.so.9: no such file\n")
    check = one(checks.check_torch())
    assert check.status == "bad"
    assert "ImportError: libcudnn.so.9" in check.found
    assert "pip install --force-reinstall torch==" in check.fix


@pytest.fixture
def compilers(monkeypatch, tmp_path):
    """The programs on the path, and a folder for Python's headers; all there at first."""
    programs = {"gcc", "clang", "g++"}
    (tmp_path / "Python.h").touch()
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(checks.shutil, "which", lambda name: name if name in programs else None)
    monkeypatch.setattr(checks.sysconfig, "get_path", lambda _: str(tmp_path))
    return programs


@pytest.mark.parametrize(
    ("gpus", "status", "who"),
    [(["NVIDIA H100"], "bad", "Trainings on a GPU compile"), ([], "note", "Trainings on a CPU do")],
)
def test_missing_compiler_is_an_error_beside_a_gpu(monkeypatch, compilers, gpus, status, who):
    monkeypatch.setattr(checks, "_nvidia_smi", lambda _fields: gpus)
    assert (check := one(checks.check_compiler())).status == "ok"
    assert check.fix is None
    compilers.remove("gcc")  # Triton takes clang, too.
    assert one(checks.check_compiler()).status == "ok"
    compilers.clear()
    check = one(checks.check_compiler())
    assert (check.name, check.status) == ("compiler", status)
    assert check.found == "torch.compile lacks a C compiler, a C++ compiler"
    assert "apt-get install gcc g++" in check.fix
    assert "compile: {scope: none}" in check.fix
    assert who in check.fix


def test_gpu_in_use_by_others_is_a_warning(monkeypatch):
    rows = ["0, 100, 81559", "1, 40000, 81559", "2, [N/A], 81559"]
    monkeypatch.setattr(checks, "_nvidia_smi", lambda _fields: rows)
    check = one(checks.check_gpu_use())
    assert (check.status, check.found) == ("note", "GPU 1 already has 40000 of 81559 MiB in use")


def test_missing_packages_and_wrong_versions_are_named(monkeypatch):
    known = {"torch": "2.12.0", "ray": "2.60.0+local", "fastapi": None}
    monkeypatch.setattr(checks, "_version", lambda name: known.get(name, "1.0"))
    pinned = {"torch": "2.13.0", "ray": "2.60.0"}
    monkeypatch.setattr(checks, "_pinned", pinned.get)
    found = {check.name: check for check in checks.check_packages()}
    assert found["lehr[server]"].status == "bad"
    assert found["lehr[server]"].found == "missing: fastapi"
    assert found["lehr[server]"].fix == extras.install("lehr[server]")
    assert found["lehr[trainer]"].status == "ok"
    assert found["torch"].status == "note"
    assert "2.12.0; Lehr is tested with 2.13.0" in found["torch"].found
    assert "ray" not in found


# ---------------------------------------------------------------------------- token, paths, server


@pytest.mark.parametrize(
    ("mode", "status"), [(0o600, "ok"), (0o400, "ok"), (0o640, "bad"), (0o604, "bad")]
)
def test_token_readable_by_others_is_an_error(home, mode, status):
    token = home / "token"
    token.write_text("secret")
    token.chmod(mode)
    check = one(checks.check_token())
    assert check.status == status
    if status == "bad":
        assert check.fix == f"chmod 600 {token}"
        assert f"mode {mode:04o}" in check.found
    assert "secret" not in check.found


def test_temporary_folder_too_long_for_ray_sockets_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(checks.home, "ray_dir", lambda: tmp_path / ("d" * 60))
    check = one(checks.check_socket_path())
    assert check.status == "bad"
    assert "of 107 characters" in check.found
    assert check.fix == "Set TMPDIR to a shorter path."
    from pathlib import Path

    monkeypatch.setattr(checks.home, "ray_dir", lambda: Path("/tmp/r"))
    assert checks.check_socket_path() == []
