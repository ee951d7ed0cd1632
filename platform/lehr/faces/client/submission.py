"""What a submission sends: the spec as callers give it, and its provenance."""

from __future__ import annotations

import getpass
import json
import logging
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel

from lehr import __version__
from lehr.errors import NotFound, UserError
from lehr.faces.client.transport import Transport
from lehr.specs import RunSpec, Spec, load_spec
from lehr.specs.overrides import Overrides
from lehr.specs.program import COMMAND, Code, Program
from lehr_trainer.configs.parts import PartsConfig


def load(
    spec: Path | str | dict[str, Any] | Spec, overrides: Overrides, *, want: str | None = None
) -> tuple[Spec, Path | None]:
    """Return the validated spec, and the folder of its file if it has one.

    ``want``: the only kind that is accepted.
    """
    folder = None
    if isinstance(spec, BaseModel):
        # It is valid as it is; only what is laid over it must be validated with it.
        loaded = load_spec(plain(spec), overrides) if overrides else spec
    else:
        if isinstance(spec, Path) or (isinstance(spec, str) and "\n" not in spec):
            folder = Path(spec).absolute().parent
        loaded = load_spec(spec, overrides)
    if want is not None and loaded.kind != want:
        method = "submit" if loaded.kind == "run" else loaded.kind
        raise UserError(
            f"this is the spec of a {loaded.kind}, not of a {want}.", hint=f"Use {method}() for it."
        )
    return loaded, folder


def plain(spec: Spec) -> dict[str, Any]:
    """Without defaults: those are the server's to fill in, and a sweep's paths need them unset."""
    return {"kind": spec.kind, **spec.model_dump(mode="json", exclude_unset=True)}


_DIFF_LIMIT = 256 * 1024
_GIT_TIMEOUT_S = 5.0


def provenance(folder: Path | None = None) -> dict[str, Any]:
    """Collect the provenance of this process and of the git tree that contains ``folder``."""
    return {
        "command": sys.argv,
        "host": socket.gethostname(),
        "user": _user(),
        "folder": str(Path.cwd()),
        "versions": {"lehr": __version__, "python": platform.python_version()},
        "git": _git(folder or Path.cwd()),
    }


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None  # A container may run as a user id without a name.


def _git(folder: Path) -> dict[str, Any] | None:
    commit = _ask_git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    # --no-ext-diff and --no-textconv: a repository's settings must not start programs.
    diff = _ask_git(folder, "diff", "--no-ext-diff", "--no-textconv", "HEAD") or ""
    remote = _ask_git(folder, "config", "--get", "remote.origin.url")
    return {
        "commit": commit.strip(),
        "branch": (_ask_git(folder, "rev-parse", "--abbrev-ref", "HEAD") or "").strip() or None,
        "remote": _without_secret(remote.strip()) if remote else None,
        "dirty": bool(diff),
        "diff": diff[:_DIFF_LIMIT],
        "diff_cut": len(diff) > _DIFF_LIMIT,
    }


def _without_secret(remote: str) -> str:
    """Remove credentials from a URL: ``https://user:token@host/x``."""
    scheme, separator, rest = remote.partition("://")
    if not separator:
        return remote
    authority, slash, path = rest.partition("/")
    return f"{scheme}://{authority.rpartition('@')[2]}{slash}{path}"


def _ask_git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-c", "core.fsmonitor=false", "-C", str(folder), *arguments],
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


_LOG = logging.getLogger("lehr")
_SHOWN = 5


def _listed(left_out: Sequence[str]) -> str:
    more = len(left_out) - _SHOWN
    return "; ".join([*left_out[:_SHOWN], *([f"{more} more"] if more > 0 else [])])


def with_capsule(transport: Transport | None, spec: Spec, folder: Path | None) -> Spec:
    """Return the spec with the capsule of the code as it is now, which the server then has.

    ``folder`` is that of the spec's file. A spec that names its capsule stays as it is. Without
    ``transport`` nothing is sent.

    Raises:
        SpecError: the project's files cannot be collected; nothing was sent.
    """
    run = spec if isinstance(spec, RunSpec) else spec.run
    if run.code.digest is not None:
        return spec
    parts = run.train.parts.named if run.train is not None and run.train.parts is not None else {}
    code, data = send(transport, run.code, folder or Path.cwd(), program=run.trainer, parts=parts)
    update: dict[str, Any] = {"code": run.code.model_copy(update=code)}
    if run.trainer is not None:
        update["trainer"] = run.trainer.model_copy(update={"data_files": data})
    pinned = run.model_copy(update=update)
    return pinned if isinstance(spec, RunSpec) else spec.model_copy(update={"run": pinned})


def send(
    transport: Transport | None,
    code: Code,
    folder: Path,
    *,
    program: Program | None = None,
    parts: Mapping[str, str] | None = None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Send the code as it is now, unless the server has it; return the fields of the spec's code,
    and what its data are now.

    ``transport``: None sends nothing.

    Raises:
        SpecError: the project's files cannot be collected, or lack the script, a part or data.
    """
    from lehr.analysis.curve_files.printed import unprinted
    from lehr.code import archive
    from lehr.code.collect import (
        project_sources,
        refuse_missing_parts,
        refuse_missing_script,
        refuse_unfit_trainer,
        trainer_sources,
    )
    from lehr.code.project_files import data_files, left_out, notice

    script, data = (program.script, program.data) if program is not None else (None, [])
    project = project_sources(code, folder, script)
    names = [source.name for source in project.sources]
    if project.taken:
        files = _listed([name.partition("/")[2] for name in names])
        _LOG.warning("code.include names no files; the run's code: %s (%s)", files, project.taken)
    if project.left_out:
        _LOG.warning("warning: not part of the run's code: %s", _listed(project.left_out))
    refuse_missing_parts(parts or {}, names)
    if script is not None:
        refuse_missing_script(script, names)
    # Texts are read in Python alone, and a command may print by another program.
    reads = program is not None and (program.module != COMMAND or ".py" in " ".join(program.argv))
    if program is not None and program.prints and reads:
        paths = [Path(one.path) for one in project.sources if one.name.endswith(".py")]
        texts = [path.read_text("utf-8", "replace") for path in paths]
        if missing := unprinted(program.prints, texts):
            _LOG.warning(
                "warning: trainer.prints: no text in the code gives a line like %s; the run "
                "has a warning if none is printed",
                _listed(missing),
            )
    root, here = (folder / code.root).resolve(), {name.partition("/")[2] for name in names}
    found = data_files(root, data, here)
    beside = left_out(code, root, {*here, *data}, project.taken) if script is not None else []
    if beside:
        _LOG.warning(notice(beside, project.taken))
    trainer = trainer_sources()
    refuse_unfit_trainer(trainer, code)
    with tempfile.TemporaryFile() as file:
        digest, size = archive.write([*trainer, *project.sources], file)
        if transport is not None:
            try:
                transport.get(f"/code/{digest}")
            except NotFound:
                file.seek(0)
                transport.upload(f"/code/{digest}", file, size)
    fields: dict[str, Any] = {"digest": digest}
    if project.sources or data:
        fields["root"] = str(root)
    return fields, found


def with_current_code(
    transport: Transport, spec: Mapping[str, Any], changes: dict[str, Any] | list[str]
) -> dict[str, Any] | list[str]:
    """Return the changes of a fork that also give it the code as it is here now.

    Raises:
        SpecError: the project's files cannot be collected; nothing was sent.
    """
    code = Code.model_validate(spec.get("code") or {})
    program = Program.model_validate(given) if (given := spec.get("trainer")) else None
    found = PartsConfig.model_validate(given).named if (given := _parts(spec)) else {}
    fields, data = send(transport, code, Path.cwd(), program=program, parts=found)
    more: dict[str, Any] = {"code.digest": fields["digest"]}
    if data:
        more |= {"trainer.data_files": data, "code.root": fields["root"]}
    if isinstance(changes, dict):
        return {**changes, **more}
    return [*changes, *(f"{path}={json.dumps(value)}" for path, value in more.items())]


def _parts(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    return (spec.get("train") or {}).get("parts")


def checkout(transport: Transport, ref: str, folder: Path) -> Path:
    """Write the code of a run, or a capsule, into a new or empty folder.

    Raises:
        UserError: the folder is not empty, cannot be written, or the archive is damaged.
    """
    from lehr.code import archive

    digest = json.loads(transport.get(f"/code/{quote(ref, safe='')}"))["digest"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"{folder} is not empty.", hint="Choose a new folder.")
        with tempfile.NamedTemporaryFile() as file:
            for piece in transport.pieces(f"/code/{digest}/archive"):
                file.write(piece)
            file.flush()
            if archive.digest_of(file.name) != digest:
                raise UserError(f"capsule {digest[:12]} arrived damaged.", hint="Try again.")
            archive.unpack(file.name, str(folder))
    except archive.BadArchive as error:
        raise UserError(f"capsule {digest[:12]} is not one: {error}.") from error
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror}.") from error
    return folder
