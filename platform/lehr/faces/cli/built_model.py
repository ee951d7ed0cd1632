"""Count the project's own model by building it, in a process of the trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lehr.analysis.replaced_parts import BuiltModel, replaced_model
from lehr.errors import UserError

if TYPE_CHECKING:
    from lehr.specs import RunSpec


_COUNTED: dict[tuple[str, str, str], BuiltModel] = {}
"""By model, class and path: the trials of a sweep mostly share one model."""


def built_model(spec: RunSpec) -> BuiltModel | None:
    """Build the model that the project of ``spec`` replaces, without memory for its weights.

    None: the model is Lehr's, or torch is not installed here.

    Raises:
        UserError: it cannot be built.
    """
    from importlib.util import find_spec

    name = replaced_model(spec.own)
    if name is None or find_spec("torch") is None:
        return None
    key = (spec.own.model.model_dump_json(), name, project_path(spec))
    if key not in _COUNTED:
        _COUNTED[key] = _count(spec, name)
    return _COUNTED[key]


def project_path(spec: RunSpec) -> str:
    """Return the PYTHONPATH by which the project's files are imported."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*([given] if given else []), str(Path(spec.code.root).resolve())])


def _count(spec: RunSpec, name: str) -> BuiltModel:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "lehr_trainer", "count", "-"],
        input=spec.own.model_dump_json(),
        env={**os.environ, "PYTHONPATH": project_path(spec)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        last = last.removeprefix("error: ")
        raise UserError(
            f"model class {name} cannot be built: {last}.",
            hint="Its file is imported from code.root, the project's folder.",
        )
    found = json.loads(done.stdout)
    return BuiltModel(found["parameters"], found["looked_up"])
