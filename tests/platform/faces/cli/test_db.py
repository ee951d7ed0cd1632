"""``lehr db``: output, exit codes and JSON on a real home, beside a process that writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from lehr.base import home as homes
from lehr.store import Store
from lehr.store.upkeep.integrity import check
from lehr_testing import cli
from lehr_testing.stores import fresh_store, ingest, line, metrics, new_attempt, run_spec

LEHR = str(Path(sys.executable).parent / "lehr")


def lehr(home: Path, *args: str) -> cli.CommandResult:
    return cli.call("db", *args, cwd=home.parent, LEHR_HOME=str(home))


def process(home: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run `lehr db` in a process of its own, as beside a real server."""
    return subprocess.run(
        [LEHR, "db", *args],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "LEHR_HOME": str(home), "PYTHONUTF8": "1"},
    )


def recorded_attempt(store: Store) -> str:
    attempt = new_attempt(store, "told")
    ingest(
        store, attempt.id, line("started"), *[metrics(n, train_loss=1 / n) for n in range(1, 20)]
    )
    store.event_applier.apply(attempt.id)
    return attempt.id


def test_check_of_a_sound_home_has_no_findings_beside_a_server(store: Store) -> None:
    recorded_attempt(store)
    done = lehr(store.home, "check", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"home": str(store.home), "ok": True, "findings": []}
    assert "no damage found" in lehr(store.home, "check").stdout


def test_check_names_the_damage_and_exits_with_1(store: Store) -> None:
    attempt = recorded_attempt(store)
    path = store.home / "replica" / attempt / "events.jsonl"
    os.truncate(path, 10)
    done = lehr(store.home, "check")
    assert done.returncode == 1
    assert f"error  {attempt}/events.jsonl: has 10 of the" in done.stdout
    assert "1 error" in done.stdout
    assert "lehr db rebuild" in done.stderr


def test_a_backup_taken_while_another_process_writes_restores_clean(
    store: Store, tmp_path: Path
) -> None:
    attempt = recorded_attempt(store)
    stop = threading.Event()
    written = [19]

    def write() -> None:
        while not stop.is_set():
            written[0] += 1
            ingest(store, attempt, metrics(written[0], train_loss=1.0))
            store.event_applier.apply(attempt)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        done = process(store.home, "backup", str(tmp_path / "kept"), "--json")
    finally:
        stop.set()
        writer.join()
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)["backup"]
    assert (made["runs"], made["folder"]) == (1, str(tmp_path / "kept"))
    other = tmp_path / "other"
    assert lehr(other, "restore", str(tmp_path / "kept")).returncode == 0
    assert [one for one in check(other) if one.level == "error"] == []
    with Store.open(other) as restored:
        steps = restored.series.read(attempt[:-2], "train/loss", exact=True).step
    assert steps == list(range(1, len(steps) + 1))
    assert 19 <= len(steps) <= written[0]


def test_lost_record_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with fresh_store(home) as store:
        recorded_attempt(store)
    (home / "lehr.db").unlink()
    for command in (["check"], ["backup", str(tmp_path / "kept")]):
        done = lehr(home, *command)
        assert done.returncode == 2
        assert f"lehr.db is missing, but it has left 1 run in {home / 'replica'}" in done.stderr


def test_rebuild_of_a_lost_record_lists_what_it_cannot_know(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with fresh_store(home) as store:
        run_id = recorded_attempt(store)[:-2]
    (home / "lehr.db").unlink()
    folder = homes.runs_dir(home) / run_id / "attempt-1"
    folder.mkdir(parents=True)
    record = {"spec": run_spec().model_dump(mode="json")}
    (folder / "launch.json").write_text(json.dumps({"record": record}))
    done = lehr(home, "rebuild")
    assert done.returncode == 0, done.stderr
    for text in (f"{run_id}: may be training", "people's tokens"):
        assert text in done.stdout
    assert "lehr db release" in (homes.held(home) or "")
    assert json.loads(lehr(home, "release", "--json").stdout) == {"released": True}
    assert homes.held(home) is None
    assert json.loads(lehr(home, "rebuild", "--json").stdout)["record"] is None


def test_rebuild_with_a_stopped_server(tmp_path: Path) -> None:
    with fresh_store(tmp_path / "home") as store:
        recorded_attempt(store)
    done = lehr(tmp_path / "home", "rebuild", "--json")
    assert done.returncode == 0, done.stderr
    rebuilt = json.loads(done.stdout)["rebuilt"]
    assert (rebuilt["streams"], rebuilt["records"], rebuilt["points"]) == (1, 1, 19)
    assert "19 points" in lehr(tmp_path / "home", "rebuild").stdout


def test_restore_over_a_home_needs_replace_and_keeps_the_old_files(tmp_path: Path) -> None:
    home, kept = tmp_path / "home", tmp_path / "kept"
    with fresh_store(home) as store:
        recorded_attempt(store)
    assert lehr(home, "backup", str(kept)).returncode == 0
    done = lehr(home, "restore", str(kept))
    assert done.returncode == 2
    assert "Add --replace" in done.stderr
    done = lehr(home, "restore", str(kept), "--replace", "--json")
    assert json.loads(done.stdout)["backup"]["runs"] == 1
    assert [path.name for path in home.glob("replaced-*/lehr.db")] == ["lehr.db"]
