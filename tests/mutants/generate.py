"""Mutants of a source file: operators of mutmut, three of Lehr, and the exclusions."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

UNUSED = {
    mutators.operator_arg_removal,  # Two mutants an argument; ours makes one.
    mutators.operator_match,  # Spans lines; nothing here matches.
}
CHANGED_PART = {
    mutators.operator_swap_op: "operator",
    mutators.operator_assignment: "value",
    mutators.operator_if_exp: "test",
}
DOCUMENTING = {"description", "title", "examples", "help"}
"""Keyword arguments that only people read."""


@dataclass(frozen=True)
class Mutant:
    """One change to one file. Its key is made of texts, so it stays the same when lines shift."""

    file: str
    function: str
    """Qualified name; empty outside of any function."""
    was: str
    becomes: str
    nth: int
    """Tells equal changes within a function apart, from 1."""
    lines: tuple[int, int]
    """First and last line that change."""
    statement: tuple[int, int]
    """First and last line of the statement around; of its head, if it has a body."""
    at_import: bool
    """Whether the code runs when the module is imported."""
    start: int
    end: int
    text: str

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        return self.file, self.function, self.was, self.becomes, self.nth

    @property
    def scope(self) -> str:
        """The function or class of the module that it lies in."""
        return f"{self.file}:{self.function.partition('.')[0]}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.end :]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Mutant:
        return cls(
            **{**values, "lines": tuple(values["lines"]), "statement": tuple(values["statement"])}
        )


def mutants(file: str, source: bytes) -> list[Mutant]:
    """All mutants of a file that compile and differ from it and from each other."""
    wrapper = MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True)
    visitor = _Visitor(wrapper.module)
    wrapper.visit(visitor)
    seen: set[tuple[int, int, str]] = set()
    count: Counter[tuple[str, str, str]] = Counter()
    found = []
    for change in visitor.changes:
        start, end = change["start"], change["end"]
        here = source[start:end].decode()
        change["text"] = text = here[: len(here) - len(here.lstrip())] + change["text"]
        mutated = source[:start] + text.encode() + source[end:]
        if text == here or (start, end, text) in seen or not _compiles(mutated):
            continue
        seen.add((start, end, text))
        lines, was, becomes = _difference(source.decode(), mutated.decode())
        count[change["function"], was, becomes] += 1
        nth = count[change["function"], was, becomes]
        found.append(Mutant(file, was=was, becomes=becomes, nth=nth, lines=lines, **change))
    return found


def _compiles(source: bytes) -> bool:
    with warnings.catch_warnings(action="ignore"):
        try:
            compile(source, "mutant", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
    return True


class _Visitor(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider, ByteSpanPositionProvider)

    def __init__(self, module: cst.Module) -> None:
        super().__init__()
        self.module = module
        self.changes: list[dict[str, Any]] = []
        self.around: list[cst.CSTNode] = []
        self.passed_over: set[int] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        self.around.append(node)
        if id(node) in self.passed_over or _left_out(node):
            return False
        if isinstance(node, cst.ClassDef):
            self.passed_over |= {id(part) for part in (*node.bases, *node.keywords)}
        if isinstance(node, cst.Call) and _is(node.func, "cast"):
            self.passed_over.add(id(node.args[0]))
        if isinstance(node, cst.BaseString) and self._in_table():
            return False
        if isinstance(node, cst.BaseNumber) and self._is_setting():
            return False
        for target, text in _changes(node, self.module):
            self._note(target, text)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        self.around.pop()

    def _scopes(self) -> list[cst.FunctionDef | cst.ClassDef]:
        return [part for part in self.around if isinstance(part, (cst.FunctionDef, cst.ClassDef))]

    def _in_table(self) -> bool:
        """Whether all around is a literal of the module."""
        displays = (cst.List, cst.Tuple, cst.Set, cst.Dict)
        calls = any(isinstance(part, cst.Call) for part in self.around)
        return (
            not self._scopes()
            and not calls
            and any(isinstance(part, displays) for part in self.around)
        )

    def _is_setting(self) -> bool:
        """Whether it is the whole value of a name of a module or class."""
        parents = [part for part in self.around[:-1] if not isinstance(part, cst.UnaryOperation)]
        in_function = any(isinstance(part, cst.FunctionDef) for part in self.around)
        return isinstance(parents[-1], (cst.Assign, cst.AnnAssign)) and not in_function

    def _note(self, node: cst.CSTNode, text: str) -> None:
        span = self.get_metadata(ByteSpanPositionProvider, node)
        statement = next(
            part
            for part in reversed(self.around)
            if isinstance(part, (cst.BaseCompoundStatement, cst.SimpleStatementLine))
        )
        head = self.get_metadata(PositionProvider, statement)
        last = head.end.line
        body = getattr(statement, "body", None)
        if isinstance(body, cst.IndentedBlock):
            last = self.get_metadata(PositionProvider, body.body[0]).start.line - 1
        scopes = self._scopes()
        functions = sum(isinstance(part, cst.FunctionDef) for part in scopes)
        # A default value belongs to its function's head, which runs at import.
        in_head = any(isinstance(part, cst.Param) for part in self.around)
        self.changes.append(
            {
                "function": ".".join(part.name.value for part in scopes),
                "statement": (head.start.line, max(head.start.line, last)),
                "at_import": functions == 0 or (in_head and functions == 1),
                "start": span.start,
                "end": span.start + span.length,
                "text": text,
            }
        )


def _changes(node: cst.CSTNode, module: cst.Module) -> Iterator[tuple[cst.CSTNode, str]]:
    """Return the replacements: pairs of a node and its new text."""
    for kind, operator in mutators.mutation_operators:
        if isinstance(node, kind) and operator not in UNUSED:
            if operator is mutators.operator_assignment and _is_prose(node.value):
                continue
            # Of three spellings of a string, one is enough.
            count = 1 if operator is mutators.operator_string else None
            part = CHANGED_PART.get(operator)
            for new in islice(operator(node), count):
                # The smaller the change, the better it reads.
                now = new if part is None else getattr(new, part)
                text = module.code_for_node(now).strip()
                yield (node if part is None else getattr(node, part)), text
    if isinstance(node, cst.Call) and not (_is(node.func, "len") or _is(node.func, "isinstance")):
        for argument in node.args:
            if argument.star or _left_out(argument) or _is_prose(argument.value):
                continue
            if argument.keyword is None:
                yield argument, "None"
            else:
                yield argument, "**{}"  # As if it were omitted, whatever surrounds it.
    if isinstance(node, (cst.If, cst.While, cst.CompIf)) and isinstance(
        node.test, (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.NamedExpr)
    ):
        yield node.test, f"not ({module.code_for_node(node.test)})"
    if isinstance(node, cst.Return) and node.value and not _is(node.value, "False"):
        yield node, "return None"
    if isinstance(node, cst.Expr):
        yield node, "pass"


def _left_out(node: cst.CSTNode) -> bool:
    """Rules of exclusion; README.md gives the reason for each."""
    if isinstance(node, (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom)):
        return True
    if isinstance(node, cst.If):
        return _is(node.test, "TYPE_CHECKING")
    if isinstance(node, cst.Expr):
        return isinstance(node.value, (cst.BaseString, cst.Ellipsis))
    if isinstance(node, cst.Assign):
        return any(_is(target.target, "__all__") for target in node.targets)
    if isinstance(node, cst.Arg):
        return node.keyword is not None and node.keyword.value in DOCUMENTING
    return _is_prose(node)


def _is_prose(node: cst.CSTNode) -> bool:
    """Whether it is a text with a blank in it: a message for people."""
    if isinstance(node, cst.SimpleString):
        return " " in node.value
    if isinstance(node, cst.FormattedString):
        parts = [part.value for part in node.parts if isinstance(part, cst.FormattedStringText)]
        return any(" " in part for part in parts)
    if isinstance(node, cst.ConcatenatedString):
        return _is_prose(node.left) or _is_prose(node.right)
    return False


def _is(node: cst.CSTNode | None, name: str) -> bool:
    return isinstance(node, cst.Name) and node.value == name


def _difference(old: str, new: str) -> tuple[tuple[int, int], str, str]:
    """The lines that differ: their numbers, and what they were and become."""
    before, after = old.splitlines(), new.splitlines()
    same = range(min(len(before), len(after)))
    first = next((n for n in same if before[n] != after[n]), len(same))
    rest = same[: len(same) - first]
    last = next((n for n in rest if before[-1 - n] != after[-1 - n]), len(rest))
    was, becomes = before[first : len(before) - last], after[first : len(after) - last]
    texts = (" ".join(" ".join(lines).split()) for lines in (was, becomes))
    return (first + 1, first + max(len(was), 1)), *texts
