"""An acknowledged write is on the disk: its content before it has its name, then the name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lehr.app.alerting.push import Devices
from lehr.base import home as homes
from lehr.base import procfs
from lehr.base.signed_tokens import AttemptTokens
from lehr.store.secret_store import SecretStore
from lehr_testing.push import DEVICE

WRITES = {
    "secrets.json": lambda home: SecretStore(home).set("key", "value", by="owner", at=1.0),
    "push.json": lambda home: Devices(home, url="").put(DEVICE),
    "token": homes.ensure_token,
    "attempt-key": AttemptTokens,
    "exit.json": lambda home: procfs.write_json(str(home / "exit.json"), {}, durable=True),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_was_acknowledged_stays_through_a_power_cut(tmp_path: Path, monkeypatch, name) -> None:
    """The order of the system calls is judged: a cut of the power would need a machine."""
    calls: list[tuple[str, int, int]] = []

    def noted(call, system_call):
        def call_it(*args, **kwargs):
            status = os.stat(args[0])  # noqa: PTH116 - a path or a descriptor
            calls.append((call, status.st_ino, status.st_size))
            return system_call(*args, **kwargs)

        return call_it

    for call in ("fsync", "replace", "link"):
        monkeypatch.setattr(os, call, noted(call, getattr(os, call)))
    WRITES[name](tmp_path)
    written = (tmp_path / name).stat()
    [named] = [
        at
        for at, (call, inode, _) in enumerate(calls)
        if call != "fsync" and inode == written.st_ino
    ]
    assert ("fsync", written.st_ino, written.st_size) in calls[:named]
    assert [(call, inode) for call, inode, _ in calls[named + 1 :]] == [
        ("fsync", tmp_path.stat().st_ino)
    ]
