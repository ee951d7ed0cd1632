"""A W&B server on the loopback with the routes that the client uses; what it received can be read.

Files of a run arrive as lines at an offset, so what is sent twice stands there once.
"""

from __future__ import annotations

import gzip
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0123456789abcdef0123456789abcdef01234567"
_HISTORY, _SUMMARY = "wandb-history.jsonl", "wandb-summary.json"


@dataclass
class RemoteRun:
    name: str
    lines: dict[int, str] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    """Project, group, tags, ... as they were upserted."""
    openings: int = 0
    exit_code: int | None = None
    alerts: list[dict[str, Any]] = field(default_factory=list)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """History in order; a gap in it is an error."""
        assert sorted(self.lines) == list(range(len(self.lines))), sorted(self.lines)
        return [json.loads(self.lines[n]) for n in range(len(self.lines))]

    def series(self, name: str) -> tuple[list[int], list[float]]:
        rows = [row for row in self.rows if name in row]
        return [row["step"] for row in rows], [float(row[name]) for row in rows]


class WandbServer:
    """Listens from construction to ``close``. ``down = True`` answers 503 to everything."""

    def __init__(self) -> None:
        self.runs: dict[str, RemoteRun] = {}
        self.artifacts: list[dict[str, Any]] = []
        self.files: dict[str, bytes] = {}
        self.keys: set[str] = set()
        self.down = False
        self.refused = 0
        self.guard = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                with server.guard:
                    status, data = server.handle(self.path, body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PUT = answer  # noqa: N815 - the library's names

            def log_message(self, *_: object) -> None: ...

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        # A client that is killed breaks its connections.
        self._http.handle_error = lambda *_: None  # type: ignore[method-assign]
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()

    def handle(self, path: str, body: bytes) -> tuple[int, bytes]:
        if self.down:
            self.refused += 1
            return 503, b"{}"
        if path == "/graphql":
            asked = json.loads(body)
            return 200, json.dumps({"data": self._graphql(asked)}).encode()
        stream = re.fullmatch(r"/files/[^/]+/[^/]+/([^/]+)/file_stream", path)
        if stream:
            self._stream(self.runs[stream[1]], json.loads(body))
        elif path.startswith("/storage/"):
            self.files[path.removeprefix("/storage/")] = body
        return 200, b"{}"

    def _graphql(self, asked: dict[str, Any]) -> dict[str, Any]:
        query, given = asked["query"], asked.get("variables") or {}
        found = re.search(r"(?:query|mutation)\s+(\w+)", query)
        match found[1] if found else "":
            case "Viewer":
                user = {"id": "u", "entity": "me", "username": "me", "flags": "{}"}
                return {"viewer": {**user, "teams": {"edges": []}}}
            case "RunResumeStatus":
                return {"model": self._standing(given["name"])}
            case "UpsertBucket":
                return {"upsertBucket": self._upsert(given)}
            case "CreateRunFiles":
                files = [
                    {"name": f, "uploadUrl": f"{self.url}/storage/{given['run']}/{f}"}
                    for f in given["files"]
                ]
                return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
            case "ServerFeaturesQuery":
                return {"serverInfo": {"features": []}}
            case "ArtifactType":
                return {"project": {"artifact": None}}
            case "CreateArtifact":
                self.artifacts.append(given["input"])
                made = {"id": "a", "state": "COMMITTED"}
                return {"createArtifact": {"artifact": {**made, "artifactSequence": {"id": "s"}}}}
            case "NotifyScriptableRunAlert":
                self.runs[given["runName"]].alerts.append(given)
                return {"notifyScriptableRunAlert": {"success": True}}
        raise AssertionError(f"not known here: {query}")

    def _standing(self, name: str) -> dict[str, Any] | None:
        run = self.runs.get(name)
        if run is None:
            return None
        tail = [run.lines[max(run.lines)]] if run.lines else []
        bucket = {
            "id": "b",
            "name": name,
            "summaryMetrics": json.dumps(run.summary),
            "displayName": name,
            "logLineCount": 0,
            "historyLineCount": len(run.lines),
            "eventsLineCount": 0,
            "historyTail": json.dumps(tail),
            "eventsTail": "[]",
            "config": json.dumps(run.config),
            "tags": [],
            "notes": "",
            "wandbConfig": json.dumps({"t": 1}),
        }
        return {"id": "m", "name": "p", "entity": {"id": "e", "name": "me"}, "bucket": bucket}

    def _upsert(self, given: dict[str, Any]) -> dict[str, Any]:
        fresh = given["name"] not in self.runs
        run = self.runs.setdefault(given["name"], RemoteRun(given["name"]))
        run.settings |= {name: value for name, value in given.items() if value is not None}
        run.config = json.loads(given["config"] or "{}")
        project = {"id": "p", "name": given["project"], "entity": {"id": "e", "name": "me"}}
        bucket = {"id": "b", "name": run.name, "displayName": run.name, "project": project}
        return {"bucket": {**bucket, "historyLineCount": len(run.lines)}, "inserted": fresh}

    def _stream(self, run: RemoteRun, payload: dict[str, Any]) -> None:
        for name, chunk in (payload.get("files") or {}).items():
            if name == _HISTORY:
                for place, text in enumerate(chunk["content"], start=chunk["offset"]):
                    run.lines[place] = text
            elif name == _SUMMARY:
                run.summary = json.loads(chunk["content"][-1])
        if payload.get("complete"):
            run.exit_code = payload.get("exitcode", 0)
