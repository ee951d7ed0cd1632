"""A run's code whose trainer this Lehr cannot drive: of another version of the protocol."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from lehr.code import archive, code_cache
from lehr.code.archive import SourceFile
from lehr.code.collect import trainer_sources
from lehr.node import attempt_code
from lehr.node.attempt_dir import AttemptDir
from lehr.node.shim import Shim
from lehr_trainer.contract import protocol as own


def test_version_is_read_from_the_text_of_the_capsule() -> None:
    text = Path(own.__file__).read_text(encoding="utf-8")
    assert attempt_code.version_of(text) == own.VERSION
    assert attempt_code.problem(text, (own.OLDEST, own.VERSION)) is None
    assert attempt_code.FILE in {source.name for source in trainer_sources()}
    for odd in ("", "VERSION = 'x'\n", "OLDEST = 3\n", "VERSION = 9999999999\n", "\0"):
        assert attempt_code.version_of(odd) == 1


@pytest.mark.parametrize(
    ("version", "driven", "message"),
    [
        (1, (2, 4), "has version 1 of the protocol .* drives versions 2 to 4. Train it with the"),
        (5, (2, 4), "has version 5 of the protocol .* drives versions 2 to 4. Upgrade Lehr, or"),
        (5, (4, 4), "this Lehr drives version 4. Upgrade Lehr, or fork it with --code current"),
    ],
)
def test_trainer_that_is_too_old_or_too_new_is_named_with_the_remedy(version, driven, message):
    found = attempt_code.problem(f"# ...\nVERSION = {version}\nOLDEST = 1\n", driven)
    assert found is not None
    assert re.search(message, found)


def unpacked(tmp_path: Path, text: str | None) -> tuple[AttemptDir, dict]:
    """Return an attempt on a node that has unpacked a capsule with this protocol.py, or without."""
    (tmp_path / "protocol.py").write_text(text or "")
    name = attempt_code.FILE if text is not None else "project/train.py"
    with (tmp_path / "sent.tar").open("wb") as output:
        source = SourceFile(name, str(tmp_path / "protocol.py"), False)
        digest, _ = archive.write([source], output)
    folder = tmp_path / "node/attempts/r-1"
    folder.mkdir(parents=True)
    archive.unpack(tmp_path / "sent.tar", code_cache.folder(str(tmp_path / "node"), digest))
    launch = {
        "run_dir": str(tmp_path / "run"),
        "attempt_dir": str(tmp_path / "run/attempt-1"),
        "gang": {"per_node": 1},
        "env": {},
        "nonce": "test-of-a-protocol",
        "code": digest,
        "protocols": [2, 3],
    }
    (folder / "launch.json").write_text(json.dumps(launch))
    return AttemptDir(str(folder)), launch


@pytest.mark.parametrize(
    ("text", "refused"),
    [("VERSION = 2\n", False), ("VERSION = 3\n", False), ("VERSION = 1\n", True), (None, True)],
)
def test_attempt_starts_only_with_a_trainer_that_is_driven(tmp_path, monkeypatch, text, refused):
    entry, launch = unpacked(tmp_path, text)
    shim = Shim(entry, launch)
    steps: list[object] = []
    for name in ("take_gpus", "prepare", "fetch_code"):
        monkeypatch.setattr(shim, name, lambda: None)
    for name in ("start_shipper", "start_uploader", "wait_for_trainer", "deliver"):
        monkeypatch.setattr(shim, name, lambda: None)
    monkeypatch.setattr(shim, "start_trainer", lambda: steps.append("trainer"))
    monkeypatch.setattr(shim, "end", lambda failure, _: steps.append(failure))
    shim.run()
    if not refused:
        assert steps == ["trainer", ("", "")]
        return
    [(reason, detail)] = steps
    assert reason == "other_protocol"
    assert "has version 1 of the protocol" in detail
