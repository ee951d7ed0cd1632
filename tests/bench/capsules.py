"""What capsules cost: a submission with a tree of 50 MB, and the start of an attempt.

The first submission of a tree sends it over HTTP; an unchanged one packs it again, to find that the
server has it.

A start with a capsule that the node has does four things more than one from the installed packages,
and each is timed alone:

- it compares the capsule's files with their index;
- it looks for each module in two more folders;
- it imports the trainer's packages from the capsule, in a fork of a process that has imported
  everything else; in turn with the same import from the installed packages;
- for a program, it copies the project.

With ``--pairs``, whole starts are compared, too. Importing torch is nearly all of them, so their
difference is small against its own noise. They are done in turn, and every second pair in the other
order. Differences are medians, with the interval that holds them with at least 95 % (order
statistics, no assumption on their shape), of wall time and of processor time.

    python tests/bench/capsules.py [--imports 41] [--pairs 0] [--mb 50] [--modules 100]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from lehr.capsules.capsule_store import CapsuleStore
from lehr.client.capsules import send
from lehr.client.transport import Transport
from lehr.node import code_cache, code_fetcher, project_copy
from lehr.node.attempt_dir import AttemptDir
from lehr.specs.code import Code
from lehr_testing.api import TOKEN, served

CODE = Code(include=["."])
START = "import lehr_trainer.__main__, lehr_trainer.assemble, lehr_trainer.train"
"""All that an attempt imports before its first step, torch too."""
PARTS = f"""
import importlib, importlib.machinery, json, os, sys, time

START = {START!r}
"""
PARTS += """
folders, pairs = json.loads(sys.argv[1]), int(sys.argv[2])

def forked(task):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps(task()).encode())
        os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        answer = file.read()
    os.wait()
    return json.loads(answer)

def imported():
    exec(START)
    return [name for name in sys.modules if not name.startswith(("lehr", "_lehr", "__main__"))]

def took(extra):
    def task():
        sys.path[:0] = extra
        wall, cpu = time.perf_counter(), time.process_time()
        exec(START)
        origin = sys.modules["lehr_trainer"].__file__
        assert not extra or origin.startswith(extra[0]), origin
        return [1000 * (time.perf_counter() - wall), 1000 * (time.process_time() - cpu)]
    return forked(task)

def lookups(names):
    for folder in folders:
        sys.path_importer_cache.pop(folder, None)
    began = time.process_time()
    for name in names:
        importlib.machinery.PathFinder.find_spec(name, folders)
    return 1000 * (time.process_time() - began)

others = forked(imported)
for name in others:
    try:
        importlib.import_module(name)
    except ImportError:
        pass
found = []
for number in range(-1, pairs):  # The first one, which compiles, does not count.
    if number % 2:
        without, with_capsule = took([]), took(folders)
    else:
        with_capsule, without = took(folders), took([])
    found.append([with_capsule, without])
top = sorted({name for name in others if "." not in name} - set(sys.builtin_module_names))
print(json.dumps({"pairs": found[1:], "modules": len(top), "lookups": [lookups(top) for _ in range(15)]}))
"""
"""Times the imports of the trainer's own packages, with a capsule and without."""


def tree(folder: Path, size_mb: int, modules: int) -> None:
    """Write a project: modules of 20 kB, and files of 1 MB for the rest, that do not compress."""
    for n in range(modules):
        (folder / f"src/part_{n % 10}").mkdir(parents=True, exist_ok=True)
        text = "".join(f"VALUE_{k} = {k * n}\n" for k in range(1000))
        (folder / f"src/part_{n % 10}/module_{n}.py").write_text(text)
    for n in range(size_mb - modules // 50):
        (folder / f"assets-{n}.bin").write_bytes(os.urandom(1_000_000))


def seconds(transport: Transport, folder: Path) -> tuple[float, str]:
    began = time.perf_counter()
    digest = send(transport, CODE, folder)["digest"]
    return time.perf_counter() - began, digest


class Took(NamedTuple):
    wall_ms: float
    cpu_ms: float


def spent_ms() -> float:
    """Return the processor time of this process and of its children that have ended."""
    of_both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return 1000 * sum(one.ru_utime + one.ru_stime for one in of_both)


def start(node: str, digest: str | None) -> Took:
    """Do what the shim does about code, then start a process that imports the trainer."""
    environment = dict(os.environ)
    began, before = time.perf_counter(), spent_ms()
    if digest is not None:
        assert code_cache.ready(node, digest)
        environment["PYTHONPATH"] = code_cache.python_path(node, digest)
    subprocess.run([sys.executable, "-P", "-c", START], env=environment, check=True)
    return Took(1000 * (time.perf_counter() - began), spent_ms() - before)


def pair(node: str, digest: str, number: int) -> tuple[Took, Took]:
    """Start with the capsule and without it; every second pair begins with the other one."""
    if number % 2:
        without = start(node, None)
        return start(node, digest), without
    return start(node, digest), start(node, None)


def whole_starts(node: str, digest: str, count: int) -> dict[str, Any]:
    """Return how long whole starts take with the capsule and without."""
    pair(node, digest, 0)  # Not counted: bytecode, the disk's cache.
    pairs = [pair(node, digest, n) for n in range(count)]
    return {
        "start_with_ms": round(statistics.median(a.wall_ms for a, _ in pairs), 1),
        "start_without_ms": round(statistics.median(b.wall_ms for _, b in pairs), 1),
        "more_wall_ms": difference([(a.wall_ms, b.wall_ms) for a, b in pairs]),
        "more_cpu_ms": difference([(a.cpu_ms, b.cpu_ms) for a, b in pairs]),
    }


def parts(node: str, digest: str, pairs: int) -> dict[str, Any]:
    """Return what a start with a capsule takes more, by parts that do not import torch."""
    folders = json.dumps(code_cache.python_path(node, digest).split(os.pathsep))
    command = [sys.executable, "-P", "-c", PARTS, folders, str(pairs)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    wall, cpu = ([(a[k], b[k]) for a, b in found["pairs"]] for k in (0, 1))
    return {
        "modules": found["modules"],
        "lookups_cpu_ms": round(statistics.median(found["lookups"]), 2),
        "imports_without_cpu_ms": round(statistics.median(b for _, b in cpu), 1),
        "imports_more_wall_ms": difference(wall),
        "imports_more_cpu_ms": difference(cpu),
    }


def copying(project: str, scratch: Path) -> Took:
    """Do what a program's supervisor does before the program starts: copy its project."""
    folder = scratch / "work"
    folder.mkdir(parents=True)
    began, before = time.perf_counter(), spent_ms()
    project_copy.make(project, str(folder), str(scratch / "index"))
    took = Took(1000 * (time.perf_counter() - began), spent_ms() - before)
    shutil.rmtree(scratch)
    return took


def difference(pairs: list[tuple[float, float]]) -> dict[str, object]:
    """Return the median of the differences, its 95 % interval and their quartiles."""
    found = sorted(a - b for a, b in pairs)
    count = len(found)
    # The k-th smallest and the k-th largest hold the median unless k - 1 or fewer fair coins of
    # all show heads, or tails.
    below, k = 1 / 2**count, 0
    while below <= 0.025 and k < count // 2:
        k += 1
        below += math.comb(count, k) / 2**count
    return {
        "median": round(statistics.median(found), 1),
        "median_95": [round(found[max(0, k - 1)], 1), round(found[min(count - 1, count - k)], 1)],
        "quartiles": [round(q, 1) for q in statistics.quantiles(found)[::2]],
    }


class FromServer:
    def __init__(self, capsules: CapsuleStore, digest: str) -> None:
        self._path = capsules.path(digest)

    def download(self, _path: str, file: IO[bytes], _most: int) -> None:
        file.write(self._path.read_bytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--imports", type=int, default=41)
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--mb", type=int, default=50)
    parser.add_argument("--modules", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lehr-bench-") as scratch:
        root = Path(scratch)
        project = root / "project"
        tree(project, given.mb, given.modules)
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
        server = FromServer(CapsuleStore(root / "home"), digest)
        code_fetcher.fetch(AttemptDir(str(entry)), digest, server)  # type: ignore[arg-type]
        unpacked = time.perf_counter() - began
        checks = []
        for _ in range(15):
            before = spent_ms()
            assert code_cache.ready(str(node), digest)
            checks.append(spent_ms() - before)
        unpacked_project = f"{code_cache.folder(str(node), digest)}/{code_cache.PROJECT}"
        copies = [copying(unpacked_project, root / "copy") for _ in range(15)]
        of_parts = parts(str(node), digest, given.imports)
        whole = whole_starts(str(node), digest, given.pairs) if given.pairs > 1 else {}
        files = len(code_cache.state_of(code_cache.folder(str(node), digest)))
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
                "files": files,
                "check_cpu_ms": round(statistics.median(checks), 2),
                "copy_ms": round(statistics.median(one.wall_ms for one in copies), 1),
                "copy_cpu_ms": round(statistics.median(one.cpu_ms for one in copies), 1),
                **of_parts,
                **whole,
                "load": round(os.getloadavg()[0], 1),
            }
        )
    )


if __name__ == "__main__":
    main()
