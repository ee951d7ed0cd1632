"""Checkpoints copied to a real S3 server by the real platform, and trainings that resume from them."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from lehr.node import procfs
from lehr.node.attempt_dir import AttemptDir
from lehr_testing.buckets import Bucket
from lehr_testing.fakes import paced
from lehr_testing.server import Server, events, free_port
from lehr_testing.specs import run as run_spec
from lehr_testing.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("restarted"),
]


def spec(corpus: Path, name: str, place: str, **changes):
    given = run_spec(corpus, name, **changes)
    return {**given, "checkpoints": {"upload": place}}


def copies(run) -> dict[int, str | None]:
    return {one.step: one.copy_state for one in run.checkpoints()}


def settled(server: Server, run_id: str) -> bool:
    return not list(server.home.glob(f"node/*/attempts/{run_id}-*"))


@pytest.mark.nightly  # The next test resumes from a copy.
def test_checkpoints_are_copied_retained_by_policy_and_can_be_downloaded(
    restarted: Server, bucket: Bucket, corpus: Path, tmp_path: Path
) -> None:
    client = restarted.client()
    run = client.submit(spec(corpus, "copied", f"{bucket.url}/exp/", steps=20)).wait(timeout_s=300)
    assert run.state == "completed", run.reason
    until(lambda: settled(restarted, run.id), within_s=120, what="the uploader's end")
    found = {one.step: one for one in run.checkpoints()}
    assert sorted(found) == [5, 10, 15, 20]
    there = [step for step, one in found.items() if one.copy_state == "there"]
    # The last two and the best, as on disk; removed ones are reported as removed.
    assert there == [step for step, one in found.items() if one.removed_at is None]
    assert {15, 20} <= set(there)
    assert found[20].latest
    assert "one of the last 2" in found[20].kept
    names = bucket.files()
    for step in there:
        prefix = f"exp/{run.id}/attempt-1/checkpoints/step-{step:08d}"
        assert found[step].copy_url == f"{bucket.url}/{prefix}"
        folder = restarted.home / "runs" / run.id / found[step].path
        assert [n for n in names if n.startswith(prefix)] == sorted(
            f"{prefix}/{path.name}" for path in folder.iterdir()
        )
    gone = set(found) - set(there)
    assert not any(f"step-{step:08d}" in name for step in gone for name in names)

    # Both places are verified; damage to one is found.
    verdict = run.verify_checkpoint(20)
    assert verdict.ok
    assert [place.place.partition(":")[0] for place in verdict.places][1:] == ["s3"]
    shutil.rmtree(restarted.home / "runs" / run.id)
    verdict = run.verify_checkpoint(20)
    assert verdict.ok
    assert len(verdict.places) == 1

    # The disk is wiped: the copy is downloaded, whole and in parts, and by the command line.
    folder = run.download_checkpoint(20, tmp_path / "have")
    names = {path.name for path in folder.iterdir()}
    assert {"manifest.json", "model.safetensors", "state.json"} <= names
    done = restarted.cli("checkpoints", "download", run.id, str(tmp_path / "cli"), "--json")
    report = json.loads(done.stdout)["downloaded"]
    assert report["step"] == 20
    assert (tmp_path / "cli" / "model.safetensors").read_bytes() == (
        folder / "model.safetensors"
    ).read_bytes()
    listed = restarted.cli("checkpoints", "ls", "copied").stdout
    assert f"{bucket.url}/exp/{run.id}" in listed
    assert restarted.cli("checkpoints", "verify", "copied", "--step", "20").returncode == 0

    # A fork begins from the copy.
    fork = run.fork(step=20, changes={"train.steps": 24}).wait(timeout_s=300)
    assert fork.state == "completed", fork.reason
    [resumed] = [e for e in events(restarted.home, f"{fork.id}-1") if e["kind"] == "resumed"]
    assert resumed["step"] == 20

    # Deletion shows what it frees, and removes the copies.
    preview = run.deletion()
    assert preview.copies_bytes == sum(found[step].size_bytes for step in there)
    run.delete()
    assert not any(f"/{run.id}/" in name for name in bucket.files())


@pytest.mark.nightly  # platform/checkpoints/test_copies.py copies and fetches.
def test_run_on_a_wiped_disk_resumes_from_the_copy_with_the_same_result(
    restarted: Server, bucket: Bucket, corpus: Path
) -> None:
    client = restarted.client()
    saving = {"checkpoint": {"every": 20}}
    whole = client.submit(spec(corpus, "whole", f"{bucket.url}/w", steps=400, **saving))
    wiped = spec(corpus, "wiped", f"{bucket.url}/w", steps=400, **saving)
    other = client.submit(paced(wiped, 0.1))
    until(
        lambda: any(s == "there" for s in copies(other).values()),
        within_s=200,
        what="a copy of a checkpoint",
    )
    [entry] = [
        AttemptDir(str(path)) for path in restarted.home.glob(f"node/*/attempts/{other.id}-1")
    ]
    launch = entry.launch()
    assert launch is not None
    # As if the machine were gone: all its processes at once, then its disk.
    os.kill(int(procfs.read_json(entry.file("shim.json"))["pid"]), signal.SIGKILL)
    for pid in procfs.marked(procfs.MARK, launch["nonce"]):
        os.kill(pid, signal.SIGKILL)
    kept = {step for step, state in copies(other).items() if state == "there"}
    shutil.rmtree(restarted.home / "runs" / other.id)
    other.wait(timeout_s=400)
    assert (other.state, other.attempt) == ("completed", 2), other.reason
    [resumed] = [e for e in events(restarted.home, f"{other.id}-2") if e["kind"] == "resumed"]
    assert resumed["step"] >= max(kept)
    whole.wait(timeout_s=400)
    ours, theirs = (
        next(one for one in run.checkpoints() if one.step == 400) for run in (other, whole)
    )
    digests = []
    for run, point in ((other, ours), (whole, theirs)):
        folder = restarted.home / "runs" / run.id / point.path
        manifest = json.loads((folder / "manifest.json").read_text())
        files = manifest["files"].items()
        digests.append({n: f["sha256"] for n, f in files if n.endswith(".safetensors")})
    assert digests[0] == digests[1]
    # What the lost attempt's disk held is no longer to be found, but its copies went by the policy.
    until(lambda: settled(restarted, other.id), within_s=120, what="the uploader's end")
    there = [step for step, state in copies(other).items() if state == "there"]
    assert 400 in there
    assert len(there) <= 3


@pytest.mark.nightly  # It starts a server and a Ray of its own.
def test_down_copies_saved_checkpoints_and_reports_uncopied_ones(
    restarted: Server, bucket: Bucket, corpus: Path, tmp_path: Path
) -> None:
    server = Server(tmp_path / "home", gpus=2)
    server.environment.update(bucket.environment)
    client = server.up()
    try:
        server.cluster_ready()
        # It saves only at its stop, so the checkpoint to copy is created by `down`.
        rarely = {"steps": 100_000, "checkpoint": {"every": 0}}
        near = client.submit(paced(spec(corpus, "near", f"{bucket.url}/down", **rarely)))
        far = spec(corpus, "far", "s3://away/down", **rarely)
        far["env"] = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
        far = client.submit(paced(far))
        for run in (near, far):
            until(lambda r=run: (r.refresh().step or 0) > 2, within_s=200, what="both to train")
        report = json.loads(server.cli("down", "--json").stdout)
        assert report["runs"]["saved"] == 2
        assert report["uncopied"] == {"s3://away/down": len(on_disk(server, far.id))}
        # Only its own processes: the other server of this machine and its Ray still run.
        assert restarted.client().cluster().gpus_total == restarted.gpus
        for saved in on_disk(server, near.id):
            prefix = f"down/{near.id}/attempt-1/checkpoints/{saved.name}/"
            names = [n.removeprefix(prefix) for n in bucket.files() if n.startswith(prefix)]
            assert names == sorted(path.name for path in saved.iterdir())
        # After the next `up` it is in the record, too.
        client = server.up()
        last = max(int(path.name.rpartition("-")[2]) for path in on_disk(server, near.id))
        until(
            lambda: copies(client.run(near.id)).get(last) == "there",
            within_s=120,
            what="the copy to be recorded",
        )
        for run in (near, far):
            client.run(run.id).cancel()
        until(
            lambda: all(client.run(r.id).state == "cancelled" for r in (near, far)),
            within_s=120,
            what="both to be cancelled",
        )
    finally:
        output = server.cli("down").stdout
    assert "not copied to s3://away/down yet" in output
    assert "the next lehr up continues copying" in output


def on_disk(server: Server, run_id: str) -> list[Path]:
    """Return the complete checkpoints of the first attempt."""
    return list((server.home / "runs" / run_id).glob("attempt-1/checkpoints/step-????????"))
