"""A node's capsules: fetched and unpacked once, verified at each start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread

import pytest

from lehr.base import killpoints, procfs
from lehr.code import archive, code_cache
from lehr.code.archive import BadArchive, SourceFile
from lehr.node import fetcher
from lehr.node.attempt_dir import AttemptDir
from lehr_testing.faults import kill_points
from lehr_testing.faults.disks import small_disk
from lehr_testing.paths import ROOT


class FromFile:
    """A server that sends one archive, and counts how often."""

    def __init__(self, path: Path) -> None:
        self.path, self.count = path, 0

    def download(self, path, file, most):
        self.count += 1
        file.write(self.path.read_bytes())


@pytest.fixture
def entry(tmp_path: Path) -> AttemptDir:
    folder = tmp_path / "node/attempts/r-1"
    folder.mkdir(parents=True)
    (folder / "launch.json").write_text("{}")
    return AttemptDir(str(folder))


@pytest.fixture
def capsule(tmp_path: Path) -> tuple[str, FromFile]:
    (tmp_path / "x.py").write_text("VALUE = 1\n")
    names = ("trainer/lehr_trainer/x.py", "project/y.py")
    with (tmp_path / "sent.tar").open("wb") as output:
        sources = [SourceFile(name, str(tmp_path / "x.py"), False) for name in names]
        digest, _ = archive.write(sources, output)
    return digest, FromFile(tmp_path / "sent.tar")


def node(entry: AttemptDir) -> str:
    return code_cache.node_folder(entry.path)


def left(entry: AttemptDir) -> list[str]:
    return [path.name for path in (Path(node(entry)) / "code").iterdir()]


def test_capsule_is_fetched_once_and_is_read_only(entry, capsule):
    digest, server = capsule
    assert not code_cache.ready(node(entry), digest)
    fetcher.fetch_code(entry, digest, server)
    fetcher.fetch_code(entry, digest, server)
    assert server.count == 1
    assert code_cache.ready(node(entry), digest)
    file = Path(code_cache.folder(node(entry), digest)) / "project/y.py"
    assert file.read_text() == "VALUE = 1\n"
    assert file.stat().st_mode & 0o222 == 0
    paths = code_cache.python_path(node(entry), digest).split(os.pathsep)
    assert [Path(path).name for path in paths] == ["trainer", "project"]


def test_bytecode_that_python_writes_is_no_edit(entry, capsule):
    digest, server = capsule
    fetcher.fetch_code(entry, digest, server)
    folder = Path(code_cache.folder(node(entry), digest))
    (folder / "project/__pycache__").mkdir()
    (folder / "project/__pycache__/y.cpython-311.pyc").write_bytes(b"x")
    assert code_cache.ready(node(entry), digest)


def test_archive_that_is_not_the_capsule_is_refused_and_leaves_nothing(entry, capsule):
    digest, server = capsule
    server.path.write_bytes(server.path.read_bytes() + b"\0" * 512)
    with pytest.raises(BadArchive, match="the server sent"):
        fetcher.fetch_code(entry, digest, server)
    assert left(entry) == [".lock"]


def test_capsules_that_no_attempt_uses_are_removed_after_a_while(entry, capsule):
    digest, server = capsule
    fetcher.fetch_code(entry, digest, server)
    assert fetcher.remove_unused(node(entry), set()) == []
    assert fetcher.remove_unused(node(entry), {digest}, keep_s=0) == []
    assert fetcher.remove_unused(node(entry), set(), keep_s=0) == [digest]
    assert not code_cache.ready(node(entry), digest)
    assert left(entry) == [".lock"]


class Turns:
    """A server over HTTP whose answers end as the test says."""

    def __init__(self) -> None:
        self.hold = Event()
        self.hold.set()
        self.half = Event()
        """Half of an answer was sent."""
        self.cut_short = 0
        self.count = 0


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def served(capsule, turns) -> Iterator[tuple[str, str]]:
    """Serve the capsule over HTTP on loopback; yield its digest and the address."""
    digest, from_file = capsule
    content = from_file.path.read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            turns.count += 1
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            turns.half.set()
            turns.hold.wait(60)
            if turns.cut_short:
                turns.cut_short -= 1
                self.close_connection = True
                return
            with contextlib.suppress(OSError):  # The fetcher was killed.
                self.wfile.write(content[len(content) // 2 :])

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield digest, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def started(
    entry: AttemptDir, name: str, digest: str, address: str, armed: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start the fetcher of a new attempt as the shim does."""
    folder = Path(entry.path).parent / name
    folder.mkdir()
    launch = {"code": digest, "server_url": address, "token": "t"}
    (folder / "launch.json").write_text(json.dumps(launch))
    script = ROOT / "platform/lehr/node/fetcher.py"
    variables = {killpoints.VARIABLE: str(armed)} if armed else {}
    command = [sys.executable, "-I", str(script), str(folder), "code"]
    return subprocess.Popen(command, env={**os.environ, **variables})


def attempt(entry: AttemptDir, name: str, digest: str, address: str, armed: Path | None) -> int:
    """Run the fetcher of a new attempt; return its exit code."""
    return started(entry, name, digest, address, armed).wait(60)


def files_of(entry: AttemptDir, digest: str) -> dict[str, str]:
    where = Path(code_cache.folder(node(entry), digest))
    return {p.relative_to(where).as_posix(): p.read_text() for p in where.rglob("*.py")}


RIGHT = {"trainer/lehr_trainer/x.py": "VALUE = 1\n", "project/y.py": "VALUE = 1\n"}


@pytest.mark.parametrize("point", kill_points.FETCHING)
def test_attempt_after_a_killed_fetch_trains_with_exactly_the_right_code(
    point, entry, served, capsule, tmp_path
):
    digest, address = served
    if "edited" in point:
        fetcher.fetch_code(entry, digest, capsule[1])
        file = Path(code_cache.folder(node(entry), digest)) / "project/y.py"
        file.chmod(0o644)
        file.write_text("VALUE = 2\n")
    armed = tmp_path / "armed"
    armed.write_text(point)
    assert attempt(entry, "r-2", digest, address, armed) == -signal.SIGKILL
    # Whatever it has left is not taken for the capsule.
    assert not code_cache.ready(node(entry), digest)
    assert attempt(entry, "r-3", digest, address, None) == 0
    assert code_cache.ready(node(entry), digest)
    where = Path(code_cache.folder(node(entry), digest))
    assert files_of(entry, digest) == RIGHT
    train = "import y; print(y.VALUE, y.__file__)"
    path = {"PYTHONPATH": code_cache.python_path(node(entry), digest)}
    command = [sys.executable, "-P", "-c", train]
    done = subprocess.run(
        command, env={**os.environ, **path}, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", str(where / "project/y.py")]
    # No drafts are left, and an edited capsule stays only for those that have it open.
    assert {name.partition(".changed-")[0] for name in left(entry)} == {
        ".lock",
        digest,
        f"{digest}.index",
    }


def test_full_disk_is_one_clear_error_and_leaves_nothing(monkeypatch, capsys, tmp_path):
    (tmp_path / "x.bin").write_bytes(bytes(1 << 20))
    with (tmp_path / "large.tar").open("wb") as output:
        sources = [SourceFile("project/x.bin", str(tmp_path / "x.bin"), False)]
        digest, _ = archive.write(sources, output)
    with small_disk(tmp_path / "small", megabytes=4) as disk:
        entry = AttemptDir(str(disk.path / "attempts/r-1"))
        Path(entry.path).mkdir(parents=True)
        launch = {"code": digest, "server_url": "http://127.0.0.1:9", "token": "t"}
        Path(entry.file("launch.json")).write_text(json.dumps(launch))
        (disk.path / "code").mkdir()
        monkeypatch.setattr(fetcher, "PAUSES_S", (0.0,))
        server = FromFile(tmp_path / "large.tar")
        monkeypatch.setattr(fetcher, "ServerConnection", lambda *_: server)
        monkeypatch.setattr(sys, "argv", ["fetcher.py", entry.path, "code"])
        disk.fill()
        with pytest.raises(SystemExit):
            fetcher.main()
        assert not code_cache.ready(node(entry), digest)
        assert left(entry) == [".lock"]
        disk.free()
        fetcher.main()
        assert code_cache.ready(node(entry), digest)
    [error] = capsys.readouterr().out.splitlines()
    assert error.startswith(f"capsule {digest[:12]} could not be fetched to {disk.path}/code: ")
    assert error.endswith("No space left on device")


def test_what_a_killed_fetcher_has_left_is_removed_by_the_next(entry, capsule):
    digest, server = capsule
    base = Path(node(entry)) / "code"
    (base / ".0123456789abcdef").mkdir(parents=True)
    (base / ".0123456789abcdef" / "y.py").write_text("half")
    (base / ".0123456789abcdef.tar").write_text("half")
    fetcher.fetch_code(entry, digest, server)
    assert sorted(left(entry)) == sorted([".lock", digest, f"{digest}.index"])


def test_capsule_that_was_unpacked_before_the_machine_started_is_fetched_again(
    entry, capsule, monkeypatch
):
    digest, server = capsule
    fetcher.fetch_code(entry, digest, server)
    monkeypatch.setattr(procfs, "boot_id", lambda: "another")
    assert not code_cache.ready(node(entry), digest)
    fetcher.fetch_code(entry, digest, server)
    assert server.count == 2
    assert sorted(left(entry)) == sorted([".lock", digest, f"{digest}.index"])
