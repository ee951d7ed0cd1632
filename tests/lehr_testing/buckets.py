"""An S3 server on the loopback, with a bucket; and checkpoints to copy, made of plain files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest


@dataclass
class Bucket:
    """A bucket with a unique name: all servers of one process hold the same buckets."""

    address: str
    name: str = field(default_factory=lambda: f"bucket-{uuid4().hex[:8]}")

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process finds it."""
        return {
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_ENDPOINT_URL": self.address,
        }

    def filesystem(self) -> Any:
        import s3fs

        return s3fs.S3FileSystem(
            endpoint_url=self.address,
            key="testing",
            secret="testing",
            use_listings_cache=False,
            skip_instance_cache=True,
        )

    def files(self) -> list[str]:
        """Every object's name, without the bucket."""
        found = self.filesystem().find(self.name)
        return sorted(path.removeprefix(f"{self.name}/") for path in found)


@contextmanager
def s3_server(port: int = 0, bucket: str | None = None) -> Iterator[Bucket]:
    """Serve a new bucket with moto, on a port of its own. The environment is not changed."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    try:
        host, bound = server.get_host_and_port()
        address = f"http://{host}:{bound}"
        made = Bucket(address, bucket) if bucket else Bucket(address)
        made.filesystem().mkdir(made.name)
        yield made
    finally:
        server.stop()


@contextmanager
def found_by_environment(bucket: Bucket) -> Iterator[None]:
    """Let this process open ``s3://`` at the bucket's server, as a node's processes do."""
    import s3fs

    # s3fs keeps a connected file system for the next call with the same arguments.
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in bucket.environment.items():
            patch.setenv(name, value)
        yield
    s3fs.S3FileSystem.clear_instance_cache()


def make_checkpoint(folder: Path, *, step: int, size: int = 1000) -> str:
    """A checkpoint of random bytes, with a true manifest; the manifest's digest."""
    draft = folder.with_name(f"{folder.name}.tmp")
    draft.mkdir(parents=True)
    files = {"model.safetensors": os.urandom(size), "state.json": json.dumps({"n": step}).encode()}
    for name, content in files.items():
        (draft / name).write_bytes(content)
    manifest = {
        "format": 1,
        "step": step,
        "tokens": step * 10,
        "val_loss": None,
        "reason": "interval",
        "files": {
            name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
            for name, content in files.items()
        },
    }
    content = json.dumps(manifest).encode()
    (draft / "manifest.json").write_bytes(content)
    draft.rename(folder)
    return hashlib.sha256(content).hexdigest()
