"""Time from `submit` to the first optimizer step, compared with the same training started by hand.

The platform's share is what dispatch costs: HTTP, the queue's decision, Ray, agent, shim. Both
sides run the same config in turn on the same machine, so the ratio holds where seconds do not.

    python tests/bench/submit_to_first_step.py [--pairs 5]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import yaml

from lehr_testing import specs
from lehr_testing.server import Server, events


def first_step_time(records: list[dict[str, Any]]) -> float:
    return float(next(r["time"] for r in records if r["kind"] == "metrics"))


def through_the_platform(server: Server, corpus: Path, name: str) -> float:
    client = server.client()
    began = time.time()
    run = client.submit(specs.run(corpus, name, steps=2))
    run.wait(timeout_s=300)
    return first_step_time(events(server.home, f"{run.id}-1")) - began


def by_hand(folder: Path, corpus: Path, data: Path) -> float:
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(specs.train(corpus, steps=2)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "1", "-m", "lehr_trainer", str(folder)]
    environment = {**os.environ, "LEHR_DATA": str(data), "OMP_NUM_THREADS": "1"}
    began = time.time()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    lines = (folder / "attempt-1" / "events.jsonl").read_text().splitlines()
    return first_step_time([json.loads(line) for line in lines]) - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory(prefix="lehr-bench-") as scratch:
        root = Path(scratch)
        corpus = specs.text_corpus(root / "texts")
        server = Server(root / "home", gpus=1, trainer=None)
        server.up()
        try:
            server.cluster_ready()
            # Not counted: the corpus is prepared, and the disk's cache is warm.
            through_the_platform(server, corpus, "warm")
            by_hand(root / "warm", corpus, root / "data")
            platform, hand = [], []
            for n in range(pairs):
                platform.append(through_the_platform(server, corpus, f"bench-{n}"))
                hand.append(by_hand(root / f"hand-{n}", corpus, root / "data"))
        finally:
            server.down()
    ratios = [a / b for a, b in zip(platform, hand, strict=True)]
    result = {
        "bench": "submit_to_first_step",
        "pairs": pairs,
        "platform_s": round(statistics.median(platform), 3),
        "by_hand_s": round(statistics.median(hand), 3),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "obtained": "wall-clock of the worker's first metrics record less that of the submit call; medians",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
