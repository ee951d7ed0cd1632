"""Logs of a run: list, read, follow, search."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

from lehr.errors import NotFound
from lehr.faces.client.run_state import RunStateMethods
from lehr.schemas.streams import LogChunk, LogHit, LogHits, LogStream

_LOG_PIECE = 1 << 18
_FOLLOW_PAUSE_S = 0.5


class RunLogMethods(RunStateMethods):
    """A part of ``lehr.faces.client.runs.Run``: its logs."""

    def log_streams(self) -> list[LogStream]:
        return self._list("/logs", LogStream)

    def logs(
        self,
        name: str = "rank-0.log",
        *,
        attempt: int | None = None,
        tail: int | None = None,
        follow: bool = False,
        offset: int | None = None,
    ) -> Iterator[str]:
        """Return lines of a log, by default rank 0 of the newest attempt.

        Args:
            name: name of the log; ``log_streams()`` lists them.
            attempt: number of the attempt. Default: the newest.
            tail: return only the last lines, this many.
            follow: continue with new lines, through later attempts, until the run has ended.
            offset: begin at this byte instead, as returned by ``search_logs``.
        """
        if attempt is None:
            attempt = self._newest_attempt(name, wait=follow)
            moving = follow
        else:
            moving = False
        while attempt is not None:
            begin = {"tail": tail, "offset": offset}
            yield from self._attempt_lines(name, attempt, begin=begin, follow=follow)
            tail = offset = None
            attempt = self._later_attempt(name, attempt) if moving else None

    def search_logs(
        self, text: str, name: str = "rank-0.log", *, attempt: int | None = None, offset: int = 0
    ) -> Iterator[LogHit]:
        """Return lines of a log that contain ``text``, ignoring case; by default of rank 0.

        Args:
            text: text that a line must contain.
            name: name of the log; ``log_streams()`` lists them.
            attempt: number of the attempt. Default: the newest that wrote this log.
            offset: search from this byte.
        """
        at: int | None = offset
        while at is not None:
            params = {"text": text, "attempt": attempt, "offset": at}
            answer = self._transport.get(f"/runs/{self.id}/logs/{quote(name)}/search", params)
            found = LogHits.model_validate_json(answer)
            yield from found.lines
            at = found.next_offset

    def _attempt_lines(
        self, name: str, attempt: int, *, begin: Mapping[str, int | None], follow: bool
    ) -> Iterator[str]:
        chunk = self._chunk(name, attempt=attempt, limit=_LOG_PIECE, **begin)
        rest = ""
        while True:
            *lines, rest = (rest + chunk.text).split("\n")
            yield from lines
            if chunk.next_offset >= chunk.size_bytes:
                if not follow or chunk.ended:
                    break
                time.sleep(_FOLLOW_PAUSE_S)
            chunk = self._chunk(name, attempt=attempt, offset=chunk.next_offset, limit=_LOG_PIECE)
        if rest:
            yield rest

    def _newest_attempt(self, name: str, *, wait: bool) -> int | None:
        while True:
            numbers = [log.attempt for log in self.log_streams() if log.name == name]
            if numbers:
                return max(numbers)
            self.refresh()
            if not wait or self.ended:
                known = sorted({log.name for log in self.log_streams()})
                if not known and self.view.attempt == 0:
                    return None  # It never started: there is nothing to read, which is no error.
                hint = f"It has: {', '.join(known)}" if known else "It has written none yet."
                raise NotFound(f"run {self.name} has no log {name!r}.", hint=hint)
            time.sleep(_FOLLOW_PAUSE_S)

    def _later_attempt(self, name: str, attempt: int) -> int | None:
        """Return the next attempt that wrote this log; None once the run has ended without one."""
        while True:
            later = [
                log.attempt
                for log in self.log_streams()
                if log.name == name and log.attempt > attempt
            ]
            if later:
                return min(later)
            if self.refresh().ended or self.state == "paused":
                return None
            time.sleep(_FOLLOW_PAUSE_S)

    def _chunk(self, name: str, **params: Any) -> LogChunk:
        return LogChunk.model_validate_json(
            self._transport.get(f"/runs/{self.id}/logs/{name}", params)
        )
