"""The folder of a program, its command and its environment."""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from pydantic import ValidationError

from lehr.base import procfs
from lehr.code import code_cache, project_copy
from lehr.node.programs import saves
from lehr.node.programs.saves import changes, interpreter, versions
from lehr.specs.evaluations import EVALUATE
from lehr.specs.program import TORCHRUN, Program, arguments, effective_args
from lehr_trainer.contract import layout
from lehr_trainer.contract.manifest import read_manifest
from lehr_trainer.contract.orders import LaunchNote
from lehr_trainer.errors import BadConfig, DataUnreachable
from lehr_trainer.files import open_regular

_NOT_FOR_PROGRAMS = ("PYTHONSAFEPATH",)


@dataclass(frozen=True)
class Resume:
    step: int
    checkpoint: str  # As the ``resumed`` record has it.
    path: str  # The file or folder that was saved, put back where the program had it.
    changed: list[str]  # Versions that differ from those when it was saved.


@dataclass(frozen=True)
class ProgramDir:
    """Folders and files of one attempt. All its ranks on a node share them."""

    attempt_dir: Path
    code: Path | None  # The unpacked capsule.

    @property
    def folder(self) -> Path:
        """The program's current folder: its own copy of the project, and what it writes."""
        return self.attempt_dir / code_cache.WORK

    @property
    def wandb(self) -> Path:
        return self.attempt_dir / "wandb"

    def log_file(self, rank: int) -> Path:
        return self.attempt_dir / f"log-{rank}.jsonl"

    @property
    def stop_file(self) -> Path:
        return self.attempt_dir / "stop"

    def prepare(self, note: LaunchNote, program: Program) -> tuple[Resume | None, list[str]]:
        """Make the folder, and put back what the checkpoint to resume from holds. Only once.

        Return the checkpoint, and which data are no longer as they were at the submission.

        Raises:
            BadCheckpoint: the checkpoint is missing or damaged.
            BadConfig: the program is deterministic, and versions differ from its checkpoint's.
            DataUnreachable: this node lacks data of the project.
        """
        with (self.attempt_dir / ".work.lock").open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = self.attempt_dir / ".work.json"
            if not done.exists():
                changed = self._make(program)
                resumed = self._restore(note, program)
                done.write_text(json.dumps([resumed.__dict__ if resumed else None, changed]))
            with open_regular(done) as file:
                found, changed = json.loads(file.read())
        return Resume(**found) if found else None, changed

    def _make(self, program: Program) -> list[str]:
        """Copy the project, and link its data; return which of them have changed."""
        self.folder.mkdir(exist_ok=True)
        self.wandb.mkdir(exist_ok=True)
        project = self.code / code_cache.PROJECT if self.code is not None else None
        index = str(self.attempt_dir / project_copy.INDEX)
        if project is not None and project.is_dir():
            project_copy.make(str(project), str(self.folder), index)
        if not program.data:
            return []
        root, before = os.environ.get("LEHR_PROJECT", ""), program.data_files
        try:
            now = project_copy.link_data(root, program.data, str(self.folder), index)
        except OSError as error:
            raise DataUnreachable(
                f"trainer.data: {error.filename}: {error.strerror} on {platform.node()}. Each node "
                "needs the data at this path"
            ) from error
        return [f"{one}: {before[one]}, now {now[one]}" for one in now if now[one] != before[one]]

    def _restore(self, note: LaunchNote, program: Program) -> Resume | None:
        if note.resume_from is None:
            return None
        checkpoint = self.attempt_dir.parent / note.resume_from
        manifest = read_manifest(checkpoint)
        before = manifest.versions
        if program.module == EVALUATE and not before:  # Of Lehr's trainer: it is read in place.
            return Resume(manifest.step, note.resume_from, str(checkpoint), [])
        changed = changes(before, versions())
        # A fork may train in another environment; the same run may not.
        if program.deterministic and checkpoint.is_relative_to(self.attempt_dir.parent):
            _refuse_changed(before)
        manifest = saves.restore(checkpoint, self.folder)
        path = saves.saved_path(manifest, self.folder)
        return Resume(manifest.step, note.resume_from, path, changed)

    def _as_wandb(self) -> Path:
        """Return the folder in which ``import wandb`` finds Lehr's module of that name."""
        pinned = self.code / code_cache.TRAINER / "lehr_log" if self.code is not None else None
        package = pinned if pinned is not None and pinned.is_dir() else _installed_log()
        return package / "as_wandb"

    def command(self, program: Program, resumed: Resume | None) -> list[str]:
        checkpoint = resumed.path if resumed else None
        file = self.attempt_dir / "args.yaml"
        if program.style == "file":
            _write(file, yaml.safe_dump(effective_args(program, checkpoint), sort_keys=False))
        given = arguments(program, file=str(file), checkpoint=checkpoint)
        if program.module is not None:
            return [interpreter(), "-m", program.module, *given]
        assert program.script is not None
        return [interpreter(), str(self.folder / program.script), *given]

    def environment(self, program: Program, rank: int, resumed: Resume | None) -> dict[str, str]:
        config = self.attempt_dir / "args.json"
        checkpoint = resumed.path if resumed else None
        _write(config, json.dumps(effective_args(program, checkpoint)))
        # A script that finds torchrun's variables trains with DDP, although it is alone.
        alone = program.launcher is None and os.environ.get("WORLD_SIZE", "1") == "1"
        hidden = (*_NOT_FOR_PROGRAMS, *(TORCHRUN if alone else ()))
        found = {name: value for name, value in os.environ.items() if name not in hidden}
        found |= {
            "LEHR_STOP": str(self.stop_file),
            "LEHR_CONFIG": str(config),
            # One stream: what other ranks log to W&B is not read, so it is not written.
            "WANDB_MODE": "offline" if rank == 0 else "disabled",
            "WANDB_DIR": str(self.wandb),
        }
        if rank == 0:
            found["LEHR_LOG"] = str(self.log_file(rank))
        if resumed is not None:
            found |= {"LEHR_RESUME_FROM": resumed.path, "LEHR_RESUME_STEP": str(resumed.step)}
        parts = [str(self._as_wandb())] if program.wandb == "lehr" else []
        if self.code is not None:
            parts += [str(self.folder), str(self.code / code_cache.TRAINER)]
        if parts:
            found["PYTHONPATH"] = os.pathsep.join(parts)
        return found


def _refuse_changed(before: Mapping[str, str]) -> None:
    """Refuse a resumption under versions other than these. Only the program knows which ones it
    uses, so all count but Lehr's: what a program imports of it is in its capsule.

    Raises:
        BadConfig: some differ.
    """
    own = {name: version for name, version in before.items() if name != "lehr"}
    if changed := changes(own, versions()):
        raise BadConfig(
            f"the checkpoint was saved in another environment: {', '.join(changed)}. "
            "deterministic is true, and losses may differ between environments. "
            "Resume it where its versions are installed, or fork it"
        )


def _write(path: Path, text: str) -> None:
    """Write a file that the programs of other ranks may be reading."""
    procfs.write_atomically(str(path), text.encode("utf-8", "surrogatepass"))


def _installed_log() -> Path:
    """Return the folder of the package ``lehr_log`` as it is installed here."""
    found = importlib.util.find_spec("lehr_log")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def read_program(run_dir: Path) -> Program:
    """Return the program of a run directory.

    Raises:
        BadConfig: this Lehr cannot read it; that of the server may be another.
    """
    path = run_dir / layout.CONFIG
    try:
        with open_regular(path) as file:
            return Program.model_validate(yaml.safe_load(file.read()))
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, one['loc'])) or 'the config'}: {one['msg']}"
            for one in error.errors(include_url=False)
        ]
        raise BadConfig(
            f"{path}: {'; '.join(problems)}. This node has another version of Lehr than the "
            "server, or the file was changed; `lehr doctor` compares versions"
        ) from None
