"""``make mutants``: change one expression of the product, run the tests that reach it, print the score.

    python tests/mutants.py [--sample 50] [--seed 1] [--base main] [control/queue ...]

A mutant *survives* if all tests pass that reach its line: a test is missing, or the change has no effect.
The tests of a source are the file of its name and those beside it that import it; without any, all unit
tests that import it. They run once on unchanged code to record which test reaches which line, then once
for each mutant, up to the first failure, by plain pytest. Mutants are planted in a copy of the sources,
which comes first on PYTHONPATH. With ``--base`` only lines that differ from a commit are changed; a survivor is an error.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import coverage

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "platform/lehr": "tests/platform",
    "trainer/lehr_trainer": "tests/trainer",
    "api/lehr_api": "tests/api",
}
DOCUMENTING = {"description", "title", "examples", "help"}
"""Keyword arguments that only people read."""
SWAPS: dict[type[ast.AST], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.And: "or", ast.Or: "and",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "/", ast.Mod: "*",
}  # fmt: skip
UNIT = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "not nightly and not gpu"]


@dataclass(frozen=True)
class Mutant:
    file: str
    line: int
    statement: tuple[int, int]
    """First and last line of the statement around it; of its head, if it has a body."""
    at_import: bool
    """Whether the code runs when the module is imported."""
    was: str
    becomes: str
    start: int
    end: int

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.becomes.encode() + source[self.end :]


class Mutants(ast.NodeVisitor):
    """All mutants of a file.

    Not changed are texts for people, annotations, decorators, imports, and a number that is the whole
    value of a setting: a test could only repeat those.
    """

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.statement: ast.stmt | None = None
        self.in_function = False
        self.mutants: list[Mutant] = []
        self.visit(ast.parse(source))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.source[start:end].decode()

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr):
            return
        outer = self.statement, self.in_function
        if isinstance(node, ast.stmt):
            self.statement = node
        for becomes in self.changes(node):
            self.note(node, becomes)
        for name, value in ast.iter_fields(node):
            if name in {"annotation", "returns", "decorator_list", "bases"}:
                continue
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.in_function = outer[1] or name == "body"
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not self.left_out(node, child):
                    self.visit(child)
        self.statement, self.in_function = outer

    def left_out(self, node: ast.AST, child: ast.AST) -> bool:
        if isinstance(child, ast.keyword):
            return child.arg in DOCUMENTING
        if isinstance(child, ast.Constant):
            value = child.value
            prose = isinstance(value, str) and (" " in value or not value)
            number = isinstance(value, int | float) and not isinstance(value, bool)
            setting = isinstance(node, ast.Assign | ast.AnnAssign) and not self.in_function
            return prose or isinstance(node, ast.Expr) or (number and setting)
        names = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        return names and node.targets[0].id == "__all__"

    def changes(self, node: ast.AST) -> Iterator[str]:
        """Yield the texts that may replace this node."""
        match node:
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                yield f"{self.text(left)} {SWAPS[type(op)]} {self.text(right)}"
            case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS:
                yield f"({self.text(left)}) {SWAPS[type(op)]} ({self.text(right)})"
            case ast.BoolOp(op=op, values=values):
                yield f" {SWAPS[type(op)]} ".join(f"({self.text(value)})" for value in values)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield f"({self.text(operand)})"
            case ast.Constant(value=bool() as value):
                yield str(not value)
            case ast.Constant(value=int() | float() as value):
                yield str(value + 1)
            case ast.Constant(value=str() as value) if value.isprintable():
                yield repr(f"XX{value}XX")
            case ast.Return(value=ast.expr() as value) if self.text(value) not in {"None", "False"}:
                yield "return None"
            case ast.Expr(value=ast.Call() | ast.Await()):
                yield "pass"

    def note(self, node: ast.expr | ast.stmt, becomes: str) -> None:
        start, end = self.span(node)
        body = getattr(self.statement, "body", None)
        first, last = self.statement.lineno, self.statement.end_lineno or node.lineno
        if body:
            last = max(first, body[0].lineno - 1)
        if isinstance(node, ast.expr):
            becomes = f"({becomes})"
        was = " ".join(self.source[start:end].decode().split())
        at_import = not self.in_function
        self.mutants.append(
            Mutant(self.file, node.lineno, (first, last), at_import, was, becomes, start, end)
        )


def compiles(mutant: Mutant) -> bool:
    try:
        ast.parse(mutant.apply((ROOT / mutant.file).read_bytes()))
    except SyntaxError:
        return False
    return True


@cache
def unit_tests() -> dict[Path, str]:
    files = [path for folder in PACKAGES.values() for path in (ROOT / folder).rglob("test_*.py")]
    return {path: path.read_text() for path in files if "process" not in path.parts}


def tests_of(source: str) -> list[str]:
    """Return the tests of the source's name and those beside them that import it, or else all."""
    root, tests = next(pair for pair in PACKAGES.items() if source.startswith(f"{pair[0]}/"))
    within = Path(source).relative_to(root)
    own = ROOT / tests / within.parent / f"test_{within.stem.lstrip('_')}.py"
    package = ".".join([Path(root).name, *within.parent.parts])
    imports = (f"{package}.{within.stem} ", f"from {package} import {within.stem}\n")
    files = [path for path, text in unit_tests().items() if any(map(text.__contains__, imports))]
    near = {path for path in files if path.parent == own.parent} | ({own} & unit_tests().keys())
    files = near or set(files) or {path for path in unit_tests() if path.parent == own.parent}
    return sorted(str(path.relative_to(ROOT)) for path in files)


def pytest(arguments: list[str], copy: Path, within_s: float, **environment: str) -> int | None:
    """Run pytest on the sources of the copy; return its exit status, None after the time limit."""
    roots = [str(copy / Path(root).parent) for root in PACKAGES]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(roots), **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        return process.wait(timeout=within_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Judge:
    """The tests of one source, and which of them reach which line."""

    def __init__(self, source: str, copy: Path) -> None:
        self.file, self.copy, self.tests = copy / source, copy, tests_of(source)
        self.original = self.file.read_bytes()
        began = time.monotonic()
        data = copy / "coverage"
        data.unlink(missing_ok=True)
        options = [f"--cov={self.file.parent}", "--cov-context=test", "--cov-report="]
        self.code = pytest([*UNIT, *options, *self.tests], copy, 3600, COVERAGE_FILE=str(data))
        self.within_s = 60 + 5 * (time.monotonic() - began)
        recorded = coverage.CoverageData(basename=str(data))
        recorded.read()
        self.reached = recorded.contexts_by_lineno(str(self.file))

    def outcome(self, mutant: Mutant) -> str:
        if self.code != 0:
            return f"not judged ({self.code} on unchanged code)"
        first, last = mutant.statement
        contexts = {c for line in range(first, last + 1) for c in self.reached.get(line, ())}
        reaching = sorted({context.partition("|")[0] for context in contexts} - {""})
        if mutant.at_import or "" in contexts:
            reaching = self.tests  # Nothing records which test uses a value that a module has.
        if not reaching:
            return "unreached"
        self.file.write_bytes(mutant.apply(self.original))
        try:
            code = pytest([*UNIT, *reaching], self.copy, self.within_s, PYTHONDONTWRITEBYTECODE="1")
        finally:
            self.file.write_bytes(self.original)
        return "survived" if code == 0 else "killed"


def changed_lines(base: str) -> dict[str, set[int]]:
    """Return, for each file, the lines that are new or changed since the commit."""
    command = ["git", "diff", "--unified=0", "--no-prefix", base, "--", "*.py"]
    changed: dict[str, set[int]] = defaultdict(set)
    file = ""
    for line in subprocess.check_output(command, cwd=ROOT, text=True).splitlines():
        if line.startswith("+++ "):
            file = line[4:]
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            changed[file] |= set(range(int(hunk[1]), int(hunk[1]) + int(hunk[2] or 1)))
    return changed


def draw(options: argparse.Namespace) -> list[Mutant]:
    changed = changed_lines(options.base) if options.base else None
    mutants: list[Mutant] = []
    for root in PACKAGES:
        for path in sorted((ROOT / root).rglob("*.py")):
            file = str(path.relative_to(ROOT))
            if "versions" in path.parts or not any(part in file for part in options.files or [""]):
                continue
            if changed is None or file in changed:
                mutants += Mutants(file, path.read_bytes()).mutants
    if changed is not None:
        mutants = [m for m in mutants if changed[m.file] & set(range(m.line, m.statement[1] + 1))]
    random.Random(options.seed).shuffle(mutants)
    drawn = islice(filter(compiles, mutants), options.sample)
    return sorted(drawn, key=lambda mutant: (mutant.file, mutant.line))


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("files", nargs="*", help="only sources whose path contains one of these")
    parser.add_argument("--base", help="only lines changed since this commit")
    parser.add_argument("--sample", type=int, help="at most so many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    options = parser.parse_args()
    mutants = draw(options)
    outcomes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="lehr-mutants-") as folder:
        copy = Path(folder)
        for root in PACKAGES:
            shutil.copytree(ROOT / Path(root).parent, copy / Path(root).parent)
        judge: Judge | None = None
        for number, mutant in enumerate(mutants, start=1):
            if judge is None or judge.file != copy / mutant.file:
                judge = Judge(mutant.file, copy)
            outcomes.append(judge.outcome(mutant))
            place = f"{mutant.file}:{mutant.line}: {mutant.was} -> {mutant.becomes}"
            print(f"{number}/{len(mutants)} {outcomes[-1]}: {place}", flush=True)
    killed = outcomes.count("killed")
    judged = sum(not outcome.startswith("not judged") for outcome in outcomes)
    print(f"{killed} of {judged} killed: {killed / max(1, judged):.1%}")
    return int(options.base is not None and killed < len(outcomes))


if __name__ == "__main__":
    sys.exit(main())
