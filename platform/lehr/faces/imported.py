"""Send runs that other tools have recorded, as external runs: each point once, however often.

The events of a run are always the same bytes, and so are its id and its token. So the server's
offset and checksum decide: an import goes on after an interruption, adds what a run has more since,
or finds it the same. A run that has changed gets another attempt, with all of it.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any

import orjson

from lehr.analysis.curve_files.collector import CurveRow, Points
from lehr.base import home
from lehr.base.signed_tokens import AttemptTokens
from lehr.errors import ServerUnavailable, UserError
from lehr.faces.client import Client
from lehr.faces.external import gather
from lehr.node.http_client import HttpResponse, Outage, ServerConnection
from lehr.node.programs.recorder import LONGEST_NAME
from lehr.schemas.runs import ExternalBegun
from lehr.specs.run import LONGEST_NOTE
from lehr_log.run import Outcome, label, plain
from lehr_trainer.contract.layout import EVENTS
from lehr_trainer.contract.records import LATEST, MOST, Finished, Started

_PIECE = 1 << 20
_MOST_BYTES = 8 << 30  # The server stores no more of an attempt's events.
_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
_stop = threading.Event()
_NON_FINITE = {math.inf: "Infinity", -math.inf: "-Infinity"}


@dataclass
class SourceRun:
    """A run as another tool has it, and what became of it here."""

    tool: str
    address: str  # A URL, or a folder with its host.
    id: str
    name: str
    project: str
    points: Callable[[], Points]
    started_at: float
    ended_at: float | None = None  # None: the time of the last point.
    outcome: Outcome | None = "completed"  # None: it goes on.
    reason: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    group: tuple[str, str] = ("", "")  # Its id, and its name.
    metric: dict[str, Any] | None = None  # Of a sweep: what ranks it.
    notes: str = ""
    run_id: str = ""
    result: str = ""  # imported, unchanged, changed or refused
    sent: int = 0
    left_out: int = 0

    def lines(self) -> Iterator[bytes]:
        """Yield its events."""
        last_step, last_at = 0, self.started_at
        self.sent = self.left_out = 0
        begun = Started(time=last_at, device="unknown", tokens_per_step=1)
        yield f"{begun.model_dump_json()}\n".encode()
        rows = (row for row in self.points() if isinstance(row, CurveRow))
        for step, same in itertools.groupby(rows, key=lambda row: row.step):
            given: dict[str, float] = {}
            for row in same:  # Of a step, the last value counts.
                given |= row.values
                at = row.at
            values: dict[str, Any] = {
                "program/mfu" if n == "mfu" else n: v  # Lehr's own is a share, most are in percent.
                for n, v in given.items()
                if 0 <= step < MOST and 0 < len(n) <= LONGEST_NAME
            }
            self.sent += len(values)
            self.left_out += len(given) - len(values)
            if not values:
                continue
            if not math.isfinite(sum(values.values())):
                odd = {n: v for n, v in values.items() if not math.isfinite(v)}
                values = values | {n: _NON_FINITE.get(v, "NaN") for n, v in odd.items()}
            time = at if at is not None and 0 <= at < LATEST else self.started_at
            last_step, last_at = max(last_step, step), max(last_at, time)
            record = {"time": time, "kind": "metrics", "step": step, "tokens": step}
            yield orjson.dumps(record | {"values": values}, option=orjson.OPT_APPEND_NEWLINE)
        if self.outcome is not None:
            self.ended_at = self.ended_at or last_at
            cause = "program_failed" if self.outcome == "failed" else None
            end = Finished(
                time=self.ended_at, step=last_step, outcome=self.outcome, cause=cause,
                message=self.reason if cause else None,
            )  # fmt: skip
            yield f"{end.model_dump_json()}\n".encode()


def send_runs(client: Client, runs: list[SourceRun]) -> Iterator[None]:
    """Send runs, several at once; yield every two seconds until all are sent.

    Raises:
        ServerUnavailable: the server was away for a minute. Repeated, the import goes on.
    """
    _stop.clear()
    with ThreadPoolExecutor(4) as pool:
        left = tasks = {pool.submit(_send, client, run) for run in runs}
        try:
            while left:
                done, left = wait(tasks, 2.0, FIRST_EXCEPTION)
                for task in done:
                    task.result()
                yield
        finally:
            _stop.set()
            pool.shutdown(cancel_futures=True)
    groups: dict[tuple[str, str, str, str], list[SourceRun]] = {}
    for run in runs:
        if run.group[0] and run.run_id:
            groups.setdefault((run.tool, run.address, run.project, run.group[0]), []).append(run)
    for key, members in groups.items():
        ids, first = [run.run_id for run in members], members[0]
        gather(client, [*key], first.group[1], ids, first.metric)


def _send(client: Client, run: SourceRun) -> None:
    source = {"tool": run.tool, "address": run.address, "id": run.id}
    run_id = "i" + sha256(orjson.dumps(source)).hexdigest()[:15]
    spec = {
        "name": label(run.name, "run"),
        "project": label(run.project, "default"),
        "tags": run.tags,
        "notes": run.notes[:LONGEST_NOTE],
        "resources": {"gpus": 0},
        "trainer": {"external": True, "args": plain(run.config)},
    }
    body = {"id": run_id, "resume": True, "started_at": run.started_at, "spec": spec}
    body["provenance"] = {"imported": source | {"name": run.name}}
    try:
        for number in itertools.count(1):
            own = f"import into {client.server}: {run_id} {number}"
            token = AttemptTokens(home.ensure_home()).token(own)
            body["token_sha256"] = sha256(token.encode()).hexdigest()
            answer = client.transport.post("/runs/external", body)
            begun = ExternalBegun.model_validate_json(answer)
            connection = ServerConnection(lambda: client.server, token, begun.attempt_id)
            if (new := _send_events(connection, run)) is not None:
                run.run_id = begun.run_id
                run.result = ("changed" if number > 1 else "imported") if new else "unchanged"
                break
    except (UserError, Outage) as error:
        run.result, run.reason = "refused", str(error)


def _send_events(connection: ServerConnection, run: SourceRun) -> int | None:
    """Send what the server lacks; return how many bytes that were. None: what it has is not the
    beginning of the run's events.
    """
    known = _patiently(lambda: connection.get("streams")).json()
    offset, checksum = known["offsets"].get(EVENTS, 0), known["crc32"].get(EVENTS, 0)
    size = crc = 0
    for piece in _pieces(run.lines()):
        old, new = piece[: max(0, offset - size)], piece[max(0, offset - size) :]
        crc, size = zlib.crc32(old, crc), size + len(piece)
        if new and crc != checksum:
            return None
        if size > _MOST_BYTES or _stop.is_set():
            raise UserError(f"{size:,} bytes of events, of at most {_MOST_BYTES:,}, are there.")
        if new:
            path = f"streams/{EVENTS}?offset={size - len(new)}"
            # 409: the answer was lost, or another import of the run has sent the same bytes.
            _patiently(partial(connection.put, path, new)).must(200, 409)
    if size < offset or crc != checksum:
        return None
    if run.outcome is not None:
        report = {"code": int(run.outcome != "completed"), "reason": "", "ended_at": run.ended_at}
        end = {"exit": report, "sizes": {EVENTS: size}}
        _patiently(lambda: connection.post("exit", end).must(200))
    return int(size - offset)


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    piece = bytearray()
    for line in lines:
        piece += line
        if len(piece) >= _PIECE:
            yield bytes(piece[:_PIECE])
            del piece[:_PIECE]
    yield bytes(piece)


def _patiently(call: Callable[[], HttpResponse]) -> HttpResponse:
    """Call, and call again for a minute while the server is away."""
    for pause in _PAUSES_S:
        try:
            return call()
        except Outage as outage:
            last = outage
            time.sleep(outage.wait_s or pause)
    raise ServerUnavailable(f"{last}.", hint="Repeat the command: it goes on from there.")
