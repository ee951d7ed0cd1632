"""One client of one server in its own process, run by the interpreter that has its package.

    python client.py lehr|sqlite|mlflow|trackio ADDRESS SETUP CALLS STEPS_A_CALL METRICS

Says ``ready``, waits for a line, logs CALLS times so many points (STEPS_A_CALL steps of METRICS
metrics), each call confirmed by the server before the next, and prints when it began and ended.
SETUP is what its kind needs, as JSON. What a call costs the client counts, too.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable

Send = Callable[[int, list[dict[str, float]]], None]


def lehr(address: str, setup: dict[str, str]) -> Send:
    from lehr.node.http_client import ServerConnection

    server = ServerConnection(lambda: address, setup["token"], setup["attempt"])
    offset = 0

    def send(first: int, rows: list[dict[str, float]]) -> None:
        nonlocal offset
        lines = [
            json.dumps(
                {
                    "kind": "metrics",
                    "time": time.time(),
                    "step": first + place,
                    "tokens": first + place,
                    "values": values,
                }
            )
            for place, values in enumerate(rows)
        ]
        data = ("\n".join(lines) + "\n").encode()
        answer = server.put(f"streams/events.jsonl?offset={offset}", data).must(200)
        offset = answer.json()["offset"]

    return send


def sqlite(address: str, setup: dict[str, str]) -> Send:
    import sqlite3

    database = sqlite3.connect(address, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute(
        "CREATE TABLE metrics (run INTEGER, metric INTEGER, step INTEGER, value REAL,"
        " PRIMARY KEY (run, metric, step)) WITHOUT ROWID"
    )

    def send(first: int, rows: list[dict[str, float]]) -> None:
        points = [  # In the order of the key: the fastest.
            (1, metric, step, row[name])
            for metric, name in enumerate(rows[0])
            for step, row in enumerate(rows, first)
        ]
        database.execute("BEGIN IMMEDIATE")
        database.executemany("INSERT INTO metrics VALUES (?,?,?,?)", points)
        database.execute("COMMIT")

    return send


def mlflow(address: str, setup: dict[str, str]) -> Send:
    from mlflow.entities import Metric
    from mlflow.tracking import MlflowClient

    client = MlflowClient(address)

    def send(first: int, rows: list[dict[str, float]]) -> None:
        at = int(time.time() * 1000)
        points = [
            Metric(name, value, at, first + place)
            for place, values in enumerate(rows)
            for name, value in values.items()
        ]
        client.log_batch(setup["run"], metrics=points, synchronous=True)

    return send


def trackio(address: str, setup: dict[str, str]) -> Send:
    from trackio.remote_client import RemoteClient

    client = RemoteClient(address, write_token=setup["token"], httpx_kwargs={"timeout": 120})

    def send(first: int, rows: list[dict[str, float]]) -> None:
        logs = [
            {"project": "bench", "run": setup["run"], "metrics": values, "step": first + place}
            for place, values in enumerate(rows)
        ]
        client.predict(api_name="/bulk_log", logs=logs, hf_token=None)

    return send


def main() -> None:
    kind, address, setup, calls, steps, metrics = sys.argv[1:7]
    kinds = {"lehr": lehr, "sqlite": sqlite, "mlflow": mlflow, "trackio": trackio}
    send = kinds[kind](address, json.loads(setup))
    count, names = int(steps), [f"train/metric_{n}" for n in range(int(metrics))]
    rng = random.Random(0)
    batches = [
        [{name: rng.random() for name in names} for _ in range(count)] for _ in range(int(calls))
    ]
    send(1, batches[0])  # The first call opens connections and makes rows.
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.time()
    for number, rows in enumerate(batches, start=1):
        send(1 + number * count, rows)
    print(json.dumps({"began": began, "ended": time.time()}), flush=True)


if __name__ == "__main__":
    main()
