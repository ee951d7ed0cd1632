"""What a joined machine remembers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lehr.cluster.ray_ports import DEFAULT_BASE
from lehr.joining.record import JoinRecord, own_name

HOME = Path("/home/lehr/.lehr")
USUAL = JoinRecord(
    "http://10.0.0.1:5347",
    own_name(),
    "secret",
    8,
    logical=False,
    runs_dir="/home/lehr/.lehr/runs",
    data_dir="/home/lehr/.lehr/data",
    base_port=DEFAULT_BASE,
)
JOIN = ["lehr", "node", "join", "http://10.0.0.1:5347"]


def test_command_to_join_again_has_the_options_that_are_no_default():
    assert USUAL.command(HOME) == [*JOIN, "--gpus", "8"]
    changed = replace(
        USUAL,
        node="gpu-2",
        runs_dir="/mnt/runs",
        data_dir="/mnt/data",
        interface="eth1",
        base_port=9000,
        ca_file="/etc/ca.pem",
    )
    assert changed.command(HOME) == [
        *JOIN,
        *("--name", "gpu-2", "--gpus", "8", "--runs", "/mnt/runs", "--data", "/mnt/data"),
        *("--interface", "eth1", "--base-port", "9000", "--ca", "/etc/ca.pem"),
    ]


def test_record_of_an_older_lehr_has_no_options_and_no_token_is_printed():
    old = JoinRecord("http://10.0.0.1:5347", own_name(), "secret", 1, logical=True)
    assert old.command(HOME) == [*JOIN, "--gpus", "1"]
    assert "secret" not in repr(old)
