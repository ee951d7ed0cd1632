"""Atomic writes: what a reader sees, and what a failure leaves."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

from lehr_trainer import __main__, extras
from lehr_trainer.files import ensure_secret, fsync_folder, write_atomically


def test_file_is_replaced_and_no_temporary_file_stays(tmp_path):
    path = tmp_path / "a.json"
    write_atomically(path, "old")
    write_atomically(path, "größer")
    assert path.read_text("utf-8") == "größer"
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_keeps_the_old_content_and_no_temporary_file(tmp_path):
    path = tmp_path / "a.json"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_first_of_two_secrets_stays_and_only_its_owner_can_read_it(tmp_path):
    path = tmp_path / "token"
    assert ensure_secret(path, b"first") == b"first"
    assert ensure_secret(path, b"second") == b"first"
    assert path.read_bytes() == b"first"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("left", [b"", b"\n", b"\0" * 64])
def test_secret_that_a_power_cut_emptied_is_made_again(tmp_path, left):
    path = tmp_path / "token"
    path.write_bytes(left)
    assert ensure_secret(path, b"new") == b"new"
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"new", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_only_a_folder_is_synced(tmp_path):
    fsync_folder(tmp_path)
    (tmp_path / "a").write_text("")
    with pytest.raises(NotADirectoryError):
        fsync_folder(tmp_path / "a")


COMMIT = {"vcs": "git", "commit_id": "ab12"}


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'lehr[mcp]'"),
        ({"url": "file:///a%20b/lehr", "dir_info": {}}, "pip install '/a b/lehr[mcp]'"),
        ({"url": "file:///lehr", "dir_info": {"editable": True}}, "pip install -e '/lehr[mcp]'"),
        ({"url": "file:///x/lehr-1.whl"}, "pip install '/x/lehr-1.whl[mcp]'"),
        ({"url": "https://h/lehr-1.whl"}, "pip install 'lehr[mcp] @ https://h/lehr-1.whl'"),
        (
            {"url": "ssh://h/lehr", "vcs_info": COMMIT},
            "pip install 'lehr[mcp] @ git+ssh://h/lehr@ab12'",
        ),
    ],
)
def test_extra_is_installed_from_the_origin_of_the_installed_lehr(monkeypatch, origin, command):
    text = None if origin is None else json.dumps(origin)
    installed = SimpleNamespace(read_text=lambda name: text)
    monkeypatch.setattr(extras.metadata, "distribution", lambda name: installed)
    monkeypatch.setattr(extras.shutil, "which", lambda name: f"{sys.prefix}/bin/{name}")
    assert extras.install("lehr[mcp]") == command
    assert extras.install("gcsfs") == "pip install 'gcsfs'"


def test_extra_is_installed_into_this_environment_by_what_made_it(monkeypatch, tmp_path):
    text = json.dumps({"url": "file:///x/lehr-1.whl"})
    installed = SimpleNamespace(read_text=lambda name: text)
    monkeypatch.setattr(extras.metadata, "distribution", lambda name: installed)
    monkeypatch.setattr(extras.sys, "prefix", f"{tmp_path}/a b")
    pip = f"'{tmp_path}/a b/bin/pip' install '/x/lehr-1.whl[mcp]'"
    assert extras.install("lehr[mcp]") == pip  # Not activated: another pip comes first.
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    made_by_uv = f"uv pip install --python '{tmp_path}/a b' '/x/lehr-1.whl[mcp]'"
    assert extras.install("lehr[mcp]") == made_by_uv
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b/uv-receipt.toml").write_text(
        '[tool]\nrequirements = [{name = "lehr", extras = ["server"]}, {name = "s3fs"}]\n'
    )
    tool = "uv tool install '/x/lehr-1.whl[server,mcp]' --with 's3fs'"
    assert extras.install("lehr[mcp]") == tool
    assert extras.install("gcsfs") == f"{tool.replace(',mcp', '')} --with 'gcsfs'"


@pytest.mark.parametrize("words", [["export", "a", "b"], ["folder"]])
def test_trainer_without_torch_is_one_sentence_with_the_command(monkeypatch, capsys, words):
    monkeypatch.setattr(__main__, "find_spec", lambda name: None)
    monkeypatch.setattr(__main__.sys, "argv", ["lehr_trainer", *words])
    assert __main__.main() == 1
    fix = extras.install("lehr[trainer]")
    said = f"error: torch is not installed. Install it: {fix}\n"
    assert capsys.readouterr().err == said


def test_lehr_without_a_distribution_has_a_sentence_for_a_command(monkeypatch):
    def missing(name):
        raise extras.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(extras.metadata, "distribution", missing)
    monkeypatch.setattr(extras.metadata, "requires", missing)
    assert extras.install("lehr[mcp]") == "the packages of lehr[mcp] in Lehr's pyproject.toml"
    assert extras.extra_with("ray") is None


def test_extra_of_a_missing_module_is_found_by_the_package_that_has_it():
    assert extras.extra_with("prometheus_client.core") == "server"
    assert [extras.extra_with(name) for name in ("ray", "torch", "mcp")] == [
        "server",
        "trainer",
        "mcp",
    ]
    assert extras.extra_with("my_module") is extras.extra_with(None) is None
