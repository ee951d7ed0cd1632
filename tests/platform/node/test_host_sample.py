"""A node's own figures, by psutil."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import psutil

from lehr.node import host_sample
from lehr.node.host_sample import (
    FRESH_S,
    HostSampler,
    counters,
    rates,
    sample,
    storage_problem,
)
from lehr_testing.waiting import until


def test_figures_of_this_machine_are_plausible(tmp_path: Path) -> None:
    clock, published = SimpleNamespace(now=0.0), []
    sampler = HostSampler(
        str(tmp_path), publish=published.append, every_s=0.05, clock=lambda: clock.now
    )
    try:
        until(sampler.newest, within_s=20, what="a sample")
        found = sampler.newest()
        assert 0 <= found["cpu_utilization"] <= 1
        assert 0 < found["ram_used_bytes"] < found["ram_bytes"]
        assert 0 < found["disk_used_bytes"] < found["disk_bytes"]
        until(lambda: found in published, within_s=20, what="the sample to be published")
    finally:
        assert sampler.close(within_s=20)
    clock.now += FRESH_S + 1
    assert sampler.newest() == {}


def test_missing_folder_has_no_disk(tmp_path: Path) -> None:
    assert "disk_bytes" not in sample(psutil, str(tmp_path / "none"))


def test_folder_without_space_cannot_store_runs(tmp_path: Path, monkeypatch) -> None:
    assert storage_problem(str(tmp_path)) is None
    assert "cannot be used (No such file" in str(storage_problem(str(tmp_path / "none")))
    for limit in ("LEAST_FREE", "LEAST_SHARE"):
        monkeypatch.setattr(host_sample, limit, 2.0 * getattr(host_sample, limit) * 1e9)
    assert f"no space for runs: {tmp_path} has" in str(storage_problem(str(tmp_path)))


def test_rates_are_bytes_per_second_of_counters_that_grew() -> None:
    before = {"disk_read": 100.0, "network_in": 500.0}
    after = {"disk_read": 300.0, "network_in": 20.0, "network_out": 1.0}
    assert rates(before, after, 2.0) == {"disk_read_bytes_per_s": 100.0}


def test_loopback_is_no_network() -> None:
    card = SimpleNamespace(bytes_recv=7, bytes_sent=3)
    system = SimpleNamespace(
        disk_io_counters=lambda: None,
        net_io_counters=lambda pernic: {
            "lo": SimpleNamespace(bytes_recv=9, bytes_sent=9),
            "e": card,
        },
    )
    assert counters(system) == {"network_in": 7, "network_out": 3}
