"""YAML text to plain data, with the line and column of every value.

Read as YAML 1.2's core schema: ``1e-4`` is a number, ``yes`` and ``on`` are text.
Hostile text is refused early: size, depth, aliases and the number of values are limited,
tags that build objects are refused, a key given twice is an error. Only dicts, lists, str,
int, float, bool and None are constructed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml

from lehr.errors import SpecError, SpecProblem
from lehr_trainer.configs.fields import join

MAX_CHARACTERS = 200_000
MAX_DEPTH = 32
MAX_VALUES = 100_000
INT64 = 2**63

_TAG = "tag:yaml.org,2002:"
_SCALARS = {
    "null": re.compile(r"(?:~|null|Null|NULL|)\Z"),
    "bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"),
    "int": re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"),
    "float": re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
    ),
}
"""The plain texts of each type in YAML 1.2's core schema; the rest is text."""


@dataclass(frozen=True)
class SourcePosition:
    line: int
    column: int


@dataclass
class YamlDocument:
    """Data, and the position of each of its values by dotted path."""

    data: Any
    source: str | None = None
    values: dict[str, SourcePosition] = field(default_factory=dict)
    keys: dict[str, SourcePosition] = field(default_factory=dict)

    def problem(
        self, path: str, message: str, hint: str | None = None, *, at_key: bool = False
    ) -> SpecProblem:
        """Make a problem at ``path``, with its line or that of the nearest enclosing value."""
        position = self.position(path, at_key=at_key)
        return SpecProblem(
            path=path,
            message=message,
            hint=hint,
            line=position.line if position else None,
            column=position.column if position else None,
            source=self.source,
        )

    def position(self, path: str, *, at_key: bool = False) -> SourcePosition | None:
        if path in self.values:
            value, key = self.values[path], self.keys.get(path)
            # A block begins under its key; a problem of the whole block is shown at the key.
            return key if key and (at_key or key.line != value.line) else value
        while path:
            path = path.rpartition(".")[0]
            found = self.keys.get(path) or self.values.get(path)
            if found:
                return found
        return None


def read_yaml(text: str, source: str | None = None) -> YamlDocument:
    """Read one YAML document.

    Raises:
        SpecError: it does not parse, or passes a limit; with line and column.
    """
    _check_size(text, source)
    try:
        # A byte-order mark is legal, and not part of the first key.
        root = yaml.compose(text.removeprefix("\ufeff"), Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(filter(None, [error.context, error.problem]))
        if what.startswith("expected '<document start>'"):
            what = "it is one document, and another begins here, as in a file of JSON lines"
        _fail(f"this is not YAML: {what}.", source, _position(mark) if mark else None)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        position = SourcePosition(before.count("\n") + 1, error.position - before.rfind("\n"))
        _fail(f"a character that YAML does not allow ({error.reason}).", source, position)
    except RecursionError:
        _fail(f"it is nested more than {MAX_DEPTH} deep.", source)
    except (ValueError, IndexError, OverflowError) as error:
        # PyYAML's scanner lets a few of Python's own errors out (e.g. chr() of "\UFFFFFFFF").
        _fail(f"this is not YAML: {error}.", source)
    reader = _Reader(source)
    if root is not None:
        reader.document.data = reader.value(root, "", 0)
    return reader.document


def read_json(text: str, source: str | None = None) -> YamlDocument:
    """Read one JSON document; strings and errors follow JSON's own rules."""
    _check_size(text, source)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                _fail(f"{key} is given twice in one object.", source)
            found[key] = value
        return found

    def constant(name: str) -> NoReturn:
        _fail(f"{name} is not a JSON number.", source)

    def integer(digits: str) -> int:
        return _integer(digits, 10, source, None)

    try:
        data = json.loads(
            text, object_pairs_hook=unique, parse_constant=constant, parse_int=integer
        )
    except json.JSONDecodeError as error:
        position = SourcePosition(error.lineno, error.colno)
        _fail(f"this is not JSON: {error.msg}.", source, position)
    except RecursionError:
        _fail(f"it is nested more than {MAX_DEPTH} deep.", source)
    # Apart from tabs, JSON is YAML. Its tabs occur only between values: the columns stay.
    placed = read_yaml(text.replace("\t", " "), source)
    placed.data = data
    return placed


def parse_value(text: str) -> Any:
    """Parse one YAML value of a command line: ``1e-4``, ``[1, 2]``, ``{kind: stdlib}``, ``abc``.

    Raises:
        SpecError: it is not one YAML value.
    """
    return read_yaml(text).data


def dump_yaml(data: Any) -> str:
    """Write YAML that ``read_yaml`` reads back to the same data."""
    return yaml.dump(
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
    )


class _Loader(yaml.SafeLoader):
    """A loader whose plain scalars have the types of YAML 1.2."""

    yaml_implicit_resolvers = {}


for _name, _pattern in _SCALARS.items():
    _Loader.add_implicit_resolver(f"{_TAG}{_name}", _pattern, [None])


class _Reader:
    """Makes plain data of PyYAML's nodes. An alias counts as if it were written out: the limit on
    values stops "a billion laughs".
    """

    def __init__(self, source: str | None) -> None:
        self.document = YamlDocument(data=None, source=source)
        self._count = 0

    def value(self, node: yaml.Node, path: str, depth: int) -> Any:
        self._count += 1
        if self._count > MAX_VALUES:
            self._fail(f"more than {MAX_VALUES:,} values, with those of aliases.", node)
        if depth > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} deep.", node)
        self.document.values[path] = _position(node.start_mark)
        kind = node.tag.removeprefix(_TAG)
        if kind not in {"str", "seq", "map", *_SCALARS}:
            shown = node.tag.replace(_TAG, "!!")
            self._fail(f"the tag {shown} is not allowed: a spec is plain data.", node)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, kind)
        if isinstance(node, yaml.SequenceNode):
            return [
                self.value(item, join(path, index), depth + 1)
                for index, item in enumerate(node.value)
            ]
        items: dict[str, Any] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._fail("a key must be plain text.", key)
            key_path = join(path, key.value)
            if key.value in items:
                first = self.document.keys[key_path].line
                self._fail(f"{key_path} is given twice (first in line {first}).", key)
            self.document.keys[key_path] = _position(key.start_mark)
            items[key.value] = self.value(item, key_path, depth + 1)
        return items

    def _scalar(self, node: yaml.ScalarNode, kind: str) -> Any:
        text = node.value
        if kind == "str":
            if any("\ud800" <= letter <= "\udfff" for letter in text):
                # JSON writes characters past 16 bits as a pair: "\\ud83d\\ude00".
                try:
                    return text.encode("utf-16", "surrogatepass").decode("utf-16")
                except UnicodeDecodeError:
                    self._fail("half of a surrogate pair is not a character.", node)
            return text
        if kind not in _SCALARS or not _SCALARS[kind].match(text):
            self._fail(f"{_cut(text)} is not a YAML {kind}.", node)
        if kind == "null":
            return None
        if kind == "bool":
            return text[0] in "tT"
        if kind == "float":
            return float(re.sub(r"\.(?=[a-zA-Z])", "", text))  # .inf and .nan
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return _integer(text, base, self.document.source, _position(node.start_mark))

    def _fail(self, message: str, node: yaml.Node) -> NoReturn:
        _fail(message, self.document.source, _position(node.start_mark))


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes text that YAML 1.2 would not read as text, such as "1e-4"."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    numeric = any(pattern.match(text) for pattern in _SCALARS.values())
    return dumper.represent_scalar(f"{_TAG}str", text, style='"' if numeric else None)


_Dumper.add_representer(str, _represent_text)


def _position(mark: yaml.Mark) -> SourcePosition:
    return SourcePosition(mark.line + 1, mark.column + 1)


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _integer(digits: str, base: int, source: str | None, position: SourcePosition | None) -> int:
    # 64 bits are enough for every real count; Python refuses over 4,300 digits anyway.
    value = int(digits, base) if len(digits) < 100 else INT64
    if not -INT64 <= value < INT64:
        _fail(f"{_cut(digits)} does not fit in 64 bits.", source, position)
    return value


def _check_size(text: str, source: str | None) -> None:
    if len(text) > MAX_CHARACTERS:
        _fail(f"it has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read.", source)


def _fail(message: str, source: str | None, position: SourcePosition | None = None) -> NoReturn:
    line, column = (position.line, position.column) if position else (None, None)
    raise SpecError(
        [SpecProblem(path="", message=message, line=line, column=column, source=source)]
    )
