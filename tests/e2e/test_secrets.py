"""A secret that a spec names reaches the training, and no file that the platform keeps."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import yaml

pytestmark = [
    pytest.mark.nightly,  # tests/api/test_secrets.py and node/test_attempt_secrets.py hold each part.
    pytest.mark.timeout(300),
    pytest.mark.xdist_group("platform"),
]

SCRIPT = """
import hashlib, os
import lehr_log
digest = hashlib.sha256(os.environ["API_KEY"].encode()).hexdigest()
for step in range(1, 4):
    lehr_log.log({"train/loss": 1.0 / step}, step=step)
print("digest", digest)
"""
VALUE = "a-value-that-no-file-may-hold"


def test_secret_reaches_the_training_and_no_file(server, tmp_path):
    client = server.client()
    client.set_secret("api-key", VALUE)
    (tmp_path / "script.py").write_text(SCRIPT)
    spec = {
        "kind": "run",
        "name": "with-secret",
        "trainer": {"script": "script.py", "steps": 3},
        "code": {"include": ["script.py"]},
        "secrets": {"API_KEY": "api-key"},
        "resources": {"gpus": 1},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(spec))
    run = client.submit(tmp_path / "run.yaml")
    run.wait(timeout_s=120)
    assert run.state == "completed", run.refresh().view
    log = "".join(run.logs())
    assert f"digest {hashlib.sha256(VALUE.encode()).hexdigest()}" in log
    contents = {path: content(path) for path in server.home.rglob("*") if path.is_file()}
    assert len(contents) > 20
    holding = [path.name for path, text in contents.items() if VALUE.encode() in text]
    assert holding == ["secrets.json"]


def content(path: Path) -> bytes:
    """What a file of a server at work has; nothing if it has gone since it was listed."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
