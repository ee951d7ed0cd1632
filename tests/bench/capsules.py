"""What capsules cost: a submission with a tree of 50 MB, and the start of an attempt.

The first submission of a tree sends it over HTTP; an unchanged one packs it again, to find that the
server has it. A start with a capsule that the node has checks its files and imports from it; it is
compared with the same start from the installed packages, in turn on the same machine.

    python tests/bench/capsules.py [--pairs 15] [--mb 50]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from lehr.capsules.shelf import Shelf
from lehr.client.capsules import send
from lehr.client.transport import Transport
from lehr.node import code_cache, code_fetcher
from lehr.node.attempt_dir import AttemptDir
from lehr.specs.code import Code
from lehr_testing.api import TOKEN, served

CODE = Code(include=["."])
START = "import lehr_trainer.configs.train, lehr_trainer.runtime.launch"


def tree(folder: Path, size_mb: int) -> None:
    """Write a project: modules of 20 kB, and files of 1 MB for the rest, that do not compress."""
    for n in range(100):
        (folder / f"src/part_{n % 10}").mkdir(parents=True, exist_ok=True)
        text = "".join(f"VALUE_{k} = {k * n}\n" for k in range(1000))
        (folder / f"src/part_{n % 10}/module_{n}.py").write_text(text)
    for n in range(size_mb - 2):
        (folder / f"assets-{n}.bin").write_bytes(os.urandom(1_000_000))


def seconds(transport: Transport, folder: Path) -> tuple[float, str]:
    began = time.perf_counter()
    digest = send(transport, CODE, folder)["digest"]
    return time.perf_counter() - began, digest


def start(node: str, digest: str | None) -> float:
    """Do what the shim does about code, then start a process that imports the trainer."""
    environment = dict(os.environ)
    began = time.perf_counter()
    if digest is not None:
        assert code_cache.ready(node, digest)
        environment["PYTHONPATH"] = code_cache.python_path(node, digest)
    subprocess.run([sys.executable, "-P", "-c", START], env=environment, check=True)
    return time.perf_counter() - began


class FromShelf:
    def __init__(self, shelf: Shelf, digest: str) -> None:
        self._path = shelf.path(digest)

    def download(self, _path, file, _most) -> None:
        file.write(self._path.read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--mb", type=int, default=50)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lehr-bench-") as scratch:
        root = Path(scratch)
        project = root / "project"
        tree(project, given.mb)
        first, unchanged = [], []
        with served(root / "home") as (_, address):
            transport = Transport(address, TOKEN, timeout_s=120)
            for n in range(3):
                (project / "changed.py").write_text(f"N = {n}\n")
                took, digest = seconds(transport, project)
                first.append(took)
                unchanged.append(seconds(transport, project)[0])
        node = root / "node"
        entry = node / "attempts/r-1"
        entry.mkdir(parents=True)
        (entry / "launch.json").write_text("{}")
        began = time.perf_counter()
        server = FromShelf(Shelf(root / "home"), digest)
        code_fetcher.fetch(AttemptDir(str(entry)), digest, server)  # type: ignore[arg-type]
        unpacked = time.perf_counter() - began
        start(str(node), digest), start(str(node), None)  # Not counted: bytecode, the disk's cache.
        pairs = [(start(str(node), digest), start(str(node), None)) for _ in range(given.pairs)]
    ratios = [new / old for old, new in zip(first, unchanged, strict=True)]
    print(
        json.dumps(
            {
                "bench": "capsules",
                "mb": given.mb,
                "first_s": round(statistics.median(first), 3),
                "unchanged_s": round(statistics.median(unchanged), 3),
                "unchanged_to_first": round(statistics.median(ratios), 3),
                "unpack_s": round(unpacked, 3),
                "start_with_s": round(statistics.median(a for a, _ in pairs), 3),
                "start_without_s": round(statistics.median(b for _, b in pairs), 3),
                "more_ms": round(1000 * statistics.median(a - b for a, b in pairs), 1),
                "start_ratio": round(statistics.median(a / b for a, b in pairs), 3),
            }
        )
    )


if __name__ == "__main__":
    main()
