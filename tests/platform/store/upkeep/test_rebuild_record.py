"""A lost lehr.db is made again from the replica and the folders of the runs."""

from __future__ import annotations

import errno
import json
import shutil
from pathlib import Path
from typing import IO, Any

import pytest

from lehr.base import home as homes
from lehr.control.lifecycle import Desired
from lehr.errors import HomeUnusable
from lehr.store import Store
from lehr.store.upkeep import backup
from lehr.store.upkeep.integrity import check
from lehr_testing.dispatching import Bench
from lehr_testing.stores import ingest, line, metrics, picture, same


@pytest.fixture
def bench(tmp_path, monkeypatch):
    made = Bench(tmp_path, monkeypatch, gpus=4)
    yield made
    made.store.close()


def trained(bench: Bench, name: str, *last: bytes, **changes: Any) -> str:
    """Train to step 5, with a checkpoint and the files that a shim writes; return the attempt."""
    attempt = bench.running(name, **changes)[1]
    starts = [one["launch"] for op, one in bench.asked if op == "start"]
    launch = next(one for one in starts if one["attempt_id"] == attempt)
    for path, text in launch["files"].items():
        file = Path(launch["run_dir"]) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    saved = {"path": "attempt-1/checkpoints/step-00000005", "size_bytes": 1, "digest": "d"}
    ingest(bench.store, attempt, *[metrics(n, train_loss=1 / n) for n in range(1, 6)])
    ingest(bench.store, attempt, line("checkpoint", 6.0, step=5, **saved), *last)
    bench.tick()
    return attempt


def ended(bench: Bench, attempt: str, *last: bytes, **note: Any) -> None:
    ingest(bench.store, attempt, *last)
    report = {"code": 0, "signal": None, "reason": "", "detail": "", "ended_at": 9.0} | note
    folder = homes.runs_dir(bench.home) / attempt[:-2] / "attempt-1"
    (folder / "exit.json").write_text(json.dumps(report))
    bench.exited(attempt, **report)
    bench.tick()


def lose_and_rebuild(bench: Bench) -> backup.Rebuilt:
    bench.store.close()
    (bench.home / "lehr.db").unlink()
    with pytest.raises(HomeUnusable, match=r"lehr\.db is missing"):
        Store.open(bench.home)
    return backup.rebuild(bench.home)


def facts(store: Store, run_id: str) -> dict[str, Any]:
    run = store.runs.get(run_id)
    names = ("name", "project", "tags", "note", "state", "desired", "attempt", "claim")
    found = {name: getattr(run, name) for name in (*names, "spec", "created_at", "submitted_by")}
    found["attempts"] = [
        (one.id, one.placement, one.token_sha256, one.open, (one.exit or {}).get("reason"))
        for one in store.attempts.of_run(run_id)
    ]
    found["checkpoints"] = [(one.path, one.digest) for one in store.checkpoints.of_run(run_id)]
    return found


def test_ended_runs_are_as_before_and_living_ones_go_on(bench: Bench) -> None:
    stopped = line("finished", 8.0, step=5, outcome="stopped")
    finished = line("finished", 8.0, step=5, outcome="completed")
    completed = trained(bench, "completed", project="other", tags=["x"], notes="why")
    ended(bench, completed, finished)
    paused = trained(bench, "paused", hypothesis="it lowers val/loss", baseline="k3f9x2ab")
    bench.store.requests.set_desired(paused[:-2], Desired.PAUSE, actor="ada")
    bench.tick()
    ended(bench, paused, line("stopping", 7.0, step=5, reason="pause"), stopped)
    failed = trained(bench, "failed", retries={"infrastructure": 0})
    ended(bench, failed, code=None, signal=9, reason="shim_lost", detail="its launcher was killed")
    living = trained(bench, "living", env={"KEY": "hidden"})
    ids = [one[:-2] for one in (completed, paused, failed, living)]
    before = {run_id: facts(bench.store, run_id) for run_id in ids}
    curves = {run_id: picture(bench.store, run_id) for run_id in ids}

    record = lose_and_rebuild(bench).record
    assert sorted(record.runs) == sorted(ids)
    assert (record.living, record.variables) == ([ids[3]], [ids[3]])
    assert not [one for one in check(bench.home) if one.level == "error"]
    bench.store = Store.open(bench.home, clock=bench.clock)
    before[ids[3]]["spec"]["env"] = {}
    for run_id in ids:
        assert facts(bench.store, run_id) == before[run_id]
        assert same(picture(bench.store, run_id), curves[run_id])

    bench._begin()
    bench.dispatcher.enqueue_all()
    waiting = bench.waiting()
    bench.asked.clear()
    for _ in range(10):
        bench.tick(60.0)
        answer = bench.heartbeat(living, step=6)
        assert (answer["fenced"], answer["orders"]["desired"]) == (False, "run")
    assert bench.asked == []
    assert "lehr db release" in (bench.store.runs.get(waiting).pending_reason or "")
    bench.exited(living, finished={"outcome": "completed", "step": 10})
    bench.tick()
    assert bench.state(ids[3])[0] == "completed"
    assert homes.release(bench.home)
    bench.tick()
    assert [op for op, _ in bench.asked] == ["start"]


def test_run_without_a_folder_is_left_out(bench: Bench) -> None:
    known, bare = trained(bench, "known"), trained(bench, "bare")
    (homes.runs_dir(bench.home) / bare[:-2]).rename(bench.home / "elsewhere")
    record = lose_and_rebuild(bench).record
    assert (record.runs, record.left_out) == ([known[:-2]], [bare[:-2]])
    assert (bench.home / "replica" / bare / "events.jsonl").is_file()


def test_interrupted_copy_of_a_stream_is_no_stream_and_a_link_is_left_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = trained(bench, "one")
    folder = homes.runs_dir(bench.home) / attempt[:-2] / "attempt-1"
    (folder / "rank-0.log").write_text("all of it\n")
    (folder / "newest.log").symlink_to("rank-0.log")

    def copy_a_part(source: IO[bytes], target: IO[bytes]) -> None:
        target.write(source.read(3))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", copy_a_part)
        with pytest.raises(OSError, match="No space left"):
            lose_and_rebuild(bench)
    backup.rebuild(bench.home)
    assert (bench.home / "replica" / attempt / "rank-0.log").read_text() == "all of it\n"
    assert not (bench.home / "replica" / attempt / "newest.log").exists()
