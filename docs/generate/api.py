"""docs/api.md and docs/errors.md: the REST contract, from the application's own OpenAPI."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import examples

from lehr import errors
from lehr.errors import LehrError
from lehr_api import problems
from lehr_api.app import create_app
from lehr_api.settings import Settings

Schema = dict[str, Any]
_LONGEST_EXAMPLE = 44
"""Lines of an answer's example that are shown."""
_TAGS = {
    "health": "Health",
    "runs": "Runs",
    "sweeps": "Sweeps",
    "cluster": "Cluster and queue",
    "queue": "Queue",
    "stream": "What happens, as it happens",
    "attempts": "For workers",
}
_WHEN = {
    "invalid": "A value is wrong; `detail` names it, its value and what would be valid.",
    "invalid_spec": "A spec does not validate. `problems` lists every problem: `path`, "
    "`message`, `hint`, and `line`, `column`, `source` where it came from a file.",
    "invalid_request": "Query, path or body are not valid for the route; `problems` names "
    "the fields.",
    "not_found": "There is no such run, sweep, checkpoint, metric, route; `hint` has near names.",
    "conflict": "It exists, but its state does not allow this "
    "(a run that has ended cannot be cancelled).",
    "home_unusable": "The home folder is held by another process, is of a newer version, or is "
    "on a network file system. Never over HTTP.",
    "plan_refused": "The plan cannot work, e.g. it does not fit in the GPU's memory.",
    "ray_starting": "The server's Ray is not up yet; the same request succeeds a little later.",
    "server_unavailable": "No server answers. Only in the client and the command line.",
    "unauthorized": "The token is missing or wrong.",
    "fenced": "The run of this attempt was deleted; the attempt must stop.",
    "offset_mismatch": "A piece of a stream does not begin where the stream ends; `offset` is "
    "the end.",
    "store_unavailable": "The disk or the database rejected a write; nothing was acknowledged.",
    "internal": "An internal error of Lehr; see the server's log.",
    "wrong_host": "The request addresses the server by an unknown name.",
    "cross_origin": "The request comes from a page of another origin.",
    "too_large": "The body is larger than the limit.",
    "wrong_protocol": "A worker uses a version of the attempt protocol that this server "
    "does not support.",
    "busy": "Too many concurrent writes; `Retry-After` has the seconds to wait.",
    "bad_request": "The request cannot be read.",
    "forbidden": "This is not allowed with this token.",
    "method_not_allowed": "The route does not support the method; `hint` lists those it supports.",
    "not_acceptable": "None of the requested media types is available.",
    "unsupported_media_type": "The media type of the body is not supported.",
    "error": "Anything else.",
}


def description() -> Schema:
    """Return the OpenAPI description, without its version, so that releases do not change it."""
    with tempfile.TemporaryDirectory() as folder:
        made = create_app(Settings(home=Path(folder), token="")).openapi()
    made = json.loads(json.dumps(made))
    made["info"]["version"] = "v1"
    examples.inject(made)
    return made


def page(document: Schema) -> str:
    lines = [*_INTRODUCTION.splitlines(), ""]
    tags: dict[str, list[tuple[str, str, Schema]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tags.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    order = [*_TAGS, *(tag for tag in tags if tag not in _TAGS)]
    lines += ["## Routes", "", "| | | |", "|---|---|---|"]
    for tag in order:
        for method, path, operation in tags.get(tag, []):
            anchor = _anchor(f"{method} {path}")
            lines.append(f"| {method} | [`{path}`](#{anchor}) | {_first(operation)} |")
    lines.append("")
    for tag in order:
        if tag not in tags:
            continue
        lines += [f"## {_TAGS.get(tag, tag.replace('_', ' ').capitalize())}", ""]
        for method, path, operation in tags[tag]:
            lines += _operation(document, method, path, operation)
    return "\n".join(lines).rstrip() + "\n"


def errors_page() -> str:
    lines = [*_ERRORS.splitlines(), ""]
    lines += ["| code | HTTP | exit code | when |", "|---|---|---|---|"]
    known = codes()
    if missing := sorted(set(known) - set(_WHEN)):
        raise SystemExit(f"docs/generate/api.py: say in _WHEN when {', '.join(missing)} comes")
    for code, (status, exit_code) in sorted(known.items()):
        lines.append(f"| `{code}` | {status or ''} | {exit_code or ''} | {_WHEN[code]} |")
    return "\n".join(lines) + "\n"


def codes() -> dict[str, tuple[int | None, int | None]]:
    """Return every machine code with its HTTP status and its exit code, from the exceptions."""
    found: dict[str, tuple[int | None, int | None]] = {
        code: (status, None) for status, code in problems.CODES.items()
    }
    found["invalid_request"] = (422, None)
    for kind in _below(LehrError):
        if kind.__module__ in {errors.__name__, problems.__name__}:
            found[kind.code] = (kind.status, kind.exit_code)
    return found


def _below(kind: type[LehrError]) -> list[type[LehrError]]:
    return [kind, *(one for child in kind.__subclasses__() for one in _below(child))]


def _operation(document: Schema, method: str, path: str, operation: Schema) -> list[str]:
    lines = [f"### {method} {path}", "", _prose(operation), ""]
    parameters = [_resolved(document, one) for one in operation.get("parameters", [])]
    if parameters:
        lines += ["| parameter | in | type | default | |", "|---|---|---|---|---|"]
        for one in parameters:
            schema = one["schema"]
            default = "**required**" if one.get("required") else _value(schema.get("default"))
            about = _line(one.get("description") or schema.get("description") or "")
            kind = _type(document, schema)
            lines.append(f"| `{one['name']}` | {one['in']} | {kind} | {default} | {about} |")
        lines.append("")
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    lines += _body_table(document, body["schema"]) if body else []
    lines += ["```console", _curl(document, method, path, operation, parameters), "```", ""]
    for code, answer in operation["responses"].items():
        if not code.startswith("2"):
            continue
        for media, content in answer.get("content", {}).items():
            name = _name(content.get("schema", {}))
            lines += [f"{code}, `{media}`{f': {name}' if name else ''}", ""]
            lines += _shown(media, content.get("example"))
    refused = [code for code in operation["responses"] if code.startswith("4")]
    if refused:
        lines += [f"Problems: {', '.join(refused)}; see [errors](errors.md).", ""]
    return lines


def _body_table(document: Schema, schema: Schema) -> list[str]:
    whole = _resolved(document, schema)
    needed = set(whole.get("required", []))
    lines = ["| body | type | default | |", "|---|---|---|---|"]
    for name, one in whole.get("properties", {}).items():
        default = "**required**" if name in needed else _value(one.get("default"))
        about = _line(one.get("description", ""))
        lines.append(f"| `{name}` | {_type(document, one)} | {default} | {about} |")
    return [*lines, ""]


def _curl(
    document: Schema, method: str, path: str, operation: Schema, parameters: list[Schema]
) -> str:
    query = []
    for one in parameters:
        example = _parameter_example(one)
        if one["in"] == "path":
            path = path.replace(f"{{{one['name']}}}", str(example))
        elif one.get("required") and one["in"] == "query":
            many = example if isinstance(example, list) else [example]
            query += [f"{one['name']}={value}" for value in many]
    address = f"$LEHR_SERVER{path}{'?' + '&'.join(query) if query else ''}"
    parts = ["$ curl"]
    if method != "GET":
        parts.append(f"-X {method}")
    if operation.get("security"):
        parts.append('-H "Authorization: Bearer $LEHR_TOKEN"')
    contents = operation.get("requestBody", {}).get("content", {})
    if "application/json" in contents:
        example = body_example(document, contents["application/json"])
        parts += ["-H 'Content-Type: application/json'", f"-d '{json.dumps(example)}'"]
    elif contents:
        media = next(iter(contents))
        parts += [f"-H 'Content-Type: {media}'", "--data-binary @piece"]
    return " \\\n    ".join([*parts, f'"{address}"'])


def body_example(document: Schema, content: Schema) -> Any:
    """Return an example body: its own, else one made of the examples of its required fields."""
    if "example" in content:
        return content["example"]
    whole = _resolved(document, content["schema"])
    if whole.get("examples"):
        return whole["examples"][0]
    return {
        name: (one.get("examples") or [one.get("default")])[0]
        for name, one in whole.get("properties", {}).items()
        if name in whole.get("required", [])
    }


def _parameter_example(one: Schema) -> Any:
    if "example" in one:
        return one["example"]
    if one.get("examples"):
        first = one["examples"]
        return first[0] if isinstance(first, list) else next(iter(first.values()))["value"]
    found = one["schema"].get("examples")
    return found[0] if found else one["schema"].get("default", one["name"])


def _shown(media: str, example: Any) -> list[str]:
    if example is None:
        return []
    if "json" in media and not isinstance(example, str):
        lines = json.dumps(example, indent=2, ensure_ascii=False).splitlines()
    else:
        lines = str(example).splitlines()
    if len(lines) > _LONGEST_EXAMPLE:
        lines = [*lines[:_LONGEST_EXAMPLE], f"... ({len(lines) - _LONGEST_EXAMPLE} more lines)"]
    return [f"```{'json' if 'json' in media else 'text'}", *lines, "```", ""]


def _resolved(document: Schema, schema: Schema) -> Schema:
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def _name(schema: Schema) -> str:
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if schema.get("type") == "array":
        inner = _name(schema["items"])
        return f"list of {inner}" if inner else ""
    return ""


def _type(document: Schema, schema: Schema) -> str:
    whole = _resolved(document, schema)
    if "enum" in whole:
        return ", ".join(f"`{value}`" for value in whole["enum"])
    if "const" in whole:
        return f"`{whole['const']}`"
    arms = whole.get("anyOf", whole.get("oneOf"))
    if arms:
        kinds = [_type(document, arm) for arm in arms if arm.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if whole.get("type") == "array":
        return f"list of {_type(document, whole['items'])}"
    return str(whole.get("type", "any"))


def _value(value: Any) -> str:
    return "" if value is None else f"`{json.dumps(value)}`"


def _first(operation: Schema) -> str:
    text = _line(operation.get("description") or operation["summary"])
    return f"{text.split('. ')[0].rstrip('.')}."


def _prose(operation: Schema) -> str:
    return (operation.get("description") or f"{operation['summary']}.").replace("``", "`").strip()


def _line(text: str) -> str:
    return " ".join(text.replace("``", "`").replace("|", "\\|").split())


def _anchor(title: str) -> str:
    kept = "".join(one for one in title.lower() if one.isalnum() or one in " -_")
    return kept.replace(" ", "-")


_INTRODUCTION = """\
# The REST API

Generated from the server's OpenAPI description ([openapi.json](openapi.json), also at
`/api/v1/openapi.json`) by `python docs/generate`; do not edit. The Python client and the command
line use nothing else.

## What holds everywhere

**Address and token.** The server listens at `http://127.0.0.1:5347` by default. Every
route but `/api/v1/health` wants `Authorization: Bearer TOKEN`. The token lies in the file `token`
of Lehr's home (`~/.lehr/token`, mode 0600):

```console
$ export LEHR_SERVER=http://127.0.0.1:5347 LEHR_TOKEN=$(cat ~/.lehr/token)
```

Routes for workers take the attempt's own token, which is worth nothing elsewhere.

**Values.** Times are seconds since the epoch (UTC). What is not known is `null`, never 0. Numbers
that are not finite travel as the strings `"NaN"`, `"Infinity"`, `"-Infinity"`. Runs and sweeps are
named by id, by a unique beginning of an id, or by name (the newest of that name).

**Compatibility.** Within `/api/v1` paths, fields and values are added, not taken away, and callers
are never made to send more; a test compares each change with `openapi.json`. Readers should ignore
fields that they do not know; the server refuses fields and query parameters that it does not know.

**Errors** are `application/problem+json` (RFC 9457) with a machine-readable `code`, and a `hint`
where there is something to try: [errors.md](errors.md).

**Pages.** Lists of runs and sweeps answer `{items, next_cursor, total}`. Pass `next_cursor` as
`cursor` for the next page; it is `null` on the last. `limit` says how many a page has. A cursor
marks a place between two items: later submissions neither shift nor repeat items of a page.
`GET /sweeps/{ref}` pages `trials` in the same way; its other fields are of the whole sweep.

```console
$ curl -H "Authorization: Bearer $LEHR_TOKEN" "$LEHR_SERVER/api/v1/runs?limit=2"
$ curl -H "Authorization: Bearer $LEHR_TOKEN" "$LEHR_SERVER/api/v1/runs?limit=2&cursor=41"
```

**ETag.** What is read carries an `ETag`. Send it back as `If-None-Match`, and an answer that has
not changed is `304` without a body:

```console
$ curl -i -H "Authorization: Bearer $LEHR_TOKEN" -H 'If-None-Match: "..."' \\
    "$LEHR_SERVER/api/v1/runs/first-run"
```

**Idempotency keys.** What creates something (`POST /runs`, `/sweeps`, `/runs/{ref}/fork`) takes an
`Idempotency-Key` of the caller's choice. The same key with the same request is recorded once: sent
again, it gets what the first one made, as it is now, with `Idempotency-Replayed: true`. The same
key with another request is `409`. A request that failed is not remembered, and may be sent again
under its key. A key is remembered for seven days; after that the same request is recorded again.

```console
$ curl -X POST -H "Authorization: Bearer $LEHR_TOKEN" -H "Idempotency-Key: $(uuidgen)" \\
    -H 'Content-Type: application/json' -d @submission.json "$LEHR_SERVER/api/v1/runs"
```

**Changes as they happen.** `GET /api/v1/stream` is server-sent events: `hello` first on each
connection (also after a break: read again what you show), then `run`, `sweep`, `metrics`, `log`,
`cluster`; a comment every 15 s when nothing happens. `Last-Event-ID` goes on where a broken
connection ended."""

_ERRORS = """\
# Errors

Generated by `python docs/generate`; do not edit.

Over HTTP every error is `application/problem+json` (RFC 9457). `code` is for programs and does not
change; `detail` and `hint` are for people and may.

```json
{
  "type": "about:blank",
  "title": "Unprocessable Content",
  "status": 422,
  "detail": "train.optimizer.learning_rate is not a field.",
  "code": "invalid_spec",
  "problems": [
    {
      "path": "train.optimizer.learning_rate",
      "message": "train.optimizer.learning_rate is not a field.",
      "hint": "Did you mean train.optimizer.lr?"
    }
  ]
}
```

The command line prints the same words to stderr, with `--json` as
`{"error": {code, message, hint, problems}}` on stdout, and ends with an exit code (see
[cli.md](cli.md)). The Python client raises the exception of the code, from `lehr.errors`."""
