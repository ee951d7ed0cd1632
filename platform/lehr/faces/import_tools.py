"""Readers of the runs of other tools, each by the tool's own package."""

from __future__ import annotations

import heapq
import json
import os
import socket
from array import array
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, tzinfo
from fnmatch import fnmatchcase
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from lehr.analysis.curve_files import binary, text
from lehr.analysis.curve_files.collector import CurveRow, Points, unreadable
from lehr.faces.imported import SourceRun
from lehr.specs.yaml12 import parse_value
from lehr_log.run import Outcome

_ENDS: dict[str, Outcome | None] = {"finished": "completed", "killed": "stopped", "running": None}
"""Of MLflow and W&B; a run in any other state has failed."""
_ODD = {"NaN", "Infinity", "-Infinity"}


def _folder(where: str) -> tuple[Path, str]:
    """Return a path that exists, and its address."""
    path = Path(where).expanduser().resolve()
    if not path.exists():
        raise unreadable(where, "there is no such file or folder.")
    return path, f"file://{socket.gethostname()}{path}"


def tensorboard(where: str) -> Iterator[SourceRun]:
    """Yield a run for each folder with event files."""
    root, address = _folder(where)
    for folder in sorted({path.parent for path in root.rglob(binary.TENSORBOARD)}):
        points = partial(binary.tensorboard_points, sorted(folder.glob(binary.TENSORBOARD)))
        name, begun = str(folder.relative_to(root)), _first_time(points, folder)
        title = root.name if folder == root else name
        yield SourceRun("tensorboard", address, name, title, root.name, points, begun)


def csv(where: str) -> Iterator[SourceRun]:
    """Yield the run of a CSV file, or of each one in a folder."""
    root, address = _folder(where)
    for path in sorted(root.glob("*.csv")) if root.is_dir() else [root]:
        points = partial(text.csv_points, path, lambda _: True, set())
        begun = _first_time(points, path)
        yield SourceRun("csv", address, path.name, path.stem, root.stem, points, begun)


def _first_time(points: Callable[[], Points], path: Path) -> float:
    times = (row.at for row in points() if isinstance(row, CurveRow))
    return next(times, None) or path.stat().st_mtime


def mlflow(where: str) -> Iterator[SourceRun]:
    """Yield the runs of all experiments at a tracking URI."""
    import mlflow as package

    package.set_tracking_uri(where)
    experiments = {one.experiment_id: one.name for one in package.search_experiments()}
    runs = package.search_runs(search_all_experiments=True, output_format="list", max_results=9**9)
    titles = {run.info.run_id: run.info.run_name for run in runs}
    for run in runs:
        info, own = run.info, run.data.tags
        tags = [f"{name}={value}" for name, value in own.items() if name[:7] != "mlflow."]
        parent = own.get("mlflow.parentRunId", "")
        points = partial(_mlflow_points, package.MlflowClient(), info.run_id, [*run.data.metrics])
        yield SourceRun(
            *("mlflow", where, info.run_id, info.run_name, experiments[info.experiment_id], points),
            started_at=(info.start_time or 0) / 1000,
            ended_at=info.end_time / 1000 if info.end_time else None,
            outcome=_ENDS.get(info.status.lower(), "failed"),
            reason=info.status,
            config={name: parse_value(value) for name, value in run.data.params.items()},
            tags=tags,
            group=(parent, titles.get(parent) or parent),
            notes=own.get("mlflow.note.content", ""),
        )


def _mlflow_points(client: Any, run_id: str, names: list[str]) -> Iterator[CurveRow]:
    """Merge the series of a run by step. One whose points all have the same step was logged without
    steps, and is counted from 0.
    """
    series = []
    names = sorted(names)
    for rank, name in enumerate(names):
        found = client.get_metric_history(run_id, name)
        points = sorted((point.step, point.timestamp, point.value) for point in found)
        steps, times = array("q", (p[0] for p in points)), array("q", (p[1] for p in points))
        if len(steps) > 1 and steps[0] == steps[-1]:
            steps = array("q", range(len(steps)))
        series.append(zip(steps, repeat(rank), times, array("d", (p[2] for p in points))))
    for step, rank, at, value in heapq.merge(*series):
        yield CurveRow(step, {names[rank]: value}, "", at / 1000)


def trackio(where: str) -> Iterator[SourceRun]:
    """Yield the runs of all projects in a folder of Trackio."""
    root, address = _folder(where)
    os.environ["TRACKIO_DIR"] = str(root)  # Read once, as the package is imported.
    from trackio.sqlite_storage import SQLiteStorage

    for project in sorted(SQLiteStorage.get_projects()):
        for record in SQLiteStorage.get_run_records(project):
            name, run_id = record["name"], record["id"]
            logs = partial(SQLiteStorage.get_logs, project, name, run_id=run_id)
            config = SQLiteStorage.get_run_config(project, name, run_id=run_id) or {}
            yield SourceRun(
                *("trackio", address, f"{project}/{run_id or name}", name, project),
                *(partial(_trackio_points, logs), _time(record["created_at"])),
                config={n: value for n, value in config.items() if n[:1] != "_"},
                group=(config.get("_Group") or "",) * 2,
            )


def _trackio_points(logs: Callable[[], Any]) -> Iterator[CurveRow]:
    for row in logs():
        at, step = _time(row.pop("timestamp")), row.pop("step")
        yield CurveRow(step, _numbers(row), "", at)


def _time(shown: str, zone: tzinfo | None = None) -> float:
    time = datetime.fromisoformat(shown)
    return (time if time.tzinfo else time.replace(tzinfo=zone)).timestamp()


def _numbers(row: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a row. By ``str``: a whole number may have hundreds of digits."""
    row = dict(sorted(row.items()))  # W&B's server returns another order each time.
    return {n: float(str(v)) for n, v in row.items() if type(v) in {int, float} or str(v) in _ODD}


def wandb_offline(where: str) -> Iterator[SourceRun]:
    """Yield the runs of W&B's offline files: a file, or those below a folder."""
    root, address = _folder(where)
    files = sorted(root.rglob(binary.WANDB)) or [root] * root.is_file()
    for stem in dict.fromkeys(path.stem for path in files):
        paths = [path for path in files if path.stem == stem]  # Several of a resumed run.
        axes: dict[str, str] = {}
        points = partial(_wandb_points, partial(_offline_rows, paths), axes)
        run = SourceRun("wandb-offline", address, stem[4:], stem, "", points, 0.0)
        for kind, message in _offline_records(paths):
            if kind == "run":
                run.name, run.project = message.display_name, message.project
                run.group = (message.sweep_id or message.run_group,) * 2
                run.tags, run.notes = [*message.tags], message.notes
                run.started_at = run.started_at or message.start_time.ToMicroseconds() / 1e6
                run.outcome, run.reason = "failed", "its process ended without a word"
            if kind in {"run", "config"}:
                run.config |= _items((message.config if kind == "run" else message).update)
            elif kind == "metric" and message.step_metric:
                axes[message.name or message.glob_name] = message.step_metric
            elif kind == "exit":
                run.outcome = "failed" if message.exit_code else "completed"
                run.reason = f"exit code {message.exit_code}"
        run.config.pop("_wandb", None)
        yield run


def _offline_records(paths: list[Path]) -> Iterator[tuple[str, Any]]:
    from google.protobuf.message import DecodeError
    from wandb.proto.wandb_internal_pb2 import Record

    for path in paths:
        for count, data in enumerate(binary.records(path)):
            try:
                record = Record.FromString(data)
            except DecodeError:
                raise unreadable(path, f"it is damaged after {count:,} records.") from None
            kind = record.WhichOneof("record_type") or "run"
            yield kind, getattr(record, kind)


def _items(items: Any) -> dict[str, Any]:
    return {one.key or ".".join(one.nested_key): json.loads(one.value_json) for one in items}


def _offline_rows(paths: list[Path]) -> Iterator[dict[str, Any]]:
    return (_items(message.item) for kind, message in _offline_records(paths) if kind == "history")


def wandb(where: str) -> Iterator[SourceRun]:
    """Yield the runs of a project, ``entity/project``, of the W&B server that is logged in to."""
    from wandb import Api

    api = Api()
    sweeps: dict[str, Any] = {}
    for run in api.runs(where):
        # Fields of W&B's MetricRecord: 1 name, 2 pattern, 4 step metric, or 5 its place from 1.
        made = run.rawconfig.get("_wandb", {}).get("m", [])
        axes = {one.get("1") or one["2"]: one.get("4") or one.get("5") for one in made}
        named = {n: made[x - 1]["1"] if isinstance(x, int) else x for n, x in axes.items() if x}
        rows = partial(run.scan_history, page_size=10_000)
        if (of := run.sweep_name) and of not in sweeps:  # Each time it is a request.
            sweeps[of] = run.sweep
        sweep = sweeps.get(of)
        metric = (sweep and sweep.config.get("metric")) or {}
        yield SourceRun(
            *("wandb", f"{api.settings['base_url']}/{where}", run.id, run.name, run.project),
            *(partial(_wandb_points, rows, named), _time(run.created_at, UTC)),
            ended_at=_time(run.heartbeat_at, UTC) if run.heartbeat_at else None,
            outcome=_ENDS.get(run.state, "failed"),
            reason=run.state,
            config=dict(run.config),
            tags=[*run.tags],
            group=(sweep.id, sweep.name) if sweep else (run.group or "",) * 2,
            metric={n: v for n, v in metric.items() if n in {"name", "goal"}} or None,
            notes=run.notes or "",
        )


def _wandb_points(rows: Callable[[], Any], declared: dict[str, str]) -> Iterator[CurveRow]:
    """Split each row by the x axes of its metrics. A row has all that was logged at once, also
    metrics whose ``define_metric`` names another one as their step.
    """
    axes = _axes(map(_numbers, rows()), declared) if declared else {}
    for row in map(_numbers, rows()):
        at, own = row.pop("_timestamp", None), int(row.pop("_step"))
        row.pop("_runtime", None)
        parts: dict[int, dict[str, float]] = {}
        for name, value in row.items():
            parts.setdefault(int(row[axes[name]]) if name in axes else own, {})[name] = value
        for step, values in parts.items():
            yield CurveRow(step, values, "", at)


def _axes(rows: Iterator[dict[str, float]], declared: dict[str, str]) -> dict[str, str]:
    """Return the metrics with an x axis of their own that can be their steps: whole numbers that
    only grow, in each of their rows. W&B's count is the step of all others.
    """
    declared = {axis: axis for axis in declared.values()} | declared
    # A whole name counts before a pattern, and the last one of several.
    ranked = sorted(declared.items(), key=lambda one: "*" not in one[0])[::-1]
    axes: dict[str, str] = {}
    last: dict[str, tuple[float, float]] = {}
    wrong: set[str] = set()
    for row in rows:
        for name, value in row.items():
            if name not in axes:
                axes[name] = next((axis for n, axis in ranked if fnmatchcase(name, n)), "")
            if axes[name]:
                x = row.get(axes[name], -1.0)
                before, then = last.get(name, (-1.0, 0.0))
                if x < max(before, 0) or not x.is_integer() or (x == before and value != then):
                    wrong.add(name)
                last[name] = x, value
    return {n: axis for n, axis in axes.items() if axis and not wrong & {n, axis}}
