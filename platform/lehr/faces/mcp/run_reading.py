"""Tools that read what one run has recorded: curves, logs, events, alerts."""

from __future__ import annotations

import itertools
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, TypeAdapter

from lehr.faces.mcp.answers import Answer, ago, brief_run, clipped, curve
from lehr.faces.mcp.launching import Ref
from lehr.faces.mcp.reading import Limit
from lehr.schemas.streams import Series

if TYPE_CHECKING:
    from lehr.faces.client import Client

_LINE = 500


class RunReading:
    """The tools, for one server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def metrics(
        self,
        ref: Ref,
        matching: Annotated[
            str, Field(max_length=200, description="Part of the name; * stands for any text.")
        ] = "",
        limit: Limit = 60,
    ) -> Answer:
        """List the metrics of a run, each with points, last value and range."""
        # Not a regular expression: one can take hours, and no other thread would run, not even the
        # one that answers the agent.
        pattern = f"*{matching}*".replace("[", "[[]")
        known = [one for one in self._client.run(ref).metrics() if fnmatchcase(one.name, pattern)]
        fields = {"name", "points", "last", "last_step", "minimum", "maximum"}
        shown = [metric.model_dump(mode="json", include=fields) for metric in known[:limit]]
        return {"metrics": shown, "total": len(known)}

    def history(
        self,
        ref: Ref,
        names: Annotated[list[str], Field(min_length=1, max_length=6)],
        x: Literal["step", "tokens", "time"] = "step",
        points: Annotated[int, Field(ge=2, le=200)] = 40,
        first: Annotated[float | None, Field(description="From this x on.")] = None,
        last: Annotated[float | None, Field(description="Up to this x.")] = None,
        smoothing: Annotated[float | None, Field(ge=0, lt=1)] = None,
    ) -> Answer:
        """Read curves of a run, reduced to a few points; narrow first and last to see more."""
        run = self._client.run(ref)
        params = {"name": names, "x": x, "points": points, "smoothing": smoothing}
        answer = self._client.transport.get(
            f"/runs/{run.id}/series", {**params, "from": first, "to": last}
        )
        curves = TypeAdapter(list[Series]).validate_json(answer)
        return {"curves": [curve(series) for series in curves]}

    def logs(
        self,
        ref: Ref,
        name: Annotated[str, Field(description="rank-0.log, launcher.log, ...")] = "rank-0.log",
        attempt: int | None = None,
        lines: Annotated[int, Field(ge=1, le=200)] = 40,
        offset: Annotated[
            int | None, Field(description="Begin at this byte, as search_logs returned it.")
        ] = None,
    ) -> Answer:
        """Read the last lines of a run's output, or lines from a byte on."""
        run = self._client.run(ref)
        tail = lines if offset is None else None
        found = run.logs(name, attempt=attempt, tail=tail, offset=offset)
        streams = [f"{one.name} of attempt {one.attempt}" for one in run.log_streams()]
        return {
            "lines": [clipped(one, _LINE) for one in itertools.islice(found, lines)],
            "logs": streams[-20:],
        }

    def search_logs(
        self,
        ref: Ref,
        text: Annotated[str, Field(min_length=1)],
        name: str = "rank-0.log",
        attempt: int | None = None,
        limit: Limit = 20,
    ) -> Answer:
        """Find lines of a whole log that contain a text, ignoring case."""
        hits = self._client.run(ref).search_logs(text, name, attempt=attempt)
        lines = [
            {"offset": hit.offset, "text": clipped(hit.text, _LINE)}
            for hit in itertools.islice(hits, limit + 1)
        ]
        return {"lines": lines[:limit], "more": len(lines) > limit or None}

    def events(self, ref: Ref, limit: Limit = 30) -> Answer:
        """List the newest events of a run: transitions, requests, checkpoints, warnings."""
        events = self._client.run(ref).events()
        fields = {"kind", "message", "step", "attempt"}
        return {
            "events": [
                {"when": ago(event.at), **event.model_dump(mode="json", include=fields)}
                for event in events[-limit:]
            ],
            "earlier": max(len(events) - limit, 0) or None,
        }

    def checkpoints(self, ref: Ref, limit: Limit = 20) -> Answer:
        """List the newest checkpoints of a run that exist, and why each is kept."""
        saved = [one for one in self._client.run(ref).checkpoints() if one.removed_at is None]
        fields = {
            "attempt", "step", "size_bytes", "reason", "val_loss", "best", "latest", "kept",
            "copy_state", "copy_error",
        }  # fmt: skip
        return {
            "checkpoints": [one.model_dump(mode="json", include=fields) for one in saved[-limit:]],
            "earlier": max(len(saved) - limit, 0) or None,
        }

    def code_diff(
        self,
        ref: Ref,
        other: Ref,
        name: Annotated[str | None, Field(description="Only this file.")] = None,
    ) -> Answer:
        """Show how the code of another run differs from that of a run, by file."""
        changes = self._client.code_diff(ref, other).changes
        shown = [change.model_dump() for change in changes if name in (None, change.name)]
        return {"changes": shown, "same": not changes or None}

    def diagnose(self, ref: Ref) -> Answer:
        """Find what is wrong with a run: how it ended, alerts on its curves, cause, advice."""
        run = self._client.run(ref)
        detail = run.detail
        newest = detail.attempts[-1] if detail.attempts else None
        return {
            "run": brief_run(detail),
            "cause": detail.cause,
            "end": clipped(newest.message or "", 2_000) if newest else None,
            # Once each: the explanation repeats the fields for people.
            "alerts": [
                alert.model_dump(mode="json", exclude={"message", "explanation"})
                for alert in run.alerts()
            ],
            "next": "logs, search_logs and events have the details; retry continues a failed run.",
        }
