"""Seeds on the real platform: a run is repeated, and a comparison knows its noise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lehr_testing.server import Server
from lehr_testing.specs import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("platform"),
    pytest.mark.nightly,  # tests/api/test_seeds.py repeats and compares recorded values.
]


def lehr(server: Server, *arguments: str) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lehr"), *arguments],
        env={**server.environment, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_repeated_trainings_tell_a_difference_from_the_noise_of_their_seeds(server, corpus):
    client = server.client()
    rates = {"seeds-base": 3e-3, "seeds-near": 3.01e-3, "seeds-slow": 1e-6}
    runs = {
        name: client.submit(
            run(corpus, name, steps=40, optimizer={"lr": rate}, checkpoint={"every": 40})
        )
        for name, rate in rates.items()
    }
    printed = lehr(server, "seeds", "seeds-base", "--n", "3", "--yes")
    assert "3 runs queued" in printed
    lehr(server, "seeds", "seeds-slow", "--n", "2", "--yes")
    lehr(server, "seeds", "seeds-near", "--n", "2", "--yes")
    sweeps = {sweep.name: sweep for sweep in client.sweeps()}
    for sweep in (sweeps[f"{name}-seeds"] for name in rates):
        sweep.wait(timeout_s=600)
        assert set(sweep.view.counts) == {"completed"}
        seeds = [trial.parameters["train.seed"] for trial in sweep.trials]
        assert seeds == [1, 2, 3][: len(seeds)]
        losses = [one.history("val/loss")["val/loss"].iloc[-1] for one in sweep.runs()]
        assert len(set(losses)) == len(losses), "another seed is another training"
    for one in runs.values():
        one.wait(timeout_s=300)
    told = lehr(server, "compare", *rates, *(f"{name}-seeds" for name in rates))
    found = re.search(
        r"seeds-slow is worse than seeds-base by (\S+) ± (\S+) \(3 and 4 seeds\)", told
    )
    assert found is not None, told
    assert float(found[1]) > 10 * float(found[2])
    assert re.search(
        r"seeds-near looks \w+ than seeds-base by \S+ ± \S+, within seed noise", told
    ), told
