"""Bytecode of a project: made once on a node, and never older than its source."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lehr.code import code_cache, project_copy


def imported(folder: Path) -> tuple[str, str]:
    """Import the module of a folder; return its value and what Python reports about its bytecode."""
    done = subprocess.run(
        [sys.executable, "-v", "-c", "import lib.rate; print(lib.rate.VALUE)"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    about = [line for line in done.stderr.splitlines() if "rate" in line and line.startswith("#")]
    return done.stdout.strip(), "\n".join(about)


def project_of(folder: Path) -> Path:
    project = folder / "project"
    (project / "lib").mkdir(parents=True)
    (project / "lib/rate.py").write_text("VALUE = 1\n")
    return project


def test_copy_imports_the_bytecode_of_the_node_and_an_edit_of_it_is_seen(tmp_path: Path) -> None:
    project, work = project_of(tmp_path), tmp_path / "work"
    (project / "lib/broken.py").write_text("this is no Python\n")
    (project / "lib/bytes.py").write_bytes(b"\xff\xfe\0")
    (project / "lib/nested.py").write_text("(" * 100_000)
    code_cache.compile_modules(str(project))
    index = tmp_path / "index"
    work.mkdir()
    project_copy.make(str(project), str(work), str(index))
    value, about = imported(work)
    assert value == "1"
    assert f"matches {work}/lib/rate.py" in about
    assert "wrote" not in about

    module = work / "lib/rate.py"
    before = module.stat()
    module.write_text("VALUE = 2\n")
    os.utime(module, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert imported(work)[0] == "2"
    assert imported(project)[0] == "1"

    module.write_text("VALUE = 1\n")
    os.utime(module, ns=(before.st_atime_ns, before.st_mtime_ns))
    project_copy.remove_unchanged(str(work), str(index))
    assert not work.exists()
