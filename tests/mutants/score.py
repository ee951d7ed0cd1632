"""Compute the score: outcomes of mutants, explained survivors."""

from __future__ import annotations

import json
import tomllib
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from mutants.generate import Mutant

KILLED = {"killed", "timeout"}


def name_of(mutant: Mutant) -> str:
    """As survivors.toml names a mutant under its file."""
    nth = f" #{mutant.nth}" if mutant.nth > 1 else ""
    return f"{mutant.function}: {mutant.was} -> {mutant.becomes}{nth}"


def explanations(file: Path) -> dict[str, dict[str, str]]:
    """File -> mutant -> why it may survive."""
    return tomllib.loads(file.read_text()) if file.exists() else {}


class Score:
    """Outcomes of the chosen mutants, which may be a sample of every one there is."""

    def __init__(
        self,
        chosen: list[Mutant],
        every: list[Mutant],
        results: dict[tuple[Any, ...], dict[str, Any]],
        explained: dict[str, dict[str, str]],
    ) -> None:
        self.by_file: dict[str, Counter[str]] = defaultdict(Counter)
        self.unexplained: list[tuple[Mutant, str]] = []
        self.cpu_s = 0.0
        named = {(mutant.file, name_of(mutant)) for mutant in every}
        for mutant in chosen:
            result = results.get(mutant.key)
            if result is None:
                continue
            self.cpu_s += result["seconds"]
            outcome = result["outcome"]
            if outcome not in KILLED:
                if name_of(mutant) in explained.get(mutant.file, {}):
                    outcome = "explained"
                else:
                    self.unexplained.append((mutant, outcome))
            self.by_file[mutant.file][outcome] += 1
        self.stale = [
            (file, name)
            for file, names in explained.items()
            for name in names
            if file in self.by_file and (file, name) not in named
        ]
        """Explained, but no mutant is called so any more."""

    @property
    def total(self) -> Counter[str]:
        return sum(self.by_file.values(), Counter())

    @property
    def share(self) -> float:
        """Killed or explained, of all."""
        return _share(self.total)

    def as_json(self) -> dict[str, Any]:
        return {
            "share": round(self.share, 4),
            "total": dict(self.total),
            "cpu_s": round(self.cpu_s),
            "files": {file: dict(count) for file, count in self.by_file.items()},
            "survivors": [
                {"file": m.file, "line": m.lines[0], "name": name_of(m), "outcome": outcome}
                for m, outcome in self.unexplained
            ],
        }


def report(score: Score) -> str:
    """A table by file, and the survivors that nothing explains, as survivors.toml has them."""
    head = f"{'file':44} {'mutants':>7} {'killed':>7} {'explained':>9} {'survived':>8} {'share':>7}"
    lines = [head, *(_row(file, count) for file, count in score.by_file.items())]
    lines.append(_row("all", score.total))
    file = ""
    for mutant, outcome in score.unexplained:
        if mutant.file != file:
            file = mutant.file
            lines += ["", f'["{file}"]']
        lines += [
            f"# line {mutant.lines[0]}, {outcome}",
            f'{json.dumps(name_of(mutant), ensure_ascii=False)} = "?"',
        ]
    lines += [f"No such mutant any more: {name} ({file})" for file, name in score.stale]
    return "\n".join(lines)


def _row(file: str, count: Counter[str]) -> str:
    killed = sum(count[outcome] for outcome in KILLED)
    survived = count["survived"] + count["unreached"]
    name = file.removeprefix("platform/lehr/").removeprefix("trainer/lehr_trainer/")
    return (
        f"{name:44} {count.total():7} {killed:7} {count['explained']:9} {survived:8}"
        f" {_share(count):7.1%}"
    )


def _share(count: Counter[str]) -> float:
    good = sum(count[outcome] for outcome in (*KILLED, "explained"))
    return good / count.total() if count.total() else 1.0
