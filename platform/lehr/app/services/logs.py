"""The logs of a run: read, searched, or sent whole, of one of its attempts."""

from __future__ import annotations

from collections.abc import Iterator

from lehr.app.presenters.streams import log_chunk
from lehr.base.stopped import Stopped, never
from lehr.errors import NotFound, nearest
from lehr.schemas.streams import LogChunk, LogHit, LogHits
from lehr.store import Store
from lehr.store.ids import attempt_id
from lehr.store.tables import RunRow

_PIECE = 1 << 20


def read_log(
    store: Store,
    run: RunRow,
    name: str,
    attempt: int | None,
    *,
    offset: int,
    limit: int,
    tail: int | None = None,
) -> LogChunk:
    """Return text from an offset, or the last ``tail`` lines."""
    which = attempt_id(run.id, attempt_with_log(store, run, name, attempt))
    if tail is not None:
        return log_chunk(store.logs.tail(which, name, tail))
    return log_chunk(store.logs.read(which, name, offset, limit))


def whole_log(store: Store, run: RunRow, name: str, attempt: int) -> Iterator[bytes]:
    """Yield a log up to its size at the first read: the log of a live run grows meanwhile."""
    which = attempt_id(run.id, attempt)
    offset, size = 0, None
    while size is None or offset < size:
        piece = store.logs.read(which, name, offset, _PIECE)
        size = piece.size_bytes if size is None else size
        if piece.next_offset <= offset:
            return
        yield piece.text.encode()
        offset = piece.next_offset


def search_log(
    store: Store,
    run: RunRow,
    name: str,
    attempt: int | None,
    text: str,
    *,
    offset: int,
    limit: int,
    stopped: Stopped = never,
) -> LogHits:
    """Return at most ``limit`` lines that contain the text, and where to continue.

    ``stopped`` is asked between pieces of the log: is the answer still wanted?
    """
    number = attempt_with_log(store, run, name, attempt)
    found = store.logs.search(
        attempt_id(run.id, number), name, text, offset=offset, limit=limit + 1, stopped=stopped
    )
    return LogHits(
        name=name,
        attempt=number,
        lines=[LogHit(offset=match.offset, text=match.text) for match in found[:limit]],
        next_offset=found[limit].offset if len(found) > limit else None,
    )


def attempt_with_log(store: Store, run: RunRow, name: str, requested: int | None) -> int:
    """Return the requested attempt, by default the newest that wrote the log.

    Raises:
        NotFound: no attempt wrote the log, or the requested one did not.
    """
    streams = store.logs.of_run(run.id)
    wrote = [stream.attempt for stream in streams if stream.name == name]
    if not wrote:
        names = sorted({stream.name for stream in streams})
        near = nearest(name, names)
        hint = f"Did you mean {near}?   " if near else ""
        raise NotFound(
            f"{run.name} ({run.id}) has no log {name!r}.",
            hint=f"{hint}It has: {', '.join(names)}" if names else "It has written none yet.",
        )
    if requested is None:
        return max(wrote)
    if requested not in wrote:
        raise NotFound(
            f"attempt {requested} of {run.name} ({run.id}) has no log {name!r}.",
            hint=f"Attempts that wrote it: {', '.join(map(str, sorted(wrote)))}",
        )
    return requested
