"""Environments of a node: built once by the real uv, from packages that the test makes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lehr.base import killpoints
from lehr.code import code_cache
from lehr.node import environment_builder
from lehr.node.environment_builder import BuildFailed, build
from lehr_testing.faults import kill_points
from lehr_testing.paths import ROOT


def wheel(folder: Path, version: str, name: str = "lehr_dummy") -> None:
    """Write a package with one module that has its version."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        record += f"{path},sha256={digest.decode()},{len(text)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for version in ("1.0", "2.0"):
        wheel(tmp_path / "wheels", version)
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def wants(project: Path, text: str, name: str = "requirements.txt") -> str:
    wheels = project.parent / "wheels"
    (project / name).write_text(f"--no-index\n--find-links {wheels}\n{text}\n")
    return name


def in_environment(node: Path, key: str, code: str) -> str:
    python = code_cache.environment_python(str(node), key)
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def quiet(_message: str) -> None:
    pass


def test_two_files_give_two_versions_and_the_nodes_packages_are_inherited(project, tmp_path):
    node, said = tmp_path / "node", []
    first = build(str(node), str(project), wants(project, "lehr-dummy==1.0"), said.append)
    second = build(str(node), str(project), wants(project, "lehr-dummy==2.0", "other.txt"), quiet)
    assert first != second
    show = "import lehr_dummy, yaml, lehr_trainer; print(lehr_dummy.VERSION)"
    assert in_environment(node, first, show) == "1.0"
    assert in_environment(node, second, show) == "2.0"
    assert "building the environment of requirements.txt by uv" in said
    assert said[-1].startswith("built the environment of requirements.txt: 1 packages in ")
    packages = json.loads(
        Path(f"{code_cache.environment_folder(str(node), first)}.json").read_text()
    )
    assert packages["packages"] == [{"name": "lehr-dummy", "version": "1.0"}]


@pytest.mark.parametrize("point", kill_points.BUILDING)
def test_build_that_was_killed_is_repeated(point, project, tmp_path):
    name, node = wants(project, "lehr-dummy==1.0"), tmp_path / "node"
    entry = node / "attempts/r-1"
    entry.mkdir(parents=True)
    code = node / "code/abc"
    code.mkdir(parents=True)
    project.rename(code / "project")
    launch = {
        "code": "abc",
        "environment": name,
        "gang": {"node_rank": 0},
        "attempt_dir": str(tmp_path),
    }
    (entry / "launch.json").write_text(json.dumps(launch))
    armed = tmp_path / "armed"
    armed.write_text(point)
    script = ROOT / "platform/lehr/node/environment_builder.py"
    command = [sys.executable, "-I", str(script), str(entry)]

    def attempt(**more) -> int:
        return subprocess.run(command, env={**os.environ, **more}, check=False).returncode

    assert attempt(**{killpoints.VARIABLE: str(armed)}) == -signal.SIGKILL
    key = code_cache.environment_key(str(code / "project"), name)
    assert not code_cache.environment_ready(str(node), key)
    assert attempt() == 0
    assert code_cache.environment_ready(str(node), key)
    assert in_environment(node, key, "import lehr_dummy; print(lehr_dummy.VERSION)") == "1.0"
    # Its progress is in the stream of the run, in whole records.
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    notices = [json.loads(line) for line in lines]
    assert {one["phase"] for one in notices} == {"environment"}
    assert notices[-1]["message"].startswith("built the environment of requirements.txt")


def test_environments_that_no_attempt_uses_are_removed_after_a_while(project, tmp_path):
    node = str(tmp_path / "node")
    key = build(node, str(project), wants(project, "lehr-dummy==1.0"), quiet)
    assert environment_builder.remove_unused(node, set()) == []
    assert environment_builder.remove_unused(node, {key}, keep_s=0) == []
    assert environment_builder.remove_unused(node, set(), keep_s=0) == [key]
    assert not code_cache.environment_ready(node, key)
    assert not Path(code_cache.environment_folder(node, key)).exists()
    assert environment_builder.remove_unused(node, set(), keep_s=0) == []


def test_node_without_uv_names_it(project, tmp_path, monkeypatch):
    monkeypatch.setattr(environment_builder.sysconfig, "get_path", lambda _name: str(tmp_path))
    monkeypatch.setattr(environment_builder.importlib.util, "find_spec", lambda _name: None)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(BuildFailed, match="this node has no uv"):
        environment_builder.find_uv()


def test_attempts_that_start_together_build_it_once(project, tmp_path):
    name, said = wants(project, "lehr-dummy==1.0"), []
    with ThreadPoolExecutor(3) as pool:
        made = pool.map(
            lambda _: build(str(tmp_path / "node"), str(project), name, said.append), range(3)
        )
        assert len(set(made)) == 1
    assert len([one for one in said if one.startswith("building")]) == 1


def test_lock_of_uv_is_built_from_both_of_its_files(project, tmp_path):
    wheels = tmp_path / "wheels"
    (project / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.11"\n'
        'dependencies = ["lehr-dummy<2"]\n'
        f'[tool.uv]\nno-index = true\nfind-links = ["{wheels}"]\n'
    )
    uv = environment_builder.find_uv()
    subprocess.run([uv, "lock", "--project", str(project)], check=True, capture_output=True)
    node = str(tmp_path / "node")
    key = build(node, str(project), "uv.lock", quiet)
    assert (
        in_environment(tmp_path / "node", key, "import lehr_dummy as d; print(d.VERSION)") == "1.0"
    )
    (project / "pyproject.toml").open("a").write("\n")
    assert code_cache.environment_key(str(project), "uv.lock") != key
