"""Slurm: the job that this process runs in, and jobs whose nodes join a server."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence

from lehr.cluster.ray_ports import DEFAULT_BASE
from lehr.errors import LehrError, UserError

TOKEN_S = 30 * 86_400.0
"""The join token of a job is valid for so long: it may wait in Slurm's queue, and be requeued."""
# Slurm sends its signal up to 60 s sooner. By then the trainings have been stopped
# (``availability.MARGIN_S`` before the end), so that the nodes leave.
_SCRIPT = """\
#!/bin/bash
# Written by lehr slurm up: each node of this job joins the server in LEHR_SERVER by the token in
# LEHR_JOIN_TOKEN, both in the environment of sbatch.
#SBATCH --job-name=lehr
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --time={minutes}
#SBATCH --signal=TERM@120{options}

# Local to each node, and for this job only.
export LEHR_HOME="${{TMPDIR:-/tmp}}/lehr-$SLURM_JOB_ID"
# A cancelled job sends SIGTERM to this shell, too. It waits until the nodes have left.
trap : TERM
srun --kill-on-bad-exit=0 --wait=0 --cpu-bind=none {command}
"""


def job() -> str | None:
    """Return the id of the job that this process is a task of; None outside of one.

    A shell of salloc may run on a login node: it has an id, but no node.
    """
    return os.environ.get("SLURM_JOB_ID") if os.environ.get("SLURMD_NODENAME") else None


def node_name(base_port: int) -> str:
    """Return the name of this node: Slurm's, and a number for a second job on it.

    It does not name the job: an exclusion of the machine holds for its next job, too.
    """
    number = (base_port - DEFAULT_BASE) // 200 + 1
    return os.environ["SLURMD_NODENAME"] + (f"-{number}" if number > 1 else "")


def end_of(job_id: str) -> float:
    """Return when the job ends by its time limit, in seconds since the epoch.

    Raises:
        LehrError: Slurm does not answer, or does not know it.
    """
    end = os.environ.get("SLURM_JOB_END_TIME")  # Set by newer versions of Slurm.
    if end is None:
        end = _run("squeue", "-h", "-j", job_id, "-o", "%e", variables={"SLURM_TIME_FORMAT": "%s"})
    if not end.isdecimal():
        raise UserError(
            f"the end of Slurm job {job_id} is not known; squeue prints {end!r}.",
            hint="Name it: --until TIME",
        )
    return float(end)


def script(*, nodes: int, time_s: float, logical_gpus: int | None, options: Sequence[str]) -> str:
    """Return the job's script. ``options``: further words for sbatch."""
    lines = "".join(
        ("\n#SBATCH " if word.startswith("-") else " ") + shlex.quote(word) for word in options
    )
    command = [sys.executable, "-P", "-m", "lehr.faces.cli.main", "node", "join", "--foreground"]
    command += [] if logical_gpus is None else ["--gpus", str(logical_gpus)]
    words = shlex.join(command)
    return _SCRIPT.format(nodes=nodes, minutes=int(time_s // 60), options=lines, command=words)


def submit(text: str, variables: Mapping[str, str]) -> str:
    """Submit a script; return the id of its job.

    ``variables``: for the job, secrets among them; only its user can read its environment.

    Raises:
        LehrError: there is no Slurm, or it refuses the job.
    """
    # The option is stronger than the site's SBATCH_EXPORT, by which the token might be lost.
    answer = _run("sbatch", "--parsable", "--export=ALL", variables=variables, text=text)
    return answer.partition(";")[0]


def _run(*words: str, variables: Mapping[str, str], text: str = "") -> str:
    kept = {"LEHR_RUNS", "LEHR_DATA"}
    inherited = {n: v for n, v in os.environ.items() if not n.startswith("LEHR_") or n in kept}
    try:
        environment = {**inherited, **variables}
        done = subprocess.run(
            words, input=text, env=environment, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise LehrError(
            f"{words[0]} of Slurm cannot be run: {error.strerror}.",
            hint="Run this on a machine that can submit jobs to Slurm.",
        ) from error
    if done.returncode != 0:
        raise LehrError(f"{words[0]}: {' '.join(done.stderr.split()) or done.returncode}")
    return done.stdout.strip()
