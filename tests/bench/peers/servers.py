"""The servers that are compared, each on a port and in a folder of its own.

The peers' interpreter is LEHR_BENCH_PEERS (a Python with mlflow and trackio), else this one.
"""

from __future__ import annotations

import json
import os
import secrets
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

TESTS = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS))

from lehr_testing.server import free_port  # noqa: E402 - the path is set above
from lehr_testing.waiting import until  # noqa: E402

HERE = Path(__file__).parent
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""No telemetry, and no idle workers for unused jobs."""
PEERS = os.environ.get("LEHR_BENCH_PEERS") or sys.executable


def lacking(package: str) -> str | None:
    """Return why a peer cannot be compared, or None."""
    found = subprocess.run([PEERS, "-c", f"import {package}"], capture_output=True, check=False)
    if found.returncode == 0:
        return None
    return (
        f"{package} is not installed for {PEERS}: pip install {package} into an environment of "
        "its own, and name its Python in LEHR_BENCH_PEERS"
    )


@dataclass
class Peer:
    kind: str
    address: str
    setups: list[dict[str, str]] = field(default_factory=list)
    """What each client is given."""
    folder: Path = Path()

    @property
    def python(self) -> str:
        return sys.executable if self.kind in {"lehr", "sqlite"} else PEERS

    def points(self) -> int:
        """Count the stored points in its database."""
        if self.kind == "lehr":
            with httpx.Client(headers=self.headers, timeout=60) as http:
                return sum(
                    metric["points"]
                    for setup in self.setups
                    for metric in http.get(
                        f"{self.address}/api/v1/runs/{setup['run']}/metrics"
                    ).json()
                )
        [path] = self.folder.rglob("bench.db" if self.kind == "trackio" else f"{self.kind}.db")
        with closing(sqlite3.connect(path)) as connection:
            if self.kind != "trackio":
                return int(connection.execute("SELECT count(*) FROM metrics").fetchone()[0])
            rows = connection.execute("SELECT metrics FROM metrics")
            return sum(len(json.loads(row[0])) for row in rows)

    @property
    def headers(self) -> dict[str, str]:
        from lehr_testing.api import TOKEN

        return {"Authorization": f"Bearer {TOKEN}"}


SERVE = """
import sys, threading
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import json
from lehr.app.presenters.runs import CORE_METRICS
from lehr.specs import load_spec
from lehr_testing.api import RUN_SPEC, attempt_token, begin, end, finished, ingest, metrics, served
from lehr_testing.api import started
values = {name: 1 / 7 for name in CORE_METRICS}
records = started() + metrics(1, 30, **values) + finished(30)
with served(Path(sys.argv[2])) as (api, address):
    setups = []
    for n in range(int(sys.argv[3])):
        run = api.store.runs.create(load_spec({**RUN_SPEC, "name": f"r{n}"}))
        attempt = begin(api.store, run.id)
        if n < int(sys.argv[4]):
            setups.append({"run": run.id, "attempt": attempt, "token": attempt_token(run.id)})
        else:
            ingest(api.store, attempt, records)
            end(api.store, run.id)
    print(json.dumps([address, setups]), flush=True)
    sys.stdin.readline()
"""


@contextmanager
def lehr(folder: Path, clients: int, runs: int = 0) -> Iterator[Peer]:
    """The API over a real store; no Ray, which would take the processor for itself."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            SERVE,
            str(TESTS),
            str(folder),
            str(max(runs, clients)),
            str(clients),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        address, setups = json.loads(process.stdout.readline())
        yield Peer("lehr", address, setups, folder)
    finally:
        process.communicate("\n", timeout=60)


@contextmanager
def bare(folder: Path, clients: int, runs: int = 0) -> Iterator[Peer]:
    """One table with a row a point, and one process that writes it: no server."""
    folder.mkdir(parents=True)
    yield Peer("sqlite", str(folder / "sqlite.db"), [{}], folder)


@contextmanager
def mlflow(folder: Path, clients: int, runs: int = 0) -> Iterator[Peer]:
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = ["-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"]
    command += ["--artifacts-destination", str(folder / "artifacts"), "--port", str(port)]
    command += ["--workers", "1"]  # Several only wait for each other at SQLite.
    with _process(folder, command, f"{address}/health", {}):
        with httpx.Client(base_url=f"{address}/api/2.0/mlflow", timeout=120) as http:
            ids = []
            for _ in range(clients):
                answer = http.post("/runs/create", json={"experiment_id": "0"}).raise_for_status()
                ids.append(answer.json()["run"]["info"]["run_id"])
        _more_runs(folder / "mlflow.db", runs - clients)
        yield Peer("mlflow", address, [{"run": i} for i in ids[:clients]], folder)


def _more_runs(path: Path, count: int) -> None:
    """Insert rows like the one that the server created: a thousand requests would take minutes."""
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        connection.row_factory = sqlite3.Row
        row = dict(connection.execute("SELECT * FROM runs").fetchone())
        columns = ", ".join(row)
        marks = ", ".join("?" for _ in row)
        made = [{**row, "run_uuid": secrets.token_hex(16)} for _ in range(count)]
        connection.executemany(
            f"INSERT INTO runs ({columns}) VALUES ({marks})", [tuple(one.values()) for one in made]
        )
        connection.commit()


@contextmanager
def trackio(folder: Path, clients: int, runs: int = 0) -> Iterator[Peer]:
    port, token = free_port(), secrets.token_hex(8)
    address = f"http://127.0.0.1:{port}"
    environment = {
        "TRACKIO_DIR": str(folder),
        "TRACKIO_WRITE_TOKEN": token,
        "GRADIO_SERVER_PORT": str(port),
        "GRADIO_ANALYTICS_ENABLED": "False",
    }
    command = ["-m", "trackio.cli", "show", "--host", "127.0.0.1"]
    with _process(folder, command, f"{address}/version", environment):
        with httpx.Client(base_url=address, timeout=120) as http:
            headers = {"x-trackio-write-token": token}
            for first in range(clients, runs, 100):
                logs = [
                    {"project": "bench", "run": f"r{n}", "metrics": {"loss": 1.0}, "step": 1}
                    for n in range(first, min(first + 100, runs))
                ]
                body = {"logs": logs, "hf_token": None}
                http.post("/api/bulk_log", json=body, headers=headers).raise_for_status()
        setups = [{"run": f"r{n}", "token": token} for n in range(clients)]
        yield Peer("trackio", address, setups, folder)


@contextmanager
def _process(
    folder: Path, command: list[str], health: str, environment: dict[str, str]
) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [PEERS, *command],
            env={**os.environ, **_QUIET, **environment},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        until(lambda: process.poll() is not None or _answers(health), within_s=180, what=health)
        if process.poll() is not None:
            raise SystemExit(f"{command[1]}: {(folder / 'server.log').read_text()[-2000:]}")
        yield
    finally:
        os.killpg(process.pid, 15)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def race(peer: Peer, *, calls: int, steps: int, metrics: int) -> float:
    """Seconds from the first client's first call to the last one's last."""
    clients = [
        subprocess.Popen(
            [
                *(peer.python, str(HERE / "client.py"), peer.kind, peer.address),
                *(json.dumps(setup), str(calls), str(steps), str(metrics)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for setup in peer.setups
    ]
    for client in clients:
        assert client.stdout is not None
        if client.stdout.readline().strip() != "ready":
            raise SystemExit(f"a client of {peer.kind} failed")
    ends: list[dict[str, Any]] = []

    def finish(client: subprocess.Popen[str]) -> None:
        output, _ = client.communicate("\n")
        ends.append(json.loads(output))

    threads = [threading.Thread(target=finish, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(ends) < len(clients):
        raise SystemExit(f"a client of {peer.kind} failed")
    return float(max(e["ended"] for e in ends) - min(e["began"] for e in ends))


SERVERS = {"lehr": lehr, "sqlite": bare, "mlflow": mlflow, "trackio": trackio}
