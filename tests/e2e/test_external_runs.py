"""transformers' Trainer and Lightning log without a launch, and the server is killed meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lehr_testing.paths import TESTING
from lehr_testing.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,  # The imports of three frameworks. test_external.py kills the sender.
    pytest.mark.timeout(600),
    pytest.mark.xdist_group("platform"),
]
STEPS = 60
LIGHTNING = f"""
import torch, pl_own
from lehr_log.lightning import LehrCallback
trainer = pl_own.Trainer(
    max_steps={STEPS}, accelerator="cpu", logger=False, log_every_n_steps=1,
    enable_checkpointing=False, enable_progress_bar=False,
    callbacks=[pl_own.Pause(0.2), LehrCallback(project="lightning")],
)
data = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4)
trainer.fit(pl_own.Regression(0.1), data)
"""
SCRIPTS = {
    "hf": ["hf.py", f"--max_steps={STEPS}", "--pause_s=0.2"],
    "lightning": ["-c", LIGHTNING],
    "regression": [
        "-c",
        "import lehr_log; lehr_log.use_as_wandb(); import pl_own; pl_own.main()",
        "--logger=wandb",
        f"--max_steps={STEPS}",
        "--pause_s=0.2",
    ],
}


def test_killed_server_gets_each_point_of_each_framework_once(server, tmp_path):
    client = server.client()
    programs = TESTING / "programs"
    environment = os.environ | {
        "LEHR_SERVER": client.server,
        "LEHR_TOKEN": (server.home / "token").read_text().strip(),
        "PYTHONPATH": str(programs),
    }
    processes = []
    for name, (script, *arguments) in SCRIPTS.items():
        (tmp_path / name).mkdir()
        file = script if script == "-c" else str(programs / script)
        processes.append(
            subprocess.Popen(
                [sys.executable, file, *arguments], cwd=tmp_path / name, env=environment
            )
        )

    def log_on():
        return any(run.state == "external" and (run.step or 0) > 5 for run in client.runs())

    until(log_on, within_s=200, what="steps of one of them")
    server.kill()
    until(lambda: any(one.poll() is not None for one in processes), within_s=200, what="an end")
    client = server.up()
    until(lambda: not any(one.poll() is None for one in processes), within_s=300, what="their end")
    assert [one.returncode for one in processes] == [0] * len(SCRIPTS)

    def found():
        server.cli("sync", str(tmp_path), check=False)  # A sender gives up after a minute.
        return [run for run in client.runs() if not run.view.gpus]

    until(lambda: len(found()) == len(SCRIPTS), within_s=150, what="all runs", every_s=5)
    for run in found():
        run.wait(timeout_s=120)
        assert (run.state, run.view.attempt) == ("completed", 1)
        steps = list(run.history("train/loss")["step"])
        # Lightning's WandbLogger counts from 0.
        assert steps == list(range(steps[0], steps[0] + STEPS))
