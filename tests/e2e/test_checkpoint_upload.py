"""Checkpoints copied to a real S3 server by the real platform, and trainings that resume from them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lehr_testing.buckets import Bucket
from lehr_testing.fakes import paced
from lehr_testing.server import Server, free_port
from lehr_testing.specs import run as run_spec
from lehr_testing.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("platform"),
]


def spec(corpus: Path, name: str, place: str, **changes):
    given = run_spec(corpus, name, **changes)
    return {**given, "checkpoints": {"upload": place}}


def copies(run) -> dict[int, str | None]:
    return {one.step: one.copy_state for one in run.checkpoints()}


def settled(server: Server, run_id: str) -> bool:
    return not list(server.home.glob(f"node/*/attempts/{run_id}-*"))


@pytest.mark.nightly  # It starts a server and a Ray of its own.
def test_down_copies_saved_checkpoints_and_reports_uncopied_ones(
    server: Server, bucket: Bucket, corpus: Path, tmp_path: Path
) -> None:
    other, server = server, Server(tmp_path / "home", gpus=2)
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
        assert other.client().cluster().gpus_total == other.gpus
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
