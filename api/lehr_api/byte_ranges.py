"""Parts of a file by the ``Range`` header (RFC 9110, 14)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from lehr.errors import UserError
from lehr_api.problems import problem_response

if TYPE_CHECKING:
    from lehr.app.services.checkpoints import CheckpointFile

_RANGE = re.compile(r"bytes=([0-9]{1,18})?-([0-9]{1,18})?")


def file_response(file: CheckpointFile, part: str | None) -> Response:
    """Send the file, or the part of it that a ``Range`` header names. Closes it in any case.

    Raises:
        UserError: ``part`` is not one part of a file.
    """
    try:
        span = _span(part, file.size)
    except UserError:
        file.close()
        raise
    if span is None:
        file.close()
        detail = f"{file.name} has {file.size:,} bytes; {part} asks for others."
        return problem_response(416, detail, headers={"Content-Range": f"bytes */{file.size}"})
    first, count = span
    headers = {
        "Accept-Ranges": "bytes",
        "ETag": f'"{file.sha256}"',
        "Cache-Control": "private, no-cache",
        "Content-Disposition": _attachment(file.name),
        "Content-Length": str(count),
    }
    if part is not None:
        headers["Content-Range"] = f"bytes {first}-{first + count - 1}/{file.size}"
    return StreamingResponse(
        file.read(first, count),
        200 if part is None else 206,
        headers,
        media_type="application/octet-stream",
    )


def _attachment(name: str) -> str:
    """Return the header for saving a file (RFC 6266; names of other alphabets: RFC 8187)."""
    encoded = quote(name, safe="")
    if encoded == name:
        return f'attachment; filename="{name}"'
    return f"attachment; filename*=utf-8''{encoded}"


def _span(part: str | None, size: int) -> tuple[int, int] | None:
    """First byte and number of bytes; None where the file has none of them.

    Raises:
        UserError: several parts, or none that can be read.
    """
    if part is None:
        return 0, size
    match = _RANGE.fullmatch(part.strip())
    if match is None or match.group(1) is match.group(2) is None:
        raise UserError(f"Range is {part!r}; write one part, as bytes=0-1023.")
    begin, end = match.groups()
    if begin is None:
        count = min(int(end), size)
        return (size - count, count) if count else None
    first = int(begin)
    last = size - 1 if end is None else min(int(end), size - 1)
    return (first, last - first + 1) if first < size and first <= last else None
