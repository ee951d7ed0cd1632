"""What a joined machine remembers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lehr.cluster.ray_ports import DEFAULT_BASE
from lehr.joining.record import JoinRecord, changes, own_name

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


def test_changes_between_two_ways_to_join_are_named_with_both_values():
    assert changes(USUAL, USUAL) == {}
    assert changes(USUAL, replace(USUAL, node_token="another")) == {}
    other = replace(
        USUAL, server_url="http://a", gpus=2, runs_dir="/x", interface="eth1", ca_file="/ca.pem"
    )
    assert list(changes(USUAL, other).values()) == [
        "URL http://a instead of http://10.0.0.1:5347",
        "--gpus 2 instead of 8",
        "--runs /x instead of /home/lehr/.lehr/runs",
        "--interface eth1 instead of none",
        "--ca /ca.pem instead of none",
    ]
    assert changes(USUAL, replace(USUAL, base_port=0)) == {}


def test_record_of_an_older_lehr_has_no_options_and_no_token_is_printed():
    old = JoinRecord("http://10.0.0.1:5347", own_name(), "secret", 1, logical=True)
    assert old.command(HOME) == [*JOIN, "--gpus", "1"]
    assert "secret" not in repr(old)
