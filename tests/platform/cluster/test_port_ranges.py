"""Ports that Ray's fixed ones must avoid."""

from __future__ import annotations

import pytest

from lehr.cluster.ray_ports import given_by_kernel


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
