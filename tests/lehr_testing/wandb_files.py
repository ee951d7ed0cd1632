"""What the files of W&B's offline mode have of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lehr.analysis.curve_files.binary import records
from lehr_testing.api import Api


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


def read(path: Path) -> OfflineRun:
    """Read the file of one run with the protocol of the real package."""
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


def assert_equal_series(
    api: Api, run_id: str, series: Callable[[str], tuple[list[int], list[float]]]
) -> None:
    """``series``: a metric's steps and values as W&B has them; NaN equals NaN."""
    infos = api.store.series.metrics(run_id)
    assert infos
    for info in infos:
        ours = api.store.series.read(run_id, info.name, exact=True)
        at, values = series(info.name)
        assert at == ours.step, info.name
        assert all(
            a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(values, ours.y, strict=True)
        ), info.name
