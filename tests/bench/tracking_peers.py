"""Ingestion and reading over HTTP, compared with bare SQLite, MLflow (SQLite) and Trackio.

    LEHR_BENCH_PEERS=/path/to/python python tests/bench/tracking_peers.py [--clients 4] [--calls 40]
        [--rounds 3] [--runs 1000] [--skip-reading] [--skip-ingestion]

Ingestion: so many clients, each a process with a run of its own, log 1,000 points a call (100
steps of 10 metrics) by their package's own client, and wait for each answer; in turns, so that
what else the machine does meets all alike. Every point is counted in the database afterwards.
Reading: all runs listed, and 50 series of 2,000 points of one run as a pandas frame. A peer that
is not installed is named as such. Bare SQLite is one process without a server: it inserts the same
rows, a row a point, with a durable commit a call; it dumps what is stored of the list as JSON, and
reads the points into numpy, each by one statement.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from peers.servers import HERE, SERVERS, Peer, lacking, race

STEPS, METRICS = 100, 10


def ingest(folder: Path, kinds: list[str], clients: int, calls: int, rounds: int) -> dict[str, Any]:
    rates: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in kinds:
            # One server at a time: another one's idling must not be paid by this one.
            with SERVERS[kind](folder / f"{kind}-{number}", clients) as peer:
                each = clients * calls // len(peer.setups)
                seconds = race(peer, calls=each, steps=STEPS, metrics=METRICS)
                wanted = len(peer.setups) * (each + 1) * STEPS * METRICS
                stored = peer.points()
                if stored != wanted:
                    raise SystemExit(f"{kind}: {stored:,} points stored of {wanted:,}")
                rates[kind].append(clients * calls * STEPS * METRICS / seconds)
                print(f"  {kind:<8}{rates[kind][-1]:>10,.0f} points/s", file=sys.stderr)
    return {
        kind: {
            "points_per_s": round(statistics.median(found)),
            "each": [round(rate) for rate in found],
            "ratio": round(
                statistics.median(a / b for a, b in zip(rates["lehr"], found, strict=True)), 2
            ),
        }
        for kind, found in rates.items()
    }


def read(folder: Path, kinds: list[str], runs: int, rounds: int) -> dict[str, Any]:
    seconds: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    with ExitStack() as stack:
        peers: list[Peer] = []
        for kind in kinds:
            peer = stack.enter_context(SERVERS[kind](folder / f"{kind}-read", 1, runs))
            race(peer, calls=99, steps=20, metrics=50)
            if kind == "lehr":
                peer.setups[0]["token"] = peer.headers["Authorization"].removeprefix("Bearer ")
            elif kind == "sqlite":
                peer.setups[0]["home"] = str(peers[0].folder)
            peers.append(peer)
        for peer in peers * rounds:
            done = subprocess.run(
                [
                    *(peer.python, str(HERE / "reader.py"), peer.kind, peer.address),
                    *(json.dumps(peer.setups[0]), "5"),
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise SystemExit(f"{peer.kind}: {done.stderr[-2000:]}")
            measured = json.loads(done.stdout.splitlines()[-1])
            for name, count in measured["counts"].items():
                if count != (50 * 2000 if name == "series" else runs):
                    raise SystemExit(f"{peer.kind}, {name}: read {count:,}")
            for name, took in measured["s"]:
                seconds[peer.kind].setdefault(name, []).append(took)
    found = {
        kind: {f"{name}_ms": round(1000 * statistics.median(took), 1) for name, took in own.items()}
        for kind, own in seconds.items()
    }
    ratios = {
        kind: {
            f"{name[:-3]}_ratio": round(took / found["lehr"][name], 2) for name, took in own.items()
        }
        for kind, own in found.items()
    }
    return {kind: {**found[kind], **ratios[kind]} for kind in kinds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--skip-reading", action="store_true")
    parser.add_argument("--skip-ingestion", action="store_true")
    parser.add_argument("--only", nargs="*", default=["mlflow", "trackio"])
    options = parser.parse_args()
    # Ended from outside, it ends its servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    missing = {peer: why for peer in options.only if (why := lacking(peer))}
    kinds = ["lehr", "sqlite", *(peer for peer in options.only if peer not in missing)]
    for why in missing.values():
        print(f"Not compared: {why}", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="lehr-bench-") as name:
        folder = Path(name)
        found: dict[str, Any] = {
            "cpus": os.cpu_count(),
            "load": round(os.getloadavg()[0], 1),
            "not_compared": missing,
        }
        if not options.skip_ingestion:
            found["ingest"] = ingest(folder, kinds, options.clients, options.calls, options.rounds)
        if not options.skip_reading:
            found["read"] = read(folder, kinds, options.runs, options.rounds)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
