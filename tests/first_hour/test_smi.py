"""What the driver says is read and judged. The samples are written by hand in nvidia-smi's format."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from first_hour import smi

GOOD = (
    "0, NVIDIA H100 80GB HBM3, 570.86.15, 81559, 4, 700.00, 700.00, 1980, 2619, "
    "0x0000000000000001, Enabled, Disabled, Enabled, 5, 16, 16, 31\n"
)


def judged(**changes: str) -> list[tuple[str, str]]:
    [row] = smi.parsed(GOOD)
    return [(check.status, check.found) for check in smi.judge({**row, **changes})]


def test_healthy_gpu_has_one_line() -> None:
    [(status, found)] = judged()
    assert status == "ok"
    assert found == "NVIDIA H100 80GB HBM3, driver 570.86.15, 81559 MiB, 31 C"


@pytest.mark.parametrize(
    ("field", "value", "status", "says"),
    [
        ("power.limit", "500.00", "note", "500 W of 700 W"),
        ("clocks_event_reasons.active", "0x0000000000000008", "note", "a hardware slowdown"),
        (
            "clocks_event_reasons.active",
            "0x0000000000000044",
            "note",
            "the power limit, the hardware",
        ),
        ("ecc.mode.current", "Disabled", "note", "ECC is off"),
        ("mig.mode.current", "Enabled", "bad", "MIG is on"),
        ("pcie.link.width.current", "8", "note", "8 of 16 lanes"),
        ("persistence_mode", "Disabled", "note", "persistence mode"),
    ],
)
def test_each_problem_is_named(field: str, value: str, status: str, says: str) -> None:
    _, (found_status, found) = judged(**{field: value})
    assert found_status == status
    assert says in found


def test_unknown_values_are_not_judged() -> None:
    fields = ("power.limit", "clocks_event_reasons.active", "ecc.mode.current", "mig.mode.current")
    assert len(judged(**dict.fromkeys(fields, "[N/A]"))) == 1


def test_output_of_another_form_is_not_read() -> None:
    assert smi.parsed("No devices were found\n") == []


TOPOLOGY = """\
        GPU0    GPU1    GPU2    NIC0    CPU Affinity    NUMA Affinity   GPU NUMA ID
GPU0     X      NV18    NV18    PIX     0-51    0               N/A
GPU1    NV18     X      NV18    SYS     0-51    0               N/A
GPU2    NV18    NV18     X      SYS     52-103  1               N/A
NIC0    PIX     SYS     SYS      X
"""


def test_links_between_gpus_are_read_and_no_others() -> None:
    assert smi.links(TOPOLOGY) == {"NV"}
    assert smi.judge_links(TOPOLOGY).status == "ok"
    slow = smi.judge_links(TOPOLOGY.replace("GPU1    NV18", "GPU1    SYS "))
    assert (slow.status, slow.found) == ("note", "the slowest link between two GPUs is SYS")
    assert smi.judge_links("").status == "note"


def test_table_of_links_has_no_codes_of_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driver 580 underlines the head of the table also in a pipe."""
    command = tmp_path / "nvidia-smi"
    command.write_text(
        "#!/bin/sh\nprintf '\\t\\033[4mGPU0\\tGPU1\\033[0m\\nGPU0\\t X \\tNV18\\nGPU1\\tNV18\\t X \\n'\n"
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    text = smi.topology()
    assert text == "\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n"
    assert smi.links(text) == {"NV"}


def test_older_drivers_are_asked_by_their_own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(*arguments: str) -> str:
        asked.append(arguments[0])
        return GOOD if "clocks_throttle_reasons.active" in arguments[0] else ""

    monkeypatch.setattr(smi, "_ask", ask)
    [row] = smi.query()
    assert row["clocks_event_reasons.active"] == "0x0000000000000001"
    assert len(asked) == 2
