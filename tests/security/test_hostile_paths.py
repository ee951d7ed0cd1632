"""Hostile strings in every field that names a file, a folder, a place or an object.

The attacker has a user's token, or the token of an attempt. No answer is a server error, none has a
file's content or a token, and no file outside the server's own is made, changed or removed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lehr.specs import load_spec
from lehr_testing.api import RUN_SPEC, TOKEN, api_client, attempt_token, begin, line, started
from lehr_testing.asgi import Answer, Request, ask
from lehr_testing.buckets import make_checkpoint
from lehr_testing.paths import ROOT

STEP = "attempt-1/checkpoints/step-00000005"
_TARGETS = (
    "etc/passwd",
    "proc/self/environ",
    "token",
    "lehr.db",
    "victim/manifest.json",
    STEP,
)
_WAYS = (
    *("../" * depth for depth in (1, 2, 3, 6, 12)),
    *("a/../../", "attempt-1/../../", "attempt-1/checkpoints/step-00000005/../../../../"),
    *("/", "//", "/./", "..//", "....//", "..\\", "\\\\host\\share\\", "C:\\"),
    *("%2e%2e/", "..%2f", "..%252f", "%c0%ae%c0%ae/", "..;/", "\uff0e\uff0e/", "..\u2215"),
    *("file:///", "s3://bucket/", "http://169.254.169.254/", "~/", "$HOME/", "\x00/", "..\x00/"),
)
_ODD = (
    *(".", "..", "...", "-rf", "~", "*", "?", "[a-z]*", "{a,b}", " ", "\t", "a\nb", "\x00"),
    *("a\r\nSet-Cookie: lehr=1", "\x1b[2J", "\u202egpj.exe", "\u200b", "$(id)", "`id`", ";id"),
    *("a'b", 'a"b', "' OR 1=1 --", '"; DROP TABLE runs; --', "%", "%s%n", "_", "{{7*7}}"),
    *("<script>alert(1)</script>", "javascript:alert(1)", "__proto__", "nul", "-1", "1e400"),
    *("9" * 400, "a" * 5000, "\U0001f4a9" * 300),
    *(f"{STEP}/", f"{STEP}\n", f"{STEP}/more", "attempt-1", "attempt-1//checkpoints/step-00000005"),
    *(f"attempt-{n}/checkpoints/step-00000005" for n in ("0", "01")),
    *(f"attempt-1/{name}" for name in ("profiles/step-00000005", "checkpoints/step-0000005")),
    "attempt-\u0661/checkpoints/step-00000005",
    "attempt-1/checkpoints/step-\u0660\u0660\u0660\u0660\u0660\u0660\u0660\u0665",
)
PATHS = tuple(dict.fromkeys([*(way + target for way in _WAYS for target in _TARGETS), *_ODD]))
OTHERS = ("attempt-2/checkpoints/step-00000005", "attempt-1/checkpoints/step-00000006")
"""Paths of another attempt and of another step: well formed, and not of this checkpoint."""
WORST = (
    "../../../etc/passwd",
    "/etc/passwd",
    "..",
    "%2e%2e%2ftoken",
    "..\\token",
    "a\x00",
    "a\r\nSet-Cookie: lehr=1",
    "$(id)",
    "<script>alert(1)</script>",
    "' OR 1=1 --",
    "*",
    "a" * 5000,
)


PROBLEM = "application/problem+json"
CANARY = "canary-of-a-file"
_PARAMETER = re.compile(r"\{(\w+)\}")


def operations() -> list[tuple[str, str]]:
    """Every operation with a parameter in its path, as method and path."""
    described = json.loads((ROOT / "docs/openapi.json").read_text())["paths"]
    return [
        (method.upper(), path)
        for path, methods in described.items()
        for method in methods
        if "{" in path
    ]


@dataclass
class Scene:
    api: Any
    client: Any
    root: Path
    run: str

    @property
    def attempt(self) -> str:
        return f"{self.run}-1"

    def ask(self, *requests: Request) -> list[Answer]:
        return ask(self.client, self.api.app, requests)

    def of_worker(self, method: str, path: str, body: bytes = b"", query: str = "") -> Request:
        url = f"/api/v1/attempts/{self.attempt}/{path}"
        return Request(method, url, attempt_token(self.run), [body], query=query)

    def send(self, *lines: bytes) -> None:
        offset = self.api.store.streams.sizes(self.attempt).get("events.jsonl", 0)
        request = self.of_worker(
            "PUT", "streams/events.jsonl", b"".join(lines), query=f"offset={offset}"
        )
        [answer] = self.ask(request)
        assert answer.status == 200, answer.body
        self.api.store.event_applier.apply(self.attempt)

    def outside(self) -> dict[str, bytes]:
        """The files that are none of the server's, with their content."""
        return {
            str(path.relative_to(self.root)): path.read_bytes() if path.is_file() else b""
            for path in self.root.rglob("*")
            if "home" not in path.relative_to(self.root).parts
        }


@pytest.fixture
def scene(tmp_path, caplog):
    make_checkpoint(tmp_path / "victim", step=5)
    (tmp_path / "victim" / "secret").write_text(CANARY)
    (tmp_path / "token").write_text(CANARY)
    with api_client(tmp_path / "home") as (api, client):
        place = {"checkpoints": {"upload": f"file://{tmp_path}/copies"}}
        run = api.store.runs.create(load_spec({**RUN_SPEC, **place}))
        begin(api.store, run.id)
        scene = Scene(api, client, tmp_path, run.id)
        scene.send(started())
        before = scene.outside()
        yield scene
        assert scene.outside() == before
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        for token in (TOKEN, attempt_token(run.id)):
            assert token not in caplog.text


def check(scene: Scene, request: Request, answer: Answer, *kinds: str) -> None:
    what = f"{request.method} {request.path[:200]!r}: {answer.status} {answer.body[:300]!r}"
    assert 400 <= answer.status < 500, what
    assert answer.headers["content-type"] in (kinds or (PROBLEM,)), what
    assert answer.headers["x-content-type-options"] == "nosniff", what
    assert len(answer.body) < 20_000, what
    for secret in (CANARY, "root:x:", "PATH=", TOKEN, attempt_token(scene.run)):
        assert secret.encode() not in answer.body, what
    assert not {name for name in answer.headers if name == "set-cookie"}, what


def filled(scene: Scene, path: str, which: str, text: str) -> str:
    sound = {
        "ref": scene.run,
        "attempt_id": scene.attempt,
        "name": "rank-0.log",
        "step": "5",
        "node": "n1",
    }
    return _PARAMETER.sub(lambda m: text if m[1] == which else sound.get(m[1], "x"), path)


def requests(scene: Scene, method: str, path: str, which: str, texts) -> list[Request]:
    token = attempt_token(scene.run) if "/attempts/" in path else TOKEN
    return [
        Request(method, filled(scene, path, which, text), token, [b"{}"], query="offset=0")
        for text in texts
    ]


def test_no_route_follows_a_hostile_name(scene):
    asked = [
        request
        for method, path in operations()
        for which in _PARAMETER.findall(path)
        for request in requests(scene, method, path, which, WORST)
    ]
    assert len(asked) > 500
    for request, answer in zip(asked, scene.ask(*asked), strict=True):
        check(scene, request, answer)


def test_no_static_file_outside_the_dashboard_is_served(scene):
    asked = [Request("GET", f"/static/{text}") for text in PATHS]
    for request, answer in zip(asked, scene.ask(*asked), strict=True):
        if answer.status == 307:  # The same name with a slash at its end, on this server.
            assert re.fullmatch(
                r"http://127\.0\.0\.1:5347/static/[!-~]*/", answer.headers["location"]
            )
        else:
            check(scene, request, answer, "text/plain; charset=utf-8", PROBLEM)


@pytest.mark.parametrize("kind", ["checkpoint", "checkpoint_removed"])
def test_no_hostile_path_in_a_record_changes_a_checkpoint(scene, kind):
    record = {"step": 5, "size_bytes": 1, "digest": "d"}
    scene.send(line("checkpoint", path=STEP, **record))
    scene.send(*(line("checkpoint", path=path, **record) for path in OTHERS))
    scene.send(*(line(kind, path=path, **record) for path in PATHS if path != STEP))
    rows = scene.api.store.checkpoints.of_run(scene.run, removed=True)
    assert [(row.path, row.removed_at) for row in rows] == [(STEP, None)]


def test_no_hostile_path_or_url_of_a_copy_is_recorded(scene):
    scene.send(line("checkpoint", step=5, path=STEP, size_bytes=1, digest="d"))
    sound = f"file://{scene.root}/copies/{scene.run}/{STEP}"
    asked = []
    for text in PATHS:
        if text != STEP:
            asked.append({"path": text, "url": f"file://{scene.root}/copies/{scene.run}/{text}"})
        asked.append({"path": STEP, "url": text})
    asked += [{"path": STEP, "url": f"{sound}/{text}"} for text in WORST]
    bodies = [json.dumps({"copies": [{**copy, "state": "there"}]}).encode() for copy in asked]
    for copy, answer in zip(
        asked, scene.ask(*(scene.of_worker("POST", "copies", body) for body in bodies)), strict=True
    ):
        assert answer.status == 422, copy
    [row] = scene.api.store.checkpoints.of_run(scene.run)
    assert (row.copy_url, row.copy_state) == (None, None)


def test_hostile_names_of_streams_in_a_heartbeat_and_an_exit_make_no_files(scene):
    sizes = dict.fromkeys(PATHS, 1)
    exit_ = {"code": 1, "reason": PATHS[0], "detail": PATHS[1], "boot_id": PATHS[2], **sizes}
    beat, ended = scene.ask(
        scene.of_worker("POST", "heartbeat", json.dumps({"sizes": sizes}).encode()),
        scene.of_worker("POST", "exit", json.dumps({"exit": exit_, "sizes": sizes}).encode()),
    )
    assert (beat.status, ended.status) == (200, 200)
    replica = scene.root / "home" / "replica"
    made = {str(path.relative_to(replica)) for path in replica.rglob("*") if path.is_file()}
    assert made == {f"{scene.attempt}/events.jsonl"}
