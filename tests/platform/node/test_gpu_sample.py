"""GPU utilization: from NVML through the agent's report to the cluster view."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from lehr.app.presenters.cluster import cluster_view
from lehr.cluster.membership import Cluster
from lehr.node import agent as agents
from lehr.node import samples
from lehr.node.attempt_dir import AttemptDir
from lehr.node.gpu_inventory import LOGICAL, GpuInfo
from lehr.node.samples import (
    FRESH_S,
    GpuSampler,
    HostSampler,
    counters,
    gpu_figures,
    host_figures,
    rates,
    storage_problem,
)
from lehr.store import Store
from lehr_testing.waiting import until
from lehr_trainer.runtime.event_stream import VARIABLE, SystemSamples

# ruff: noqa: N802, N815 - the names are NVML's.


GPUS = [
    GpuInfo(0, "NVIDIA H100 80GB HBM3", 85_520_809_984, "GPU-aaaa"),
    GpuInfo(1, "NVIDIA H100 80GB HBM3", 85_520_809_984, "GPU-bbbb"),
]


class Nvml(ModuleType):
    """NVML's module: GPU-aaaa works, GPU-bbbb reports only its memory, others are lost."""

    class NVMLError(Exception):
        pass

    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1
    nvmlMemory_v2 = 0x02000028

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.utilization = 97
        self.hangs = threading.Event()
        self.hangs.set()

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.hangs.wait()
        if uuid not in {"GPU-aaaa", "GPU-bbbb"}:
            raise self.NVMLError("GPU is lost")
        return uuid

    def nvmlDeviceGetUtilizationRates(self, device: str) -> SimpleNamespace:
        if device == "GPU-bbbb":
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(gpu=self.utilization, memory=3)

    def nvmlDeviceGetMemoryInfo(self, device: str, version: int) -> SimpleNamespace:
        assert version == self.nvmlMemory_v2
        return SimpleNamespace(total=85_520_809_984, used=61_316_530_176, free=1)

    def nvmlDeviceGetPowerUsage(self, device: str) -> int:
        if device == "GPU-bbbb":
            raise self.NVMLError("Not Supported")
        return 412_500

    def nvmlDeviceGetClockInfo(self, device: str, kind: int) -> int:
        if device == "GPU-bbbb":
            raise self.NVMLError("Not Supported")
        assert kind == self.NVML_CLOCK_SM
        return 1755

    def nvmlDeviceGetTemperature(self, device: str, sensor: int) -> int:
        if device == "GPU-bbbb":
            raise self.NVMLError("Not Supported")
        assert sensor == self.NVML_TEMPERATURE_GPU
        return 64


@pytest.fixture
def nvml(monkeypatch):
    made = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def test_values_missing_from_the_driver_are_none_and_not_zero(nvml):
    lost = GpuInfo(2, "NVIDIA H100 80GB HBM3", 85_520_809_984, "GPU-cccc")
    assert gpu_figures(nvml, [*GPUS, lost]) == [
        {
            "index": 0,
            "utilization": 0.97,
            "memory_used_bytes": 61_316_530_176,
            "temperature_celsius": 64,
            "power_watts": 412.5,
            "clock_mhz": 1755,
        },
        {
            "index": 1,
            "utilization": None,
            "memory_used_bytes": 61_316_530_176,
            "temperature_celsius": None,
            "power_watts": None,
            "clock_mhz": None,
        },
        {
            "index": 2,
            "utilization": None,
            "memory_used_bytes": None,
            "temperature_celsius": None,
            "power_watts": None,
            "clock_mhz": None,
        },
    ]


def test_utilization_of_an_idle_gpu_is_zero_and_not_none(nvml):
    nvml.utilization = 0
    assert gpu_figures(nvml, GPUS[:1])[0]["utilization"] == 0


def test_hanging_driver_makes_old_samples_expire_without_blocking(nvml):
    now = [0.0]
    sampler = GpuSampler(GPUS, every_s=0.01, clock=lambda: now[0])
    until(sampler.newest, within_s=20, what="the first sample")
    nvml.hangs.clear()
    now[0] = 2 * FRESH_S
    # One that was under way when the driver stopped may still arrive.
    until(lambda: not _moved(sampler, now), within_s=20, what="the old figures to go")
    assert not sampler.close(within_s=0)
    nvml.hangs.set()
    assert sampler.close(within_s=20)


def _moved(sampler, now):
    now[0] += 2 * FRESH_S
    return sampler.newest()


@pytest.mark.parametrize("missing", [True, False])
def test_logical_gpus_and_nodes_without_the_package_have_no_samples(monkeypatch, missing):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sampler = GpuSampler(GPUS if missing else [GpuInfo(0, LOGICAL)])
    sampler.thread.join(timeout=20)
    assert not sampler.thread.is_alive(), "it ends by itself"
    assert sampler.newest() == []


def test_cluster_and_trainings_get_samples_of_agents_but_none_of_lost_nodes(
    nvml, monkeypatch, tmp_path
):
    monkeypatch.setattr(agents, "node_gpus", lambda granted: GPUS[:granted])
    agent = agents.Agent("n1", 2, str(tmp_path / "node"))
    until(lambda: agent.report()["gpus_now"], within_s=20, what="the first sample")
    assert agent.samples.close(within_s=20)
    agent.publish_samples({"cpu_utilization": 0.25, "ram_bytes": 64e9})
    attempt = AttemptDir(str(agent.attempts / "k1-1"))
    monkeypatch.setenv(VARIABLE, attempt.of_node("system.json"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    assert SystemSamples().due() == {
        "system/cpu_utilization": 0.25,
        "system/gpu0_memory_used_bytes": 61_316_530_176,
        "system/gpu1_memory_used_bytes": 61_316_530_176,
        "system/gpu1_utilization": 0.97,
        "system/gpu1_temperature_celsius": 64,
        "system/gpu1_power_watts": 412.5,
        "system/gpu1_clock_mhz": 1755,
    }
    cluster = Cluster({})
    node = {"name": "n1", "address": "10.0.0.5", "ray_id": "r", "gpus": 2, "alive": True}
    cluster.set_state("up", None)
    cluster.on_news({"news": "members", "nodes": [node]})
    cluster.on_news({"news": "node", "name": "n1", "hello": agent.hello("s", "http://server")})
    with Store.open(tmp_path / "home") as store:
        [before] = cluster_view(cluster, store).nodes
        assert [gpu.utilization for gpu in before.gpus] == [None, None]
        cluster.on_news({"news": "node", "name": "n1", **agent.report()})
        [reported] = cluster_view(cluster, store).nodes
        assert [gpu.utilization for gpu in reported.gpus] == [0.97, None]
        assert [gpu.memory_used_bytes for gpu in reported.gpus] == [61_316_530_176] * 2
        assert [gpu.temperature_celsius for gpu in reported.gpus] == [64, None]
        cluster.on_news({"news": "members", "nodes": [{**node, "alive": False}]})
        [gone] = cluster_view(cluster, store).nodes
        assert [gpu.utilization for gpu in gone.gpus] == [None, None]


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
    assert "disk_bytes" not in host_figures(psutil, str(tmp_path / "none"))


def test_folder_without_space_cannot_store_runs(tmp_path: Path, monkeypatch) -> None:
    assert storage_problem(str(tmp_path)) is None
    assert "cannot be used (No such file" in str(storage_problem(str(tmp_path / "none")))
    for limit in ("LEAST_FREE", "LEAST_SHARE"):
        monkeypatch.setattr(samples, limit, 2.0 * getattr(samples, limit) * 1e9)
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
