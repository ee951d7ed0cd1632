"""Jobs of Slurm by its commands alone. ``tests/faults/test_slurm.py`` has a real Slurm."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from lehr.base import home, signed_tokens
from lehr.cluster import ray_ports
from lehr.errors import LehrError
from lehr.faces.join import slurm
from lehr_testing.cli import call

SECRET = "t" * 43


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Write commands of Slurm: nothing else is on the path. A server runs in a home."""
    for name in ("SLURM_JOB_ID", "SLURMD_NODENAME", "SLURM_JOB_END_TIME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    info = home.ServerInfo("http://10.0.0.1:5347", 1, "1.0", "/etc/ca.pem")
    home.write_server(tmp_path / "home", info)
    (tmp_path / "home" / "token").write_text(SECRET)

    def write(name, text):
        (tmp_path / name).write_text(f"#!/bin/bash\nPATH=/usr/bin:/bin\n{text}\n")
        (tmp_path / name).chmod(0o755)

    return write


def up(tmp_path, *options):
    return call("slurm", "up", *options, cwd=tmp_path, LEHR_HOME=str(tmp_path / "home"))


def test_only_a_task_is_in_a_job(commands, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert slurm.job() is None  # A shell of salloc on a login node.
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert slurm.job() == "7"
    assert slurm.node_name(ray_ports.DEFAULT_BASE) == "n1"
    assert slurm.node_name(ray_ports.DEFAULT_BASE + 200) == "n1-2"


def test_end_of_a_job_is_read_from_its_environment_or_from_squeue(commands, monkeypatch):
    # Seconds since the epoch: a local time would not name its zone.
    commands("squeue", '[ "$SLURM_TIME_FORMAT $*" = "%s -h -j 7 -o %e" ] && echo 1795976194')
    assert slurm.end_of("7") == 1795976194.0
    commands("squeue", "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
    with pytest.raises(LehrError, match="squeue: slurm_load_jobs error: Invalid job id"):
        slurm.end_of("7")
    commands("squeue", "echo N/A")
    with pytest.raises(LehrError, match="Slurm job 7 is not known; squeue prints 'N/A'"):
        slurm.end_of("7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "1795976000")
    assert slurm.end_of("7") == 1795976000.0


def test_job_is_submitted_with_its_token_in_the_environment_alone(commands, tmp_path):
    commands("sbatch", "echo $* > words && env > variables && cat > script && echo '7;cluster'")
    options = ("--nodes", "2", "--", "--partition", "gpu", "-A", "my lab")
    assert "Slurm job 7 is submitted: 2 nodes for 8 h" in up(tmp_path, *options).stdout
    script, words = ((tmp_path / name).read_text() for name in ("script", "words"))
    assert up(tmp_path, "--print", *options).stdout == script
    subprocess.run(["/bin/bash", "-n"], input=script, text=True, check=True)
    lines = [shlex.split(line)[1:] for line in script.splitlines() if "#SBATCH" in line]
    assert {"--nodes=2", "--time=480", "--signal=TERM@120"} < {word for [word, *_] in lines}
    assert lines[-2:] == [["--partition", "gpu"], ["-A", "my lab"]]
    kept = dict(line.split("=", 1) for line in (tmp_path / "variables").read_text().splitlines())
    assert signed_tokens.check(SECRET, kept["LEHR_JOIN_TOKEN"], now=0.0) is not None
    assert (kept["LEHR_SERVER"], kept["LEHR_CA"]) == ("http://10.0.0.1:5347", "/etc/ca.pem")
    assert "LEHR_HOME" not in kept
    for secret in (kept["LEHR_JOIN_TOKEN"], "10.0.0.1"):
        assert secret not in script + words


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ((), "sbatch of Slurm cannot be run: No such file or directory"),
        (("--time", "5m"), "--time '5m' is too short: trainings move on 5 m before"),
        (("--time", "8:00"), "--time '8:00' is not a time"),
        (("gpu",), "'gpu' is not an option of sbatch"),
    ],
)
def test_what_cannot_be_submitted_is_one_sentence(commands, tmp_path, options, error):
    assert error in up(tmp_path, *options).stderr
