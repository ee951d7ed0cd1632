"""Lehr's home: paths, token, the server's address, and one process at a time."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from lehr.base import home
from lehr.base.filesystems import filesystem_type, refuse_network_filesystem, tree_bytes
from lehr.errors import HomeUnusable
from lehr.store.store import Store
from lehr_testing.stores import fresh_store


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEHR_HOME", "LEHR_RUNS", "LEHR_DATA", "LEHR_SERVER", "LEHR_TOKEN"):
        monkeypatch.delenv(name, raising=False)


def test_ray_folder_is_short_and_unique_to_the_home(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 200)
    assert len(str(home.ray_dir(deep))) < 60
    assert home.ray_dir(deep) != home.ray_dir(tmp_path)


def test_token_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    where = tmp_path / "home"
    assert home.read_token(where) is None
    tokens: list[str] = []
    threads = [
        threading.Thread(target=lambda: tokens.append(home.ensure_token(where))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(tokens) == 8
    assert len(set(tokens)) == 1
    assert len(tokens[0]) >= 40
    assert stat.S_IMODE((where / "token").stat().st_mode) == 0o600
    assert stat.S_IMODE(where.stat().st_mode) == 0o700
    assert home.read_token(where) == tokens[0]
    assert [path.name for path in where.iterdir()] == ["token"]


def test_home_that_others_can_enter_is_closed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    note = home.close_to_others(tmp_path)
    assert note is not None
    assert "mode 0755" in note
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
    assert home.close_to_others(tmp_path) is None


def test_token_readable_by_others_is_rejected(tmp_path: Path) -> None:
    home.ensure_token(tmp_path)
    (tmp_path / "token").chmod(0o640)
    with pytest.raises(HomeUnusable, match="chmod 600"):
        home.ensure_token(tmp_path)


def test_server_address_comes_from_the_environment_first_and_has_no_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home.server_url(tmp_path) is None
    home.write_server(tmp_path, home.ServerInfo("http://127.0.0.1:9/", os.getpid(), "0.1.0"))
    assert home.server_url(tmp_path) == "http://127.0.0.1:9"
    monkeypatch.setenv("LEHR_SERVER", "https://lehr.example/")
    assert home.server_url(tmp_path) == "https://lehr.example"


def test_server_json_is_removed_by_its_own_process_only(tmp_path: Path) -> None:
    home.write_server(tmp_path, home.ServerInfo("http://x", os.getpid() + 1, "0.1.0"))
    home.remove_server(tmp_path)
    assert home.read_server(tmp_path) is not None
    home.write_server(tmp_path, home.ServerInfo("http://x", os.getpid(), "0.1.0"))
    home.remove_server(tmp_path)
    assert home.read_server(tmp_path) is None
    (tmp_path / "server.json").write_text("{broken")
    assert home.read_server(tmp_path) is None


HOLD = "import sys, pathlib, lehr.base.home as h\nh.acquire_lock(pathlib.Path(sys.argv[1]))\nprint('held', flush=True)\nsys.stdin.read()"


def _read_only(path: Path, flags: int, opened: Callable[[Path, int], int] = os.open) -> int:
    if flags & (os.O_WRONLY | os.O_RDWR):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
    return opened(path, flags)


def test_second_process_is_rejected_with_the_holder_of_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout.readline() == "held\n"
        assert home.lock_holder(tmp_path) == holder.pid
        # In a home that is mounted read-only; a lock that cannot be read is not known to be held.
        with monkeypatch.context() as patch:
            patch.setattr(os, "open", _read_only)
            assert home.lock_holder(tmp_path) == holder.pid
        assert home.lock_holder(tmp_path / "lehr.lock") is None
        with pytest.raises(HomeUnusable, match=f"in use by process {holder.pid}"):
            Store.open(tmp_path)
        holder.kill()
        holder.wait()
        # A lock ends with its process, however that ends.
        assert home.lock_holder(tmp_path) is None
        with home.lock(tmp_path):
            assert home.lock_holder(tmp_path) == os.getpid()
    finally:
        holder.kill()
        holder.communicate()


def test_one_home_is_opened_once_in_a_process(tmp_path: Path) -> None:
    with fresh_store(tmp_path):
        with pytest.raises(Exception, match="already open in this process"):
            Store.open(tmp_path)
        assert home.lock_holder(tmp_path) == os.getpid()
    Store.open(tmp_path).close()


MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:5 / /proc rw - proc proc rw
40 22 0:40 / /home/ada rw - nfs4 server:/home rw
41 40 0:41 / /home/ada/scratch rw - xfs /dev/nvme0n1 rw
50 22 0:50 / /mnt/with\040space rw - fuse.sshfs host:/ rw
60 22 0:60 / /mnt/twice rw - ext4 /dev/a rw
61 22 0:61 / /mnt/twice rw - cifs //b rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/lehr", "ext4"),
        ("/home/ada/.lehr", "nfs4"),
        ("/home/adam/.lehr", "ext4"),
        ("/home/ada/scratch/lehr", "xfs"),
        ("/mnt/with space/lehr", "fuse.sshfs"),
        ("/mnt/twice/lehr", "cifs"),
    ],
)
def test_file_system_of_a_path_is_read_from_the_mount_table(path: str, kind: str) -> None:
    assert filesystem_type(Path(path), MOUNTS) == kind


def test_network_file_system_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refuse_network_filesystem(tmp_path) not in {None, "nfs4"}
    table = tmp_path / "mountinfo"
    table.write_text(f"1 0 0:1 / {tmp_path} rw - nfs4 server:/x rw\n")
    monkeypatch.setattr("lehr.base.filesystems.MOUNTS", table)
    with pytest.raises(HomeUnusable, match=r"network file system \(nfs4\)"):
        Store.open(tmp_path / "home")


def test_size_counts_files_and_links_and_follows_none(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").write_bytes(b"x" * 10)
    (inner / "away").symlink_to("/usr")
    assert tree_bytes(tmp_path) == 10 + len("/usr")
    assert tree_bytes(tmp_path / "none") == 0
