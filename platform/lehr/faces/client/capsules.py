"""Send the code that will train with a submission, once."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from lehr.errors import NotFound, UserError

if TYPE_CHECKING:
    from lehr.faces.client.transport import Transport
    from lehr.specs import Spec
    from lehr.specs.code import Code
    from lehr.specs.program import Program


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
    from lehr.specs import RunSpec

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
    from lehr.code import archive
    from lehr.code.collect import (
        project_sources,
        refuse_missing_parts,
        refuse_missing_script,
        refuse_unfit_trainer,
        trainer_sources,
    )
    from lehr.code.left_out import data_files, left_out, notice

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
    from lehr.specs.code import Code
    from lehr.specs.program import Program
    from lehr_trainer.configs.parts import PartsConfig

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
