"""Propose patterns of ``trainer.prints`` for the lines of a log, or of a program's source."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from lehr.analysis.curve_files.names import STEPS, metric_of
from lehr.specs.prints import NUMBER, STEP, PrintedLines, plain

_NUMBER = re.compile(rf"(?<![\w.])(?:{NUMBER})")
_LABEL = re.compile(r"""([A-Za-z][\w/.-]*(?: [A-Za-z][\w/.-]*)?)["']?[\s:=]*[\[(]?\s*$""")
_HELD_OUT = re.compile(r"\b(val|valid|validation|eval|test)\b", re.IGNORECASE)
_SCORES = ("loss", "accuracy", "acc", "perplexity", "ppl", "error")
_FORMATTED = re.compile(r"%[-+ 0#]*[\d.*]*[a-zA-Z]|\{[^{}]*\}")
_PRINTS = re.compile(r"(print|log|info|write)\w*$", re.IGNORECASE)
_MOST = 5


def source_lines(source: str) -> Iterator[str]:
    """Yield texts that Python source may print, with 1 in place of each value. Nothing is run."""
    try:
        waiting: list[ast.AST] = [ast.parse(source)]
    except (SyntaxError, ValueError, RecursionError):
        return
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Call) and _PRINTS.search(ast.unparse(node.func)):
            yield from " ".join(map(_shown, node.args)).splitlines()
        elif isinstance(node, ast.JoinedStr | ast.BinOp | ast.Constant):
            yield from _shown(node).splitlines()
        else:
            waiting += reversed([*ast.iter_child_nodes(node)])


def _shown(node: ast.AST) -> str:
    match node:
        case ast.Constant(value=str(text)):
            return _FORMATTED.sub("1", text).replace("%%", "%")
        case ast.JoinedStr(values=parts):
            # Its own braces and percents are text already.
            return "".join(str(p.value) if isinstance(p, ast.Constant) else "1" for p in parts)
        case ast.BinOp(op=ast.Mod(), left=left):
            return _shown(left)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return _shown(left) + _shown(right)
        case ast.Call(func=ast.Attribute(attr="format", value=text)):
            return _shown(text)
    return "1"


def unprinted(prints: Sequence[str], sources: Sequence[str]) -> list[str]:
    """Return the patterns that match no text of Python sources; none if there is no source."""
    lines = PrintedLines(prints)
    for source in sources:
        for line in source_lines(source):
            lines.row(line)
    return lines.unmatched if sources else []


def propose(lines: Iterable[str]) -> list[str]:
    """Return patterns of the lines with metrics, the most frequent first, of validation last.

    If some of the lines have a usual metric, such as a loss, only those count.
    """
    counts: Counter[str] = Counter()
    usual = set()
    for line in lines:
        text, names = _pattern(plain(line).strip())
        metrics = names - {STEP, "epoch"}
        if metrics and (STEP in names or any(map(_is_usual, metrics))):
            counts[text] += 1
            if any(map(_is_usual, metrics)):
                usual.add(text)
    texts = [text for text, _ in counts.most_common() if not usual or text in usual]
    if any("{loss}" in text for text in texts):
        # The loss of each step is the curve, not the mean that an evaluation prints beside its own.
        texts = [
            text.replace("{train/loss}", "{eval/train_loss}") if "{val/" in text else text
            for text in texts
        ]
    return sorted(texts, key=lambda text: "{val/" in text and "{step}" not in text)[:_MOST]


def _is_usual(name: str) -> bool:
    return "loss" in name or metric_of(name) is not None


def _pattern(line: str) -> tuple[str, set[str]]:
    """Return a line with fields for its numbers, from its first name on, and their names."""
    text, done = "", ""
    names: set[str] = set()
    end = 0
    for number in _NUMBER.finditer(line):
        between = line[end : number.start()]
        label = _LABEL.search(re.sub(r"^[^\s,;|]+", "", between) if end else between)
        name = _name(label[1], line[: number.start()]) if label else ""
        if not name and re.search(r"\|\s*$", between) and line[number.end() :][:1] == "/":
            name = STEP  # Of a progress bar: | 10/100 [
        name = "" if name in names else name
        if name and not names:
            between = label[0] if label else ""
        if name or names:
            text += between.replace("{", "{{").replace("}", "}}") + f"{{{name}}}"
        if name:
            names.add(name)
            unit = re.match(r"[A-Za-z/]*[A-Za-z%]|", line[number.end() :])
            done = text + (unit[0] if unit else "")
        end = number.end()
    return re.sub(r"\s+", " ", done), names


def _name(label: str, before: str) -> str:
    words = label.lower().split()
    if words[-1] in STEPS:
        return STEP
    known = metric_of("_".join(words)) if words[1:] else None
    if known is not None:
        return known[0]
    if words[-1] in _SCORES and _HELD_OUT.search(before):
        return f"val/{words[-1]}"
    return words[-1].strip("./-")
