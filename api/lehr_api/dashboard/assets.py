"""Files under ``/static``: style sheets and modules.

Their URLs contain a digest of the whole set (``/static/<digest>/js/...``), so browsers cache them
for good and modules can import each other by relative paths.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import posixpath
import re
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

POLICY = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "manifest-src 'self'; connect-src 'self'; font-src 'self'; form-action 'self'; "
        "frame-ancestors 'none'; base-uri 'none'"
    )
}
"""Of every page, picture and worker of the dashboard: nothing inline, nothing from other hosts."""
STATIC = Path(__file__).parent / "static"
FRESH_S = 1.0
"""Seconds for which the files are not listed again."""
_FOREVER = "max-age=31536000, immutable"
_TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
}


@dataclass(frozen=True)
class _Listing:
    static: Path
    files: dict[str, str]
    """The path of each file, by its name under ``static``."""
    digest: str
    """Of all files' sizes and modification times: fast, and correct in an editable install."""
    seen_at: float


_newest: _Listing | None = None


def _listing() -> _Listing:
    """Return the files, at most ``FRESH_S`` old: each page and each file asks, also strangers'."""
    global _newest  # noqa: PLW0603 - one folder, one listing
    found = _newest
    if found is None or found.static != STATIC or time.monotonic() >= found.seen_at + FRESH_S:
        found = _newest = _list(STATIC)
    return found


def _list(static: Path) -> _Listing:
    # Path.rglob takes several times as long.
    files = {
        path.removeprefix(f"{static}/"): path
        for folder, _, names in os.walk(static)
        for name in sorted(names)
        if posixpath.splitext(path := posixpath.join(folder, name))[1] in _TYPES
    }
    state = hashlib.sha256()
    for name, path in sorted(files.items()):
        stat = os.stat(path)  # noqa: PTH116
        state.update(f"{name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return _Listing(static, files, state.hexdigest()[:12], time.monotonic())


def digest() -> str:
    """Return a digest that is another one when a file has changed."""
    return _listing().digest


# Comments of own lines, types of values, and the indentation: no string goes over several lines.
_UNREAD = {
    ".js": re.compile(
        rb"^[ \t]*/\*\*(?:(?!\*/).)*\*/$|/\*\* @(?:(?!\*/).)*\*/ ?|^[ \t]*//[^\n]*$|^[ \t]+",
        re.MULTILINE | re.DOTALL,
    ),
    ".css": re.compile(rb"/\*(?:(?!\*/).)*\*/|^[ \t]+", re.MULTILINE | re.DOTALL),
}
# `import {a} from "./b.js";`, also over several lines, at the beginning of one.
_IMPORT = re.compile(r"""^(?:import|export)\b[^"';]*?["'](\.[^"']+)["']""", re.MULTILINE)


def modules(entry: str) -> list[str]:
    """Return the URLs of all modules that a page's module imports, directly or indirectly.

    The page lists them, so that the browser fetches them at once instead of level by level.
    """
    current = digest()
    return [f"/static/{current}/{name}" for name in _closure(entry, current)]


@lru_cache(maxsize=64)
def _closure(entry: str, _digest: str) -> tuple[str, ...]:
    files = _listing().files
    found: dict[str, None] = {}
    todo = [entry]
    while todo:
        name = todo.pop()
        for path in _IMPORT.findall(Path(files[name]).read_text(encoding="utf-8")):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
            if target in files and target not in found:
                found[target] = None
                todo.append(target)
    return tuple(found)


def static_url(path: str) -> str:
    return f"/static/{digest()}/{path}"


@lru_cache(maxsize=512)
def _body(path: str, _changed_ns: int) -> tuple[bytes, bytes]:
    """Return a file's bytes, and the same compressed: a page opens 70 files at once."""
    body = Path(path).read_bytes()
    if unread := _UNREAD.get(posixpath.splitext(path)[1]):
        # A quarter of what a browser would load. The lines stay those of the file.
        body = unread.sub(lambda found: b"\n" * found[0].count(b"\n"), body)
    return body, gzip.compress(body, mtime=0)


async def _file(request: Request) -> Response:
    # Looked up in the list of existing files, never joined to a path, so no other file can be read.
    name = request.path_params["path"]
    path = _listing().files.get(name, "")
    try:
        plain, compressed = _body(path, os.stat(path).st_mtime_ns)  # noqa: PTH116
    except FileNotFoundError:
        raise HTTPException(404, f"no file {name!r} under /static") from None
    kind = _TYPES[posixpath.splitext(path)[1]]
    headers = {"Cache-Control": _FOREVER, "Content-Type": kind, "Vary": "Accept-Encoding"}
    if name == "js/service_worker.js":  # It shows messages of all pages.
        headers |= {"Service-Worker-Allowed": "/", **POLICY}
    elif not kind.startswith("text/"):  # Scripts and styles have the policy of their page.
        headers |= POLICY
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(compressed, headers={**headers, "Content-Encoding": "gzip"})
    return Response(plain, headers=headers)


def static_app() -> Starlette:
    return Starlette(
        routes=[
            Route("/{digest}/{path:path}", _file),
        ]
    )
