"""``python -m mutants``: make mutants, judge them in workers, compute the score. See README.md."""

from __future__ import annotations

import argparse
import ast
import compileall
import hashlib
import json
import os
import py_compile
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mutants.generate import Mutant, mutants
from mutants.score import Score, explanations, report

HERE = Path(__file__).parent


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    root = options.root.resolve()
    state = root / ".mutants"
    state.mkdir(exist_ok=True)
    if options.fresh:
        (state / "results.jsonl").unlink(missing_ok=True)
    targets = tomllib.loads(options.targets.read_text())
    changed = changed_lines(root, options.base) if options.base else None
    begun = time.monotonic()
    chosen: list[Mutant] = []
    every: list[Mutant] = []
    known = read_results(state)
    for group in targets["group"]:
        sources = sorted(
            str(path.relative_to(root)) for glob in group["sources"] for path in root.glob(glob)
        )
        wanted = [s for s in sources if not options.files or any(f in s for f in options.files)]
        if changed is not None:
            wanted = [source for source in wanted if source in changed]
        found = [mutant for source in wanted for mutant in generated(root, source, state)]
        every += found
        if changed is not None:
            found = [m for m in found if touched(m, changed[m.file])]
        if options.sample and len(found) > options.sample:
            drawn = random.Random(options.seed).sample(range(len(found)), options.sample)
            found = [found[index] for index in sorted(drawn)]
        chosen += found
        stamps: dict[str, str] = {}
        for source in wanted:
            stamps |= code_digests(source, (root / source).read_text())
        for mutant in found:  # A function in an ``if`` of its module has no stamp of its own.
            stamps.setdefault(mutant.scope, stamps[f"{mutant.file}:"])
        tests = digest([*python_in(root, group["tests"]), *python_in(root, ["tests/lehr_testing"])])
        pending = [m for m in found if not settled(known.get(m.key), stamps[m.scope], tests)]
        print(f"{group['name']}: {len(found)} mutants, {len(pending)} to judge", flush=True)
        if pending:
            everything = digest(python_in(root, targets["roots"]))[:12]
            judge(
                root,
                state,
                roots=targets["roots"],
                pending=pending,
                jobs=options.jobs,
                job={
                    "sources": sources,
                    "tests": group["tests"],
                    "preload": group["preload"],
                    "examples": options.examples,
                    "grace": options.grace,
                    "baseline": str(
                        state / f"baseline-{group['name']}-{everything}-{tests[:12]}.json"
                    ),
                    "results": str(state / "results.jsonl"),
                    "stamps": {scope: [stamp, tests] for scope, stamp in stamps.items()},
                },
            )
    score = Score(chosen, every, read_results(state), explanations(options.survivors))
    seconds = time.monotonic() - begun
    (state / "result.json").write_text(json.dumps(score.as_json() | {"seconds": round(seconds)}))
    print(report(score))
    print(f"{seconds:.0f} s, load {os.getloadavg()[0]:.1f}; all of it in {state / 'result.json'}")
    if changed is not None:
        return 1 if score.unexplained else 0
    return 0 if score.share >= options.aim else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("files", nargs="*", help="only sources whose path contains one of these")
    parser.add_argument("--base", help="only lines changed since this commit")
    parser.add_argument("--sample", type=int, help="at most so many mutants of each group")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--jobs", type=int, default=1, help="processes at one time")
    parser.add_argument("--examples", type=int, default=10, help="most of a property test")
    parser.add_argument(
        "--grace", type=float, default=5, help="processor seconds beside the tests'"
    )
    parser.add_argument("--aim", type=float, default=0.9, help="share killed or explained")
    parser.add_argument("--fresh", action="store_true", help="forget results of earlier runs")
    parser.add_argument("--root", type=Path, default=HERE.parents[1])
    parser.add_argument("--targets", type=Path, default=HERE / "targets.toml")
    parser.add_argument("--survivors", type=Path, default=HERE / "survivors.toml")
    return parser.parse_args()


def judge(
    root: Path,
    state: Path,
    *,
    roots: list[str],
    pending: list[Mutant],
    jobs: int,
    job: dict[str, Any],
) -> None:
    """Share the mutants among workers, each with its own copy of the sources."""
    before = count_lines(state / "results.jsonl")
    with tempfile.TemporaryDirectory(prefix="lehr-mutants-") as folder:
        if not Path(job["baseline"]).exists():
            for old in state.glob(f"{Path(job['baseline']).name.rpartition('-')[0][:-12]}*.json"):
                old.unlink()
            work(root, Path(folder) / "baseline", roots, job | {"mutants": []}).wait()
        shares = [pending[start::jobs] for start in range(jobs)]
        workers = [
            work(
                root,
                Path(folder) / str(number),
                roots,
                job | {"mutants": [mutant.as_json() for mutant in share]},
            )
            for number, share in enumerate(shares)
            if share
        ]
        try:
            while any(worker.poll() is None for worker in workers):
                time.sleep(1)
                done = count_lines(state / "results.jsonl") - before
                if sys.stderr.isatty():
                    print(f"\r{done} of {len(pending)}", end="", file=sys.stderr, flush=True)
        finally:
            for worker in workers:
                worker.kill()  # Its forks end with it.
                worker.wait()
        print(file=sys.stderr)
    if any(worker.returncode for worker in workers):
        raise SystemExit("A worker failed; what it met is above.")


def work(root: Path, copy: Path, roots: list[str], job: dict[str, Any]) -> subprocess.Popen[bytes]:
    ignored = shutil.ignore_patterns("__pycache__")
    for part in roots:
        shutil.copytree(root / part, copy / part, ignore=ignored)
    # Not checked against the sources: mutants come and go faster than a time stamp's second.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(copy, quiet=2, invalidation_mode=mode)
    for mutant in job["mutants"]:
        if not _is_at(mutant, copy):
            raise SystemExit(f"{mutant['file']} has changed since the mutants were made: run again")
    (copy / "job.json").write_text(json.dumps(job | {"copy": str(copy)}))
    paths = [str(copy / part) for part in roots] + [str(HERE.parent)]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "mutants.worker", str(copy / "job.json")]
    return subprocess.Popen(command, cwd=root, env=environment)


def _is_at(mutant: dict[str, Any], copy: Path) -> bool:
    """Whether the copied line is the one that the mutant changes."""
    lines = (copy / mutant["file"]).read_text().splitlines()
    first, last = mutant["lines"]
    return " ".join(" ".join(lines[first - 1 : last]).split()) == mutant["was"]


def generated(root: Path, source: str, state: Path) -> list[Mutant]:
    """A file's mutants; kept until the file or the rules change."""
    kept = state / "generated" / f"{source.replace('/', '.')}.json"
    stamp = digest([root / source, HERE / "generate.py"])
    if kept.exists():
        values = json.loads(kept.read_text())
        if values["stamp"] == stamp:
            return [Mutant.from_json(one) for one in values["mutants"]]
    found = mutants(source, (root / source).read_bytes())
    kept.parent.mkdir(exist_ok=True)
    kept.write_text(json.dumps({"stamp": stamp, "mutants": [m.as_json() for m in found]}))
    return found


def changed_lines(root: Path, base: str) -> dict[str, set[int]]:
    """Of each file the lines that are new or changed since the commit, in the working tree."""
    command = ["git", "diff", "--unified=0", "--no-prefix", base, "--", "*.py"]
    diff = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
    changed: dict[str, set[int]] = {}
    lines: set[int] = set()
    for line in diff.splitlines():
        if line.startswith("+++ "):
            lines = changed.setdefault(line[4:], set())
        elif hunk := re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line):
            first, count = int(hunk[1]), int(hunk[2] or 1)
            lines.update(range(first, first + count))
    return changed


def touched(mutant: Mutant, lines: set[int]) -> bool:
    first, last = mutant.lines
    return any(line in lines for line in range(first, last + 1))


def settled(result: dict[str, Any] | None, source: str, tests: str) -> bool:
    """Whether an earlier result still holds. A survivor's ends when the tests change."""
    if result is None or result["stamp"][0] != source:
        return False
    return result["outcome"] in {"killed", "timeout"} or result["stamp"][1] == tests


def read_results(state: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """By mutant, the last of each."""
    file = state / "results.jsonl"
    if not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
    return {tuple(line["key"]): line for line in lines}


def python_in(root: Path, folders: Iterable[str]) -> list[Path]:
    found = []
    for folder in folders:
        path = root / folder
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [path for path in found if path.exists()]


def digest(files: Iterable[Path]) -> str:
    total = hashlib.blake2b(digest_size=12)
    for file in files:
        total.update(str(file.name).encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


def code_digests(file: str, source: str) -> dict[str, str]:
    """Of each function and class of a file, and of the file, the code alone.

    Comments, docstrings, layout and texts for people may change.
    """
    tree = _WithoutTexts().visit(ast.parse(source))
    parts = {f"{file}:": tree}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            parts[f"{file}:{node.name}"] = node
    return {
        name: hashlib.blake2b(ast.dump(part).encode(), digest_size=12).hexdigest()
        for name, part in parts.items()
    }


class _WithoutTexts(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        self.generic_visit(node)
        text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return ast.Pass() if text else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        prose = isinstance(node.value, str) and " " in node.value
        return ast.Constant("text") if prose else node


def count_lines(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


if __name__ == "__main__":
    sys.exit(main())
