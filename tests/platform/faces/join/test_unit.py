"""The systemd unit that `lehr node join --systemd` writes, checked by systemd itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from lehr.faces.join import daemon
from lehr.faces.join.keeper import NOT_JOINED

ODD = '/tmp/a home with 100% "odd" $NAMES'


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Make the unit of a user."""

    def make(uid, where="/var/lib/lehr"):
        monkeypatch.setattr(os, "getuid", lambda: uid)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
        return daemon.unit(Path(where), "gpu-2")

    return make


def test_root_gets_a_unit_of_the_system_and_others_one_of_their_own(tmp_path, made):
    root, user = made(0), made(os.getuid() or 65_534)
    assert root.path == Path("/etc/systemd/system/lehr-node.service")
    assert "WantedBy=multi-user.target" in root.text
    assert user.path == tmp_path / "systemd" / "user" / "lehr-node.service"
    assert any("enable-linger" in line for line in user.enable)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("where", ["/var/lib/lehr", ODD])
def test_systemd_accepts_the_unit(tmp_path, made, where):
    path = tmp_path / "lehr-node.service"
    path.write_text(made(0, where).text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False
    )
    assert [line for line in done.stderr.splitlines() if "lehr-node" in line] == []


def test_trainings_outlive_the_unit_and_each_other(made):
    lines = made(0).text.splitlines()
    assert {"KillMode=process", "OOMPolicy=continue", "Restart=always"} <= set(lines)
    assert "LimitMEMLOCK=infinity" in lines


def test_machine_that_has_left_is_not_tried_again_by_systemd(made):
    assert f"RestartPreventExitStatus={NOT_JOINED}" in made(0).text.splitlines()
