"""A run of a file, trained again on this machine without a server, and compared with its record."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from lehr.base.bundle import Bundle
from lehr.code import archive, code_cache
from lehr.errors import UserError
from lehr.faces.cli.output import say
from lehr.node import attempt_code, environment_builder, torchrun
from lehr.node.attempt_dir import AttemptDir
from lehr_trainer.contract import layout

Plain = dict[str, Any]
Values = dict[tuple[int, str], Any]
# Or of tasks, which may have been added by hand: no training repeats these.
_OF_THE_MACHINE = re.compile(r"^(memory|system|task)/|time|^mfu$|_(s|ms|bytes)$|per_s")


def first_difference(recorded: Values, here: Values, tolerance: float = 0.0) -> str | None:
    """Describe the first value, or tensor, that differs by more than this share of its norm."""
    import numpy as np

    for (step, name), was in sorted(recorded.items()):
        now = here.get((step, name))
        old, new = np.asarray(was), np.asarray(now)
        alike = old.dtype == new.dtype and old.tobytes() == new.tobytes()
        if old.dtype.kind == new.dtype.kind == "f" and old.shape == new.shape and tolerance:
            near = np.linalg.norm(new - old) <= tolerance * np.linalg.norm(old)
            alike = alike or (bool(near) and name != "data/digest")
        if not alike:
            shown = "differs" if old.ndim else f"is {was} in the file, {now} here"
            return f"step {step}: {name} {shown}"
    return None


def weights(run_dir: Path) -> Values:
    """Map the weights of all checkpoints, each tensor as a flat array, of bytes if not float32."""
    import numpy as np

    values = Values()
    for path in run_dir.glob(f"attempt-*/{layout.CHECKPOINTS}/*[0-9]/model*.safetensors"):
        content, step = np.memmap(path, mode="r"), layout.checkpoint_step(path.parent) or 0
        start = 8 + int(content[:8].view("<u8")[0])
        header, data = json.loads(content[8:start].tobytes()), content[start:]
        for name in header.keys() - {"__metadata__"}:
            kind = "<f4" if header[name]["dtype"] == "F32" else "u1"
            values[step, f"weights/{name}"] = data[slice(*header[name]["data_offsets"])].view(kind)
    return values


def read(content: bytes) -> tuple[Plain, Values]:
    """Return the first ``started`` record, and all values that are not of the machine."""
    lines = (line for line in content.splitlines() if line[:1] + line[-1:] == b"{}")
    records = [json.loads(line) for line in lines]
    values = {
        (one["step"], name): value
        for one in records
        if one["kind"] in {"metrics", "evaluation"}
        for name, value in one["values"].items()
        if isinstance(value, float | int | str) and not _OF_THE_MACHINE.search(name)
    }
    return next((one for one in records if one["kind"] == "started"), {}), values


def machine(started: Plain) -> Plain:
    host = started.get("host") or {}
    found = host.get("distributions", {}) | started.get("versions", {})
    found |= {"device": started.get("device"), "cpu": host.get("cpu")}
    return {name: value for name, value in found.items() if value and name != "lehr"}


def train(
    bundle: Bundle, spec: Plain, started: Plain, recorded: Values, scratch: str, changes: list[str]
) -> tuple[Plain, Values]:
    """Train the recorded steps with the code of the file, laid out as on a node."""
    attempt_dir, python = Path(scratch, "run", "attempt-1"), None
    attempt_dir.mkdir(parents=True)
    config = yaml.safe_dump(spec["train"] or spec["trainer"])
    (attempt_dir.parent / layout.CONFIG).write_text(config)
    (attempt_dir / layout.LAUNCH).write_text("{}")
    digest, environment = spec["code"]["digest"], spec["code"]["environment"]
    if (packed := f"code/{digest}.tar") in bundle.namelist():
        target, tar = code_cache.folder(scratch, digest), Path(scratch, "code.tar")
        known = json.loads(bundle.read(f"code/{digest}.json"))
        tar.write_bytes(bundle.read(packed))
        Path(target).mkdir(parents=True)
        try:
            files = {file.name: file.sha256 for file in archive.members(tar)}
            changes += sorted(f"code: {n}" for n in known | files if known.get(n) != files.get(n))
            archive.unpack(tar, target)
            if environment:
                project = f"{target}/{code_cache.PROJECT}"
                key = environment_builder.build(scratch, project, environment, say)
                python = code_cache.environment_python(scratch, key)
        except (archive.BadArchive, environment_builder.BuildFailed) as error:
            raise UserError(f"the code of the file cannot be laid out: {error}") from error
    else:
        changes.append("code: none in the file, so the trainer that is installed here")
        digest = None
    gpus, launch = [*range(spec["resources"]["gpus"])], {"code": digest, "program": spec["trainer"]}
    gang, threads = torchrun.Gang(max(1, len(gpus))), (started.get("host") or {}).get("threads", 1)
    variables = attempt_code.variables(launch, AttemptDir(f"{scratch}/attempts/run-1"), python)
    variables |= torchrun.environment(gang, gpus=gpus, threads=threads)
    variables["LEHR_PROJECT"] = str(Path.cwd())
    own = ("lehr_trainer", python or sys.executable)
    trainer, own_python = ("lehr.node.programs", sys.executable) if spec["trainer"] else own
    command = torchrun.command(trainer, str(attempt_dir), gang, python=own_python)
    log, events, here, ended = Path(scratch, "log"), attempt_dir / layout.EVENTS, Values(), False
    with log.open("wb") as out:
        process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=out, stderr=out)
    try:
        while not ended and not recorded.keys() <= here.keys():
            time.sleep(0.2)
            ended = process.poll() is not None
            now_started, here = read(events.read_bytes() if events.exists() else b"")
            here |= weights(attempt_dir.parent) if spec["train"] else {}
    finally:
        process.kill()
        process.wait()
    if not here:
        last = events.read_text().splitlines()[-1:] if events.exists() else []
        said = [json.loads(line).get("message") for line in last] or [log.read_text()[-500:]]
        raise UserError(f"it cannot be trained here: {said[0]}")
    changes += re.findall(r'"(trainer\.data has changed[^"]*)"', events.read_text())
    return now_started, here
