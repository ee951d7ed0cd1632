"""Read offline files of W&B by the record schema of W&B."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lehr.analysis.curve_files.binary import records


@dataclass
class OfflineRun:
    """One ``run-<id>.wandb``."""

    path: Path
    run: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    artifacts: list[Any] = field(default_factory=list)
    alerts: list[Any] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)
    exit_code: int | None = None

    def series(self, name: str) -> tuple[list[int], list[float]]:
        """Steps and values of one metric, as the rows have them."""
        rows = [row for row in self.rows if name in row]
        return [row["step"] for row in rows], [float(row[name]) for row in rows]

    def table(self, key: str) -> dict[str, Any]:
        return json.loads((self.path.parent / "files" / self.summary[key]["path"]).read_bytes())


def offline_runs(folder: Path) -> list[OfflineRun]:
    return [read(path) for path in sorted(folder.rglob("*.wandb"))]


def read(path: Path) -> OfflineRun:
    from wandb.proto import wandb_internal_pb2 as pb

    found = OfflineRun(path)
    for data in records(path):
        record = pb.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.run = record.run
            found.config |= _items(record.run.config.update)
        elif kind == "history":
            found.rows.append(_items(record.history.item))
        elif kind == "summary":
            found.summary |= _items(record.summary.update)
        elif kind in {"artifact", "metric", "alert"}:
            getattr(found, f"{kind}s").append(getattr(record, kind))
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
    return found


def _items(items: Any) -> dict[str, Any]:
    return {"/".join([i.key] if i.key else i.nested_key): json.loads(i.value_json) for i in items}
