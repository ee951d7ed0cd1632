"""Ports and addresses of Ray nodes."""

from __future__ import annotations

import socket

import pytest

from lehr.cluster import ray_ports
from lehr.cluster.ray_ports import SPAN, Ports, choose, given_by_kernel, is_free, own_address


def test_ports_of_a_node_do_not_overlap_and_are_given_to_ray():
    ports = Ports(7000)
    every = [ports.head, *ports.single().values(), *ports.workers]
    assert len(every) == len(set(every))
    assert (min(every), max(every)) == (7000, 7000 + SPAN - 1)
    options = ports.options()
    assert options[options.index("--node-manager-port") + 1] == "7001"
    assert options[options.index("--max-worker-port") + 1] == "7120"


def test_head_keeps_its_ports_after_a_restart_and_evades_taken_ones():
    assert choose(0, lambda _: True).base == 6379
    assert choose(7000, lambda _: True).base == 7000
    assert choose(7000, lambda port: port != 7003).base == 6379
    assert choose(0, lambda port: port != 6381).base == 6579


def test_nodes_that_start_at_once_get_different_ports(monkeypatch):
    monkeypatch.setattr(ray_ports, "_reserved", [])  # Closed with the test.
    assert len({ray_ports.reserve(), ray_ports.reserve()}) == 2


def test_taken_port_is_not_free():
    with socket.socket() as one:
        one.bind(("", 0))
        one.listen()
        assert not is_free(one.getsockname()[1])


def test_public_host_counts_only_if_it_is_this_machine():
    assert own_address("127.0.0.1") == "127.0.0.1"
    assert own_address("192.0.2.1") == own_address(None)
    assert own_address("no-such-host.invalid") == own_address(None)


def test_gloo_gets_the_interface_of_the_nodes_address_and_nccl_only_a_named_one():
    assert ray_ports.interface_of("127.0.0.1") == "lo"
    assert ray_ports.network_environment(None, "127.0.0.1", {}) == {"GLOO_SOCKET_IFNAME": "lo"}
    named = ray_ports.network_environment("eth1", "127.0.0.1", {})
    assert named == {"GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "eth1"}
    given = {"GLOO_SOCKET_IFNAME": "ib0", "NCCL_SOCKET_IFNAME": "ib0"}
    assert ray_ports.network_environment("eth1", "127.0.0.1", given) == {}
    assert ray_ports.network_environment(None, "192.0.2.1", {}) == {}


@pytest.mark.parametrize(
    ("ports", "kept", "given"),
    [
        ("32768\t60999", "", set(range(32_768, 61_000))),
        ("100 120", "110,112-118,300", {*range(100, 110), 111, 119, 120}),
        ("100 120", "100-120", set()),
        ("what", "", set()),
    ],
)
def test_kernel_gives_its_range_without_what_it_keeps_back(tmp_path, ports, kept, given):
    (tmp_path / "ip_local_port_range").write_text(f"{ports}\n")
    (tmp_path / "ip_local_reserved_ports").write_text(f"{kept}\n")
    assert given_by_kernel(tmp_path) == given
    assert given_by_kernel(tmp_path / "nowhere") == set()
