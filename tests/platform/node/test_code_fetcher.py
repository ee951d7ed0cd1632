"""A node's capsules: fetched and unpacked once, verified at each start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from lehr import killpoints
from lehr.capsules import archive
from lehr.capsules.archive import BadArchive, SourceFile
from lehr.node import code_cache, code_fetcher
from lehr.node.attempt_dir import AttemptDir
from lehr_testing.faults import kill_points
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
    code_fetcher.fetch(entry, digest, server)
    code_fetcher.fetch(entry, digest, server)
    assert server.count == 1
    assert code_cache.ready(node(entry), digest)
    file = Path(code_cache.folder(node(entry), digest)) / "project/y.py"
    assert file.read_text() == "VALUE = 1\n"
    assert file.stat().st_mode & 0o222 == 0
    paths = code_cache.python_path(node(entry), digest).split(os.pathsep)
    assert [Path(path).name for path in paths] == ["trainer", "project"]


def test_capsule_that_was_edited_on_the_node_is_fetched_again(entry, capsule):
    digest, server = capsule
    code_fetcher.fetch(entry, digest, server)
    file = Path(code_cache.folder(node(entry), digest)) / "project/y.py"
    file.chmod(0o644)
    file.write_text("VALUE = 2\n")
    assert not code_cache.ready(node(entry), digest)
    code_fetcher.fetch(entry, digest, server)
    assert server.count == 2
    assert file.read_text() == "VALUE = 1\n"


def test_bytecode_does_not_count_as_an_edit(entry, capsule):
    digest, server = capsule
    code_fetcher.fetch(entry, digest, server)
    cache = Path(code_cache.folder(node(entry), digest)) / "project/__pycache__"
    cache.mkdir()
    (cache / "y.cpython-311.pyc").write_bytes(b"x")
    assert code_cache.ready(node(entry), digest)


def test_attempts_that_start_together_fetch_it_once(entry, capsule):
    digest, server = capsule
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: code_fetcher.fetch(entry, digest, server), range(4)))
    assert server.count == 1


def test_archive_that_is_not_the_capsule_is_refused_and_leaves_nothing(entry, capsule):
    digest, server = capsule
    server.path.write_bytes(server.path.read_bytes() + b"\0" * 512)
    with pytest.raises(BadArchive, match="the server sent"):
        code_fetcher.fetch(entry, digest, server)
    assert left(entry) == [".lock"]


def test_capsules_that_no_attempt_uses_are_removed_after_a_while(entry, capsule):
    digest, server = capsule
    code_fetcher.fetch(entry, digest, server)
    assert code_fetcher.remove_unused(node(entry), set()) == []
    assert code_fetcher.remove_unused(node(entry), {digest}, keep_s=0) == []
    assert code_fetcher.remove_unused(node(entry), set(), keep_s=0) == [digest]
    assert not code_cache.ready(node(entry), digest)
    assert left(entry) == [".lock"]


def test_what_a_killed_fetcher_has_left_is_removed_by_the_next(entry, capsule):
    digest, server = capsule
    base = Path(node(entry)) / "code"
    (base / ".0123456789abcdef").mkdir(parents=True)
    (base / ".0123456789abcdef" / "y.py").write_text("half")
    (base / ".0123456789abcdef.tar").write_text("half")
    code_fetcher.fetch(entry, digest, server)
    assert sorted(left(entry)) == sorted([".lock", digest, f"{digest}.index"])


@pytest.fixture
def served(capsule) -> Iterator[tuple[str, str]]:
    """Serve the capsule over HTTP on loopback; yield its digest and the address."""
    digest, from_file = capsule
    content = from_file.path.read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield digest, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def attempt(entry: AttemptDir, name: str, digest: str, address: str, armed: Path | None) -> int:
    """Run the fetcher of a new attempt as the shim does; return its exit code."""
    folder = Path(entry.path).parent / name
    folder.mkdir()
    launch = {"code": digest, "server_url": address, "token": "t"}
    (folder / "launch.json").write_text(json.dumps(launch))
    script = ROOT / "platform/lehr/node/code_fetcher.py"
    variables = {killpoints.VARIABLE: str(armed)} if armed else {}
    command = [sys.executable, "-I", "-S", str(script), str(folder)]
    return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


@pytest.mark.parametrize("point", kill_points.FETCHING)
def test_attempt_after_a_killed_fetch_trains_with_exactly_the_right_code(
    point, entry, served, capsule, tmp_path
):
    digest, address = served
    if "edited" in point:
        code_fetcher.fetch(entry, digest, capsule[1])
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
    expected = {m.name: "VALUE = 1\n" for m in archive.members(capsule[1].path, digests=False)}
    found = {p.relative_to(where).as_posix(): p.read_text() for p in where.rglob("*.py")}
    assert found == expected
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
