"""What a joined machine remembers."""

from __future__ import annotations

from dataclasses import replace

from lehr.cluster.ray_ports import DEFAULT_BASE
from lehr.faces.join.record import JoinRecord, changes, own_name

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


def test_changes_that_trainings_use_are_named_with_both_values():
    assert changes(USUAL, replace(USUAL, node_token="another")) == []
    other = replace(
        USUAL, server_url="http://a", gpus=2, runs_dir="/x", interface="eth1", ca_file="/ca.pem"
    )
    assert changes(USUAL, other) == [
        "--gpus 2 instead of 8",
        "--runs /x instead of /home/lehr/.lehr/runs",
        "--interface eth1 instead of none",
    ]
    assert "secret" not in repr(USUAL)
