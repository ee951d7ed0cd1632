"""What a process of the trainer adds to a plan: the built model, and a trace of its own step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lehr.analysis.replaced_parts import BuiltParts, replaced_model
from lehr.base import formats
from lehr.errors import LehrError, UserError
from lehr.faces.cli.output import console, escaped, table
from lehr_trainer import extras
from lehr_trainer.configs.execution import CompileConfig

if TYPE_CHECKING:
    from lehr.analysis.plan import RunPlan
    from lehr.specs import RunSpec

_KINDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "temporaries": "temporaries",
}


def traced(spec: RunSpec) -> dict[str, Any]:
    """Trace a step of one rank in a process of the trainer; return its JSON.

    Raises:
        UserError: the config cannot be traced.
        LehrError: the trainer failed.
        ModuleNotFoundError: it is not installed.
    """
    extras.need("torch")
    code, last, found = _trainer(spec, "trace", "-", f"--ranks={spec.resources.ranks}")
    if code == 2:
        raise UserError(last)
    if code != 0:
        raise LehrError(f"the trace failed: {last}")
    for stage in found["stages"]:
        most = {name: max(moment["total"] for moment in stage[name].values()) for name in _FIGURES}
        stage["difference_percent"] = _percent(most["planned"], most["traced"])
    return found


def _trainer(spec: RunSpec, *arguments: str) -> tuple[int, str, dict[str, Any]]:
    """Run the trainer on the config. Return its exit code, its last message, and its JSON."""
    environment = None if spec.own.parts is None else {"PYTHONPATH": project_path(spec)}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "lehr_trainer", *arguments],
        input=spec.own.model_dump_json(),
        env=environment and {**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    last = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
    answer = json.loads(done.stdout) if done.returncode == 0 else {}
    return done.returncode, last.removeprefix("error: "), answer


_FIGURES = ("traced", "planned")


def show_trace(found: dict[str, Any], plan: RunPlan) -> None:
    """Print formula and trace by phase, and by kind in the phase of most memory."""
    device = found["device"].upper()
    target = "CPU" if plan.memory.on_cpu else "CUDA"
    titles = (f"formula, {target}", f"formula, {device}", f"trace, {device}", "difference")
    for stage, own in zip(found["stages"], plan.memory_stages, strict=True):
        rows = table("", *titles, right=titles)
        lines = [
            (name, own.phases[name].total, stage["planned"][name]["total"], moment["total"])
            for name, moment in stage["traced"].items()
        ]
        peak = max(stage["traced"], key=lambda name: stage["traced"][name]["total"])
        there, planned = stage["traced"][peak], stage["planned"][peak]
        lines += [
            (f"{title} in {peak}", getattr(own.phases[peak], kind), planned[kind], there[kind])
            for kind, title in _KINDS.items()
        ]
        for title, of_target, formula, trace in lines:
            figures = [formats.size(number) for number in (of_target, formula, trace)]
            rows.add_row(escaped(title), *figures, f"{_percent(formula, trace):+.1f} %")
        batch, length = stage["shape"]
        name = stage["stage"] and f", stage {stage['stage']}"
        out = console()
        out.print()
        out.print(
            f"Memory of a rank{name}, micro-batch \\[{batch}, {length}]; most in each phase",
            style="bold",
        )
        out.print(rows)
    notes = "; ".join(found["notes"])
    out = console()
    out.print(
        f"Trace: the trainer's own step on fake {device} tensors, counted by torch's MemTracker"
        f"{f' ({notes})' if notes else ''}.",
        markup=False,
        style="dim",
    )
    out.print(
        f"Formula, {device}: what the plan computes for what was traced; the difference is that "
        f"to the trace. Formula, {target}: for the run itself, without "
        f"{formats.size(plan.memory.overhead)} of CUDA context and fragmentation.",
        markup=False,
        style="dim",
    )


def _percent(planned: int, traced: int) -> float:
    if not traced:
        return 0.0 if not planned else 100.0
    return round(100 * (planned / traced - 1), 2)


_BUILT: dict[tuple[str, ...], BuiltParts] = {}
"""By what the memory depends on, and the path: the trials of a sweep mostly share it."""
_SHAPING = {
    *("model", "parts", "batch", "stages", "loss", "precision", "attention", "parallel", "average"),
    *("activation_checkpointing", "validation", "device"),
}


def built_parts(spec: RunSpec) -> BuiltParts | None:
    """Build and trace what the project of ``spec`` replaces, without memory for its weights.

    The trace is of eager code: what is compared is only what differs from Lehr's own parts. None:
    all is Lehr's, or torch is not installed here.

    Raises:
        UserError: the model cannot be built.
    """
    if spec.own.parts is None or find_spec("torch") is None:
        return None
    shaping = spec.own.model_dump_json(include=_SHAPING)
    key = (shaping, spec.own.optimizer.name, str(spec.resources.ranks), project_path(spec))
    if key not in _BUILT:
        counted: dict[str, Any] = {}
        if (name := replaced_model(spec.own)) is not None:
            code, last, counted = _trainer(spec, "count", "-")
            if code != 0:
                raise UserError(
                    f"model class {name} cannot be built: {last}.",
                    hint="Its file is imported from code.root, the project's folder.",
                )
        eager = spec.own.model_copy(update={"compile": CompileConfig(scope="none")})
        own = spec.model_copy(update={"train": eager})
        code, last, answer = _trainer(own, "trace", "-", f"--ranks={spec.resources.ranks}")
        traces = [(stage["traced"], stage["planned"]) for stage in answer.get("stages", ())]
        _BUILT[key] = BuiltParts(**counted, traces=tuple(traces), untraced=last if code else "")
    return _BUILT[key]


def project_path(spec: RunSpec) -> str:
    """Return the PYTHONPATH by which the project's files are imported."""
    given = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*([given] if given else []), str(Path(spec.code.root).resolve())])
