"""An S3 server on the loopback, with a bucket; and checkpoints to copy, made of plain files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KEYS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    # Of a machine's own, which must not reach the tests.
    "AWS_PROFILE": "",
    "AWS_SESSION_TOKEN": "",
}


@dataclass
class Bucket:
    server: Any
    address: str
    name: str = "bucket"

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    @property
    def environment(self) -> dict[str, str]:
        given = {name: value for name, value in KEYS.items() if value}
        return {**given, "AWS_ENDPOINT_URL": self.address}

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
def s3_server(port: int = 0) -> Iterator[Bucket]:
    """moto's, on a port of its own; this process finds it by its environment, too."""
    from moto.server import ThreadedMotoServer

    before = {name: os.environ.get(name) for name in [*KEYS, "AWS_ENDPOINT_URL"]}
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False)
    server.start()
    host, bound = server.get_host_and_port()
    bucket = Bucket(server, f"http://{host}:{bound}")
    for name in before:
        os.environ.pop(name, None)
    os.environ.update(bucket.environment)
    try:
        bucket.filesystem().mkdir(bucket.name)
        yield bucket
    finally:
        server.stop()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


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
