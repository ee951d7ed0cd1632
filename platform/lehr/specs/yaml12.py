"""YAML text to plain data, with the line and column of every value.

Read as YAML 1.2's core schema: ``1e-4`` is a number, ``yes`` and ``on`` are text.
Hostile text is refused early: size, depth, aliases and the number of values are limited,
tags that build objects are refused, a key given twice is an error. Only dicts, lists, str,
int, float, bool and None are constructed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import yaml
from yaml import events as ev

from lehr.errors import SpecError, SpecProblem
from lehr_trainer.configs.fields import join

MAX_CHARACTERS = 200_000
MAX_DEPTH = 32
MAX_VALUES = 100_000
INT64 = 2**63

_NULL = re.compile(r"(?:~|null|Null|NULL|)")
_BOOL = re.compile(r"(?:true|True|TRUE|false|False|FALSE)")
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)")
_NAN = re.compile(r"\.(?:nan|NaN|NAN)")

_TAG = "tag:yaml.org,2002:"
_PLAIN_TAGS = frozenset({"!", *(f"{_TAG}{kind}" for kind in ("str", "seq", "map"))})


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
    return _Reader(text, source).read()


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


class _Reader:
    """A composer of values from PyYAML's events; it limits the depth, since the parser does not."""

    def __init__(self, text: str, source: str | None) -> None:
        self._text = text
        self._document = YamlDocument(data=None, source=source)
        self._anchors: dict[str, Any] = {}
        self._open_anchors: set[str] = set()
        self._count = 0
        self._events: Iterator[ev.Event] = iter(())

    def read(self) -> YamlDocument:
        _check_size(self._text, self._document.source)
        # A byte-order mark is legal, and not part of the first key.
        self._events = iter(yaml.parse(self._text.removeprefix("\ufeff"), Loader=yaml.SafeLoader))
        try:
            self._read_documents()
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            position = SourcePosition(mark.line + 1, mark.column + 1) if mark else None
            what = ", ".join(filter(None, [error.context, error.problem]))
            self._fail(f"this is not YAML: {what}.", position)
        except yaml.reader.ReaderError as error:
            before = self._text[: error.position]
            position = SourcePosition(before.count("\n") + 1, error.position - before.rfind("\n"))
            self._fail(f"a character that YAML does not allow ({error.reason}).", position)
        except (ValueError, IndexError, OverflowError) as error:
            # PyYAML's scanner lets a few of Python's own errors out (e.g. chr() of "\UFFFFFFFF").
            self._fail(f"this is not YAML: {error}.", None)
        return self._document

    def _read_documents(self) -> None:
        documents = 0
        for event in self._events:
            if isinstance(event, ev.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._fail("a second document begins here; a spec is one document.", _at(event))
            elif not isinstance(
                event, ev.StreamStartEvent | ev.StreamEndEvent | ev.DocumentEndEvent
            ):
                self._document.data = self._value(event, "", 0)

    def _value(self, event: ev.Event, path: str, depth: int) -> Any:
        self._count += 1
        if self._count > MAX_VALUES:
            self._fail(f"more than {MAX_VALUES:,} values.", _at(event))
        if depth > MAX_DEPTH:
            self._fail(f"nested more than {MAX_DEPTH} deep.", _at(event))
        self._document.values[path] = _at(event)
        if isinstance(event, ev.AliasEvent):
            return self._alias(event)
        assert isinstance(event, ev.ScalarEvent | ev.CollectionStartEvent)
        if event.anchor:
            self._open_anchors.add(event.anchor)
        before = self._count
        value: Any
        if isinstance(event, ev.ScalarEvent):
            value = self._scalar(event)
        elif isinstance(event, ev.SequenceStartEvent):
            self._check_tag(event)
            value = self._sequence(path, depth)
        else:
            self._check_tag(event)
            value = self._mapping(path, depth)
        if event.anchor:
            self._open_anchors.discard(event.anchor)
            self._anchors[event.anchor] = (value, self._count - before + 1)
        return value

    def _alias(self, event: ev.AliasEvent) -> Any:
        if event.anchor in self._open_anchors:
            self._fail(f"*{event.anchor} is used inside its own definition.", _at(event))
        if event.anchor not in self._anchors:
            self._fail(f"*{event.anchor} is used before &{event.anchor} names it.", _at(event))
        value, size = self._anchors[event.anchor]
        # Counted as if written out: this limit stops "a billion laughs".
        self._count += size
        if self._count > MAX_VALUES:
            self._fail(f"its aliases make more than {MAX_VALUES:,} values.", _at(event))
        return value

    def _sequence(self, path: str, depth: int) -> list[Any]:
        items: list[Any] = []
        for event in self._events:
            if isinstance(event, ev.SequenceEndEvent):
                break
            items.append(self._value(event, join(path, len(items)), depth + 1))
        return items

    def _mapping(self, path: str, depth: int) -> dict[str, Any]:
        items: dict[str, Any] = {}
        for event in self._events:
            if isinstance(event, ev.MappingEndEvent):
                break
            if not isinstance(event, ev.ScalarEvent):
                self._fail("a key must be plain text.", _at(event))
            key = event.value
            key_path = join(path, key)
            if key in items:
                first = self._document.keys[key_path].line
                self._fail(f"{key_path} is given twice (first in line {first}).", _at(event))
            self._document.keys[key_path] = _at(event)
            items[key] = self._value(next(self._events), key_path, depth + 1)
        return items

    def _scalar(self, event: ev.ScalarEvent) -> Any:
        text, tag = event.value, event.tag
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            # JSON writes characters past 16 bits as a pair: "\\ud83d\\ude00".
            try:
                text = text.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError:
                self._fail("half of a surrogate pair is not a character.", _at(event))
        if tag in _PLAIN_TAGS or (tag is None and not event.implicit[0]):
            return text
        if tag is not None and not tag.startswith(_TAG):
            self._check_tag(event)
        value = self._plain(text, event)
        if tag is None:
            return value
        kind = tag.removeprefix(_TAG)
        if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        if kind != {bool: "bool", int: "int", float: "float", type(None): "null"}.get(type(value)):
            self._fail(f"{_cut(text)} is not a YAML {kind}.", _at(event))
        return value

    def _plain(self, text: str, event: ev.ScalarEvent) -> Any:
        if _NULL.fullmatch(text):
            return None
        if _BOOL.fullmatch(text):
            return text[0] in "tT"
        if _INT.fullmatch(text):
            return _integer(text, 10, self._document.source, _at(event))
        if _OCTAL.fullmatch(text) or _HEX.fullmatch(text):
            base = 8 if text[1] == "o" else 16
            return _integer(text, base, self._document.source, _at(event))
        if _FLOAT.fullmatch(text):
            return float(text)
        if _INFINITE.fullmatch(text):
            return float("-inf") if text[0] == "-" else float("inf")
        if _NAN.fullmatch(text):
            return float("nan")
        return text

    def _check_tag(self, event: ev.NodeEvent) -> None:
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in _PLAIN_TAGS:
            shown = tag.replace(_TAG, "!!")
            self._fail(f"the tag {shown} is not allowed: a spec is plain data.", _at(event))

    def _fail(self, message: str, position: SourcePosition | None) -> NoReturn:
        _fail(message, self._document.source, position)


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes text that YAML 1.2 would not read as text, such as "1e-4"."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    numeric = any(
        pattern.fullmatch(text)
        for pattern in (_NULL, _BOOL, _INT, _OCTAL, _HEX, _FLOAT, _INFINITE, _NAN)
    )
    return dumper.represent_scalar(f"{_TAG}str", text, style='"' if numeric else None)


_Dumper.add_representer(str, _represent_text)


def _at(event: ev.Event) -> SourcePosition:
    mark = event.start_mark
    assert mark is not None  # The parser marks every event; only an emitter's have none.
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
