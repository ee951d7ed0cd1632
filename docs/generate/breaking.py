"""Find changes between two OpenAPI descriptions that would break a client of the first.

It covers only the subset of JSON Schema that FastAPI writes. Additions (paths, optional
parameters and fields, answers' fields) are not breaking changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_METHODS = ("get", "put", "post", "delete", "patch", "head")
Schema = dict[str, Any]


def changes(old: Schema, new: Schema) -> list[str]:
    """Describe each breaking change, its place first; empty if no client of ``old`` breaks."""
    return list(dict.fromkeys(_Comparison(old, new).run()))


class _Comparison:
    def __init__(self, old: Schema, new: Schema) -> None:
        self.old, self.new = old, new
        self._seen: set[tuple[str, str, bool]] = set()

    def run(self) -> Iterator[str]:
        for path, methods in self.old["paths"].items():
            there = self.new["paths"].get(path)
            if there is None:
                yield f"{path}: the path is gone"
                continue
            for method, operation in methods.items():
                if method not in _METHODS:
                    continue
                where = f"{method.upper()} {path}"
                if method not in there:
                    yield f"{where}: the method is gone"
                else:
                    yield from self._operation(where, operation, there[method])

    def _operation(self, where: str, old: Schema, new: Schema) -> Iterator[str]:
        yield from self._parameters(where, old, new)
        yield from self._body(where, old.get("requestBody"), new.get("requestBody"))
        for code, answer in old.get("responses", {}).items():
            if not code.startswith("2"):
                continue
            if code not in new.get("responses", {}):
                yield f"{where}: it no longer answers {code}"
                continue
            for media, content in answer.get("content", {}).items():
                there = new["responses"][code].get("content", {})
                if media not in there:
                    yield f"{where}: it no longer answers {media}"
                elif "schema" in content:
                    yield from self._schema(
                        f"{where}: answer",
                        content["schema"],
                        there[media].get("schema", {}),
                        asked=False,
                    )

    def _parameters(self, where: str, old: Schema, new: Schema) -> Iterator[str]:
        before = {(one["in"], one["name"]): one for one in old.get("parameters", [])}
        after = {(one["in"], one["name"]): one for one in new.get("parameters", [])}
        for key, one in before.items():
            name = f"{key[0]} parameter {key[1]}"
            if key not in after:
                yield f"{where}: the {name} is gone"
                continue
            yield from self._schema(
                f"{where}: {name}", one["schema"], after[key]["schema"], asked=True
            )
        for key, one in after.items():
            if one.get("required") and not before.get(key, {}).get("required"):
                yield f"{where}: the {key[0]} parameter {key[1]} must be given now"

    def _body(self, where: str, old: Schema | None, new: Schema | None) -> Iterator[str]:
        if new is None:
            if old is not None:
                yield f"{where}: it takes no body any more"
            return
        if new.get("required") and not (old or {}).get("required"):
            yield f"{where}: it needs a body now"
        for media, content in (old or {}).get("content", {}).items():
            if media not in new["content"]:
                yield f"{where}: it no longer takes {media}"
            else:
                yield from self._schema(
                    f"{where}: body",
                    content.get("schema", {}),
                    new["content"][media].get("schema", {}),
                    asked=True,
                )

    def _schema(self, where: str, old: Schema, new: Schema, *, asked: bool) -> Iterator[str]:
        """Compare schemas. ``asked``: callers send it, so it may only get wider; else narrower."""
        pair = (str(old.get("$ref")), str(new.get("$ref")), asked)
        if "$ref" in old and "$ref" in new:
            if pair in self._seen:
                return
            self._seen.add(pair)
        before, after = _whole(self.old, old), _whole(self.new, new)
        kinds, kinds_now = _kinds(self.old, before), _kinds(self.new, after)
        gone = sorted(kinds - kinds_now) if asked else sorted(kinds_now - kinds)
        if kinds and kinds_now and gone:
            verb = "no longer takes" if asked else "may now be"
            yield f"{where} {verb} {', '.join(gone)}"
        lost = _values(before) - _values(after)
        if lost and _values(after):
            yield f"{where} no longer knows {', '.join(sorted(lost))}"
        yield from self._fields(where, before, after, asked=asked)
        for inner in ("items", "additionalProperties"):
            if isinstance(before.get(inner), dict) and isinstance(after.get(inner), dict):
                yield from self._schema(f"{where}[]", before[inner], after[inner], asked=asked)
        for one, other in zip(_arms(before), _arms(after), strict=False):
            yield from self._schema(where, one, other, asked=asked)

    def _fields(self, where: str, old: Schema, new: Schema, *, asked: bool) -> Iterator[str]:
        before, after = old.get("properties", {}), new.get("properties", {})
        if not before and not after:
            return
        needed, needed_now = set(old.get("required", [])), set(new.get("required", []))
        for name, one in before.items():
            if name not in after:
                yield f"{where}.{name} is gone"
            else:
                yield from self._schema(f"{where}.{name}", one, after[name], asked=asked)
        if asked:
            for name in sorted(needed_now - needed):
                yield f"{where}.{name} must be given now"
        else:
            for name in sorted((needed - needed_now) & after.keys()):
                yield f"{where}.{name} may be missing now"


def _whole(document: Schema, schema: Schema) -> Schema:
    while "$ref" in schema:
        found: Any = document
        for name in schema["$ref"].removeprefix("#/").split("/"):
            found = found[name]
        schema = found
    return schema


def _arms(schema: Schema) -> list[Schema]:
    return [
        one for one in schema.get("anyOf", schema.get("oneOf", [])) if one.get("type") != "null"
    ]


def _kinds(document: Schema, schema: Schema) -> set[str]:
    """Return the JSON types that it allows; empty when it does not restrict them."""
    arms = schema.get("anyOf", schema.get("oneOf"))
    if arms is not None:
        each = [_kinds(document, _whole(document, one)) for one in arms]
        return set().union(*each) if all(each) else set()
    kind = schema.get("type")
    if kind is None:
        return {"object"} if "properties" in schema else set()
    found = set(kind) if isinstance(kind, list) else {kind}
    return found | {"integer"} if "number" in found else found


def _values(schema: Schema) -> set[str]:
    if "const" in schema:
        return {str(schema["const"])}
    return {str(one) for one in schema.get("enum", [])}
