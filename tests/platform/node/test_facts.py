"""What a node finds out about itself: versions, disks, and whether it can reach the server."""

from __future__ import annotations

import platform
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import pytest

from lehr.node import facts, gpu_inventory
from lehr.node.gpu_inventory import GpuInfo, gpu_problem, node_gpus
from lehr_testing.server import free_port


def test_versions_are_those_of_the_installed_packages():
    found = facts.versions()
    assert found["python"] == platform.python_version()
    assert found["ray"] == version("ray")
    assert found["torch"] == version("torch")


def test_server_that_cannot_be_reached_is_a_problem_with_its_cure():
    found = facts.server_problem(f"http://127.0.0.1:{free_port()}")
    assert "cannot reach the server" in found
    assert "--public-url" in found


def test_node_with_gpus_and_without_torch_is_a_problem(monkeypatch):
    assert facts.torch_problem(8) is None
    monkeypatch.setattr(facts, "versions", lambda: {"ray": "2.60.0"})
    assert "torch is not installed" in facts.torch_problem(8)
    assert facts.torch_problem(0) is None


def test_gpus_that_cuda_visible_devices_hides_are_a_problem(monkeypatch):
    gpus = [GpuInfo(index, "NVIDIA H100", 80, f"GPU-{index}") for index in range(8)]
    monkeypatch.setattr(gpu_inventory, "real_gpus", lambda: gpus)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1,MIG-2")
    assert node_gpus(2) == []
    assert "CUDA_VISIBLE_DEVICES=MIG-1,MIG-2" in gpu_problem(2, [])


def test_free_space_of_a_folder_that_is_missing_is_that_of_its_parent(tmp_path):
    free = facts.free_bytes(tmp_path)
    # Other tests write meanwhile.
    assert facts.free_bytes(tmp_path / "a" / "b") == pytest.approx(free, rel=0.05)


def test_another_program_at_the_address_is_a_problem():
    other = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    try:
        found = facts.server_problem(f"http://127.0.0.1:{other.server_port}")
    finally:
        other.shutdown()
        other.server_close()
    assert "answers it with status 501" in found
