"""List runs and read series over HTTP, with the client of each package.

    python reader.py lehr|mlflow|trackio ADDRESS SETUP REPEATS

Prints the seconds of each repeat: of listing all runs, and of reading 50 series of one run.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

METRICS = [f"train/metric_{n}" for n in range(50)]


def lehr(address: str, setup: dict[str, str]) -> tuple[Callable[[], int], Callable[[], int]]:
    from lehr.faces.client import Client

    client = Client(address, token=setup["token"])

    def series() -> int:
        run = client.run(setup["run"])
        return len(run.history(*METRICS)) * len(METRICS)

    return lambda: len(client.runs()), series


def mlflow(address: str, setup: dict[str, str]) -> tuple[Callable[[], int], Callable[[], int]]:
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


def trackio(address: str, setup: dict[str, str]) -> tuple[Callable[[], int], Callable[[], int]]:
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
    acts: Any = {"lehr": lehr, "mlflow": mlflow, "trackio": trackio}
    listing, series = acts[kind](address, json.loads(setup))
    found: dict[str, Any] = {"runs": listing(), "points": series(), "list_s": [], "series_s": []}
    for _ in range(int(repeats)):
        for name, act in (("list_s", listing), ("series_s", series)):
            began = time.perf_counter()
            act()
            found[name].append(time.perf_counter() - began)
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
