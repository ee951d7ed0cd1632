"""A trace that opens and names the phases, and a summary that adds up."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch

from lehr_trainer.configs.execution import ProfileConfig
from lehr_trainer.diagnostics.profiling import Profiler, kind_of, summarise

CPU = torch.device("cpu")


def train(profiler: Profiler, steps: int) -> None:
    weight = torch.nn.Parameter(torch.randn(256, 256))
    optimizer = torch.optim.AdamW([weight], lr=1e-3)
    for _ in range(steps):
        with profiler.phase("forward"):
            loss = (torch.randn(512, 256) @ weight).sin().sum()
        with profiler.phase("backward"):
            loss.backward()
        with profiler.phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        profiler.step()


def test_trace_names_the_phases_and_holds_only_active_steps(tmp_path: Path) -> None:
    output: list[str] = []
    folder = tmp_path / "profiles"
    profiler = Profiler(ProfileConfig(tool="torch"), folder, rank=0, device=CPU, log=output.append)
    train(profiler, 12)
    profiler.close()
    trace = json.loads(gzip.decompress((folder / "trace-rank-0.json.gz").read_bytes()))
    names = [e.get("name") for e in trace["traceEvents"]]
    for phase in ("forward", "backward", "optimizer"):
        assert names.count(phase) == 3
    assert {n for n in names if str(n).startswith("ProfilerStep#")} == {
        "ProfilerStep#5", "ProfilerStep#6", "ProfilerStep#7",
    }  # fmt: skip
    summary = json.loads((folder / "summary-rank-0.json").read_text())
    assert summary["steps"] == 3
    assert summary["device"] == "cpu"
    shares = [v for k, v in summary.items() if k not in {"device", "steps", "step_ms"}]
    assert sum(shares) == pytest.approx(1.0)
    assert summary["matmul"] > 0
    assert "matrix products" in output[-1]


class Driver:
    """Stands for the driver's calls: each is noted in its order, with its depth of ranges."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        patch.setattr(torch.cuda.nvtx, "range_push", lambda name: self.calls.append(f"+{name}"))
        patch.setattr(torch.cuda.nvtx, "range_pop", lambda: self.calls.append("-"))
        patch.setattr(torch.cuda.profiler, "start", lambda: self.calls.append("start"))
        patch.setattr(torch.cuda.profiler, "stop", lambda: self.calls.append("stop"))


STEP = [*("+forward", "-", "+backward", "-", "+optimizer", "-")]


def nsys(folder: Path, **config: int) -> Profiler:
    device = torch.device("cuda", 0)
    look = ProfileConfig(tool="nsys", **config)
    return Profiler(look, folder, rank=0, device=device, log=lambda _line: None)


def test_nsys_captures_the_active_steps_with_a_range_for_each_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(monkeypatch)
    profiler = nsys(tmp_path, wait=1, warmup=1, active=2)
    train(profiler, 2)
    # The range of capture begins between two steps.
    assert driver.calls == ["start"]
    train(profiler, 4)
    assert driver.calls == ["start", *STEP, *STEP, "stop"]
    profiler.close()
    assert driver.calls.count("stop") == 1


def span(name: str, start: float, stop: float, cat: str = "kernel") -> dict:
    return {"ph": "X", "name": name, "ts": start, "dur": stop - start, "cat": cat}


def test_shares_are_those_of_a_trace_made_by_hand() -> None:
    events = [
        span("ProfilerStep#5", 0, 500, "user_annotation"),
        span("ProfilerStep#6", 500, 1000, "user_annotation"),
        span("before any step", -200, -100),
        span("sm90_xmma_gemm_bf16", 0, 400),
        span("ncclDevKernel_AllReduce", 300, 600),  # 100 behind the product, 200 exposed
        span("elementwise_kernel", 600, 700),
        span("Memcpy HtoD", 650, 800, "gpu_memcpy"),  # 50 behind the kernel, 100 of its own
        span("aten::mm", 0, 1000, "cpu_op"),  # the host does not count where there is a device
        {"ph": "i", "name": "instant", "ts": 5},
    ]
    summary = summarise(events)
    assert summary.as_dict() == {
        "device": "gpu", "steps": 2, "step_ms": 0.5, "matmul": 0.4, "other_kernels": 0.1,
        "copies": pytest.approx(0.1), "exposed_communication": pytest.approx(0.2),
        "idle": pytest.approx(0.2),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_128x256_64x4_1x2_h_bz_TNT", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", "matmul"),
        ("pytorch_flash::flash_fwd_kernel", "matmul"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication"),
        ("triton_poi_fused_add_0", "other"),
        ("aten::addmm", "matmul"),
        ("aten::add", "other"),
        ("aten::copy_", "copy"),
        ("Memset (Device)", "copy"),
    ],
)
def test_kernels_are_classified_by_their_names(name: str, kind: str) -> None:
    assert kind_of({"name": name, "cat": "kernel"}) == kind
