"""List runs and read series over HTTP, with the client of each package.

    python reader.py lehr|sqlite|mlflow|trackio ADDRESS SETUP REPEATS

Prints the seconds of each repeat: of listing all runs, of reading 50 series of one run, and of
Lehr and bare SQLite, of getting the list as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

METRICS = [f"train/metric_{n}" for n in range(50)]
Acts = tuple[Callable[[], int], ...]

STORED = """
SELECT r.id, r.name, project, sweep_id, tags, note, state, desired, reason, cause, pending_reason,
    r.attempt, priority, r.created_at, queued_at, started_at, ended_at, archived, forked_from,
    submitted_by, last_step, placement,
    (SELECT json_group_object(name, json_object('value', value, 'step', step))
        FROM streams.runs AS i JOIN latest ON latest.run = i.id AND latest.attempt = r.attempt
        JOIN names ON names.id = metric WHERE i.run = r.id) AS latest,
    (SELECT value FROM streams.runs AS i
        JOIN latest ON latest.run = i.id AND latest.attempt = r.attempt AND metric = -2
        WHERE i.run = r.id) AS recorded_at
FROM main.runs AS r LEFT JOIN attempts AS a ON a.run_id = r.id AND a.number = r.attempt
WHERE NOT archived ORDER BY r.number DESC LIMIT 1000
"""
"""What Lehr's list shows, as far as it is stored: not what it computes, as its sparklines."""


def lehr(address: str, setup: dict[str, str]) -> Acts:
    from lehr.faces.client import Client

    client = Client(address, token=setup["token"])

    def series() -> int:
        run = client.run(setup["run"])
        return len(run.history(*METRICS)) * len(METRICS)

    answer = lambda: client.transport.get("/runs", {"limit": 1000})  # noqa: E731
    return lambda: len(client.runs()), series, lambda: answer().count(b'"queued_at"')


def sqlite(address: str, setup: dict[str, str]) -> Acts:
    """The same values from Lehr's own files, and the same points from a row a point."""
    import sqlite3

    import numpy as np

    home = sqlite3.connect(f"{setup['home']}/lehr.db")
    home.row_factory = sqlite3.Row
    home.execute("ATTACH ? AS streams", (f"{setup['home']}/streams.db",))
    points = sqlite3.connect(address)

    def listing() -> int:
        return json.dumps([dict(row) for row in home.execute(STORED)]).count('"queued_at"')

    def series() -> int:
        return len(np.array(points.execute("SELECT metric, step, value FROM metrics").fetchall()))

    return listing, series, listing


def mlflow(address: str, setup: dict[str, str]) -> Acts:
    import pandas as pd
    from mlflow.tracking import MlflowClient

    client = MlflowClient(address)

    def listing() -> int:
        return len(client.search_runs(["0"], max_results=2000))

    def series() -> int:
        columns = {}
        for name in METRICS:
            found = client.get_metric_history(setup["run"], name)
            columns[name] = pd.Series([p.value for p in found], index=[p.step for p in found])
        return len(pd.DataFrame(columns)) * len(METRICS)

    return listing, series


def trackio(address: str, setup: dict[str, str]) -> Acts:
    import pandas as pd
    from trackio.remote_client import RemoteClient

    client = RemoteClient(address, write_token=setup["token"], httpx_kwargs={"timeout": 120})

    def listing() -> int:
        return len(client.predict("bench", api_name="/get_runs_for_project"))

    def series() -> int:
        rows = client.predict("bench", setup["run"], api_name="/get_logs")
        return len(pd.DataFrame(rows).set_index("step")[METRICS]) * len(METRICS)

    return listing, series


def main() -> None:
    kind, address, setup, repeats = sys.argv[1:5]
    kinds: Any = {"lehr": lehr, "sqlite": sqlite, "mlflow": mlflow, "trackio": trackio}
    made = kinds[kind](address, json.loads(setup))
    acts = dict(zip(("list", "series", "json"), made, strict=False))
    found: dict[str, Any] = {"counts": {name: act() for name, act in acts.items()}, "s": []}
    for _ in range(int(repeats)):
        for name, act in acts.items():
            began = time.perf_counter()
            act()
            found["s"].append((name, time.perf_counter() - began))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
