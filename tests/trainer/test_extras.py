"""The command that adds an extra installs Lehr from where the installed one came from."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from lehr_trainer import extras

COMMIT = {"vcs": "git", "commit_id": "ab12"}


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'lehr[mcp]'"),
        ({"url": "file:///a%20b/lehr", "dir_info": {}}, "pip install '/a b/lehr[mcp]'"),
        (
            {"url": "file:///lehr", "dir_info": {"editable": True}},
            "pip install -e '/lehr[mcp]'",
        ),
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
    assert extras.install("lehr[mcp]") == command
    assert extras.install("gcsfs") == "pip install 'gcsfs'"


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
