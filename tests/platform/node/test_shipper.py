"""The shipper, against a server that answers with prepared bytes."""

from __future__ import annotations

import json
import time
from pathlib import Path

from lehr.base import procfs
from lehr.checkpoints.copies import Copy
from lehr.node import shipper
from lehr.node.attempt_dir import AttemptDir
from lehr.node.programs.saves import keep, saved_in
from lehr.node.shipper import REJECTED_S, Shipper
from lehr.node.torchrun import Gang
from lehr.node.uploader import Uploader
from lehr_testing.scripted_http import Scripted, reply
from lehr_trainer.contract import layout


def shipper_of(tmp_path: Path, *answers: bytes) -> tuple[Scripted, Shipper]:
    """Return a shipper with a line of a log to send, and its server."""
    attempt_dir = tmp_path / "attempt-1"
    attempt_dir.mkdir()
    (attempt_dir / "launcher.log").write_text("a line\n")
    (tmp_path / "run-1").mkdir()
    server = Scripted(list(answers))
    launch = {
        "gang": Gang(per_node=1)._asdict(),
        "attempt_dir": str(attempt_dir),
        "token": "secret",
        "server_url": f"http://127.0.0.1:{server.port}",
        "launched_at_boottime": 0.0,
    }
    return server, Shipper(AttemptDir(str(tmp_path / "run-1")), launch)


def heartbeat_reply(send_s: float, desired: str = "run") -> bytes:
    orders = {"desired": desired, "checkpoint_seq": 0}
    return reply(json.dumps({"orders": orders, "interval_s": 60, "send_s": send_s}).encode())


def requested(server: Scripted) -> list[str]:
    return [b" ".join(one.split(b" ")[:2]).decode().rpartition("/")[2] for one in server.requests]


def test_shipper_sends_as_often_as_the_server_asks(tmp_path):
    ends = [reply(b'{"offset": %d}' % end) for end in (7, 14, 21)]
    server, sender = shipper_of(
        tmp_path,
        reply(b'{"offsets": {}}'),
        heartbeat_reply(send_s=600),
        ends[0],
        heartbeat_reply(send_s=0.0001, desired="pause"),
        ends[1],
        ends[2],
        reply(b'{"closed": true}'),
    )
    assert [*sender.streams()] == [
        "events.jsonl",
        "rank-0.log",
        "launcher.log",
        "hang.log",
        "media.bin",
    ]
    log = tmp_path / "attempt-1" / "launcher.log"
    sender.launch["program"] = True
    (tmp_path / "attempt-1/checkpoints/step-00000001.tmp").mkdir(parents=True)
    sender.next_heartbeat = 0.0
    assert not sender.work()
    assert b'"copying": true' in server.requests[1]
    first = ["streams", "heartbeat", "launcher.log?offset=0"]
    assert requested(server) == first
    with log.open("a") as file:
        file.write("a line\n")
    assert not sender.work()  # It is not due.
    assert requested(server) == first
    sender.next_heartbeat = 0.0
    assert not sender.work()  # A stopping attempt does not wait as long.
    time.sleep(0.01)
    assert not sender.work()
    assert requested(server) == [*first, "heartbeat", "launcher.log?offset=7"]
    sender.next_send = time.monotonic() + 600
    with log.open("a") as file:
        file.write("a line\n")
    (tmp_path / "run-1" / "exit.json").write_text('{"code": 0}')
    assert sender.work()  # The end does not wait at all.
    server.listener.close()
    assert requested(server)[-2:] == ["launcher.log?offset=14", "exit"]


def test_heartbeat_has_the_step_of_events_that_another_shipper_has_sent(tmp_path):
    """Or that it has sent itself, and whose answer was lost: it asks for the offsets again."""
    events = b'{"kind": "metrics", "step": 20}\n'
    offsets = json.dumps({"offsets": {"events.jsonl": len(events), "launcher.log": 7}}).encode()
    server, sender = shipper_of(tmp_path, reply(offsets), heartbeat_reply(send_s=600))
    (tmp_path / "attempt-1/events.jsonl").write_bytes(events + b'{"kind": "metrics", "st')
    sender.next_heartbeat = 0.0
    assert not sender.work()
    server.listener.close()
    assert json.loads(server.requests[1].partition(b"\r\n\r\n")[2])["step"] == 20


def test_shipper_tells_once_that_a_stream_became_shorter_or_is_gone(tmp_path):
    server, sender = shipper_of(
        tmp_path,
        reply(b'{"offsets": {}}'),
        reply(b'{"offset": 7}'),
        heartbeat_reply(send_s=600),
        heartbeat_reply(send_s=600),
        reply(b'{"closed": true}'),
    )
    assert not sender.work()
    (tmp_path / "attempt-1" / "launcher.log").unlink()
    for _ in range(2):
        sender.next_heartbeat = 0.0
        assert not sender.work()
    (tmp_path / "run-1" / "exit.json").write_text('{"code": 0}')
    assert sender.work()
    server.listener.close()
    bodies = [json.loads(one.partition(b"\r\n\r\n")[2]) for one in server.requests[2:]]
    assert [body.get("shorter") for body in bodies] == [{"launcher.log": 0}, {}, None]
    assert [body["sizes"] for body in bodies] == [{"launcher.log": 0}] * 3


REJECTED = reply(b'{"detail": "the token is not this attempt"}', b"401 Unauthorized")


def test_ended_attempt_that_the_server_rejects_for_a_week_is_given_up(tmp_path):
    """The server was restored from a backup without it. Its shim waits for the delivery."""
    server, sender = shipper_of(tmp_path, REJECTED)
    sender.rejected_since = time.monotonic() - REJECTED_S
    assert not sender.gives_up()  # It still trains.
    (tmp_path / "run-1" / "exit.json").write_text('{"code": 0}')
    sender.run()
    server.listener.close()
    assert sender.entry.delivered
    sender.rejected_since = None
    assert not sender.gives_up()


def test_shipper_of_a_deleted_run_reports_the_exit_without_streams(tmp_path, monkeypatch):
    server, sender = shipper_of(
        tmp_path, reply(b'{"offsets": {}}'), reply(b"{}", b"410 Gone"), reply(b'{"closed": true}')
    )
    entry = sender.entry
    (tmp_path / "run-1" / "exit.json").write_text('{"code": 0}')
    monkeypatch.setattr(procfs, "send", lambda pid, number: True)
    assert sender.work()
    server.listener.close()
    assert b"PUT" in server.requests[1]
    report = json.loads(server.requests[2].partition(b"\r\n\r\n")[2])
    assert report == {"exit": {"code": 0}, "sizes": {}, "node_rank": 0}
    assert entry.stop_level() == ("kill", "its run was deleted")


def test_server_that_knows_the_attempt_again_gets_the_rest(tmp_path, monkeypatch):
    monkeypatch.setattr(shipper, "BACKOFF_S", (0.0, 0.0))
    rest = [b'{"offsets": {}}', b'{"offset": 7}', b'{"closed": true}']
    server, sender = shipper_of(tmp_path, REJECTED, *map(reply, rest))
    (tmp_path / "run-1" / "exit.json").write_text('{"code": 0}')
    sender.run()
    server.listener.close()
    assert requested(server) == ["streams", "streams", "launcher.log?offset=0", "exit"]
    assert sender.rejected_since is None


def test_replaced_checkpoint_is_copied_again(tmp_path):
    attempt, work = tmp_path / "run/attempt-1", tmp_path / "work"
    launch = {"run_dir": str(tmp_path / "run"), "attempt_dir": str(attempt), "token": "secret"}
    uploader = Uploader(AttemptDir(str(tmp_path)), {**launch, "upload": f"file://{tmp_path}/to"})
    uploader.report = lambda: True
    folder = layout.checkpoint_dir(attempt, 0)
    work.mkdir()
    for text in ("old", "newer"):
        (work / "a.pt").write_text(text)
        digest = keep(work, saved_in(work, [work]), folder, step=0, tokens=0, reason="x").digest
        assert uploader.waiting() == [folder]
        uploader.copy(folder)
        assert Copy(uploader.url(uploader.name(folder))).known().digest == digest
        assert uploader.waiting() == []


def test_reports_end_when_the_shipper_has_given_up(tmp_path):
    entry = AttemptDir(str(tmp_path))
    server = Scripted([reply(b"{}", b"401 Unauthorized")] * 2)
    uploader = Uploader(
        entry,
        {
            "upload": "file:///copies",
            "run_dir": str(tmp_path / "run"),
            "attempt_dir": str(tmp_path / "run" / "attempt-1"),
            "token": "secret",
            "server_url": f"http://127.0.0.1:{server.port}",
        },
    )
    uploader.set("attempt-1/checkpoints/step-00000001", "there", None, "there")
    assert not uploader.report()
    (tmp_path / "delivered").touch()
    assert uploader.report()
    server.listener.close()
