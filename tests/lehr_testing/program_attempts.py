"""Attempts of a user's program, without a server: each supervised as the shim would start it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import yaml

import lehr_log
from lehr_trainer.contract import layout
from lehr_trainer.contract.orders import LaunchNote, Orders
from lehr_trainer.contract.records import record_adapter


def prepare_chars(root: Path) -> None:
    """Write the data of the script `nano.py` below ``root``, as nanoGPT's prepare.py does."""
    import numpy as np

    folder = root / "data/chars"
    folder.mkdir(parents=True, exist_ok=True)
    tokens = np.frombuffer(b"to be or not to be, that is the question. " * 50, dtype=np.uint8)
    tokens[:1800].astype(np.uint16).tofile(folder / "train.bin")
    tokens[1800:].astype(np.uint16).tofile(folder / "val.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 128}))


class Attempts:
    """Attempts of one run of a program, each supervised as the shim would start it."""

    def __init__(self, folder: Path, *, limit_s: float | None = 200) -> None:
        self._limit_s = limit_s
        self.run = folder / "run"
        self.run.mkdir()
        self.capsule = folder / "capsule"
        (self.capsule / "project").mkdir(parents=True)
        # The module of this working tree, whatever is installed.
        (self.capsule / "trainer").mkdir()
        (self.capsule / "trainer/lehr_log").symlink_to(Path(lehr_log.__file__).parent)
        self.number = 0
        self.root = folder / "root"
        """Folder of the project, where data lie that the capsule lacks."""

    def write(self, text: str, name: str = "train.py") -> None:
        (self.capsule / "project" / name).write_text(dedent(text))

    def start(
        self,
        *,
        resume_from: str | None = None,
        beside: dict[str, str] | None = None,
        **trainer: Any,
    ) -> subprocess.Popen[bytes]:
        """Start an attempt; ``beside`` has variables of another rank of the newest one."""
        if beside is None:
            self.number += 1
        spec = {"script": "train.py", "steps": 10, **trainer}
        (self.run / layout.CONFIG).write_text(yaml.safe_dump(spec))
        record = {"spec": {"secrets": {"HF_TOKEN": "hf"}}}
        number = self.number
        note = LaunchNote(run_id="r", attempt=number, resume_from=resume_from, record=record)
        self.attempt.mkdir(exist_ok=beside is not None)
        (self.attempt / layout.LAUNCH).write_text(note.model_dump_json())
        (self.attempt / layout.ORDERS).write_text(Orders().model_dump_json())
        environment = {
            **os.environ,
            "LEHR_CODE_FOLDER": str(self.capsule),
            "LEHR_CODE": "c" * 64,
            "LEHR_PROJECT": str(self.root),
            "RANK": "0",
            "PYTHONSAFEPATH": "1",
            **(beside or {}),
        }
        command = [sys.executable, "-P", "-m", "lehr.node.programs", str(self.attempt)]
        return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)

    def train(self, **trainer: Any) -> int:
        process = self.start(**trainer)
        _, errors = process.communicate(timeout=self._limit_s)
        assert not errors, errors.decode()
        return process.returncode

    @property
    def attempt(self) -> Path:
        return layout.attempt_dir(self.run, self.number)

    def records(self, kind: str) -> list[Any]:
        events = self.attempt / layout.EVENTS
        text = events.read_text() if events.exists() else ""
        # A line of 4 KiB and more may be read while it is written.
        lines = text[: text.rfind("\n") + 1].splitlines()
        found = [record_adapter.validate_json(line) for line in lines]
        return [record for record in found if record.kind == kind]

    def series(self, name: str) -> list[tuple[int, float]]:
        return [(m.step, m.values[name]) for m in self.records("metrics") if name in m.values]

    @property
    def codes(self) -> list[str]:
        return [warning.code for warning in self.records("warning")]

    @property
    def output(self) -> str:
        return layout.rank_log(self.attempt, 0).read_text(errors="replace")
