"""What the driver says of the GPUs, by ``nvidia-smi``, and what of it needs attention."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from typing import Any

from lehr.cli.checks import Check

FIELDS = (
    "index",
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "power.limit",
    "power.max_limit",
    "clocks.max.sm",
    "clocks.max.mem",
    "clocks_event_reasons.active",
    "ecc.mode.current",
    "mig.mode.current",
    "persistence_mode",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "temperature.gpu",
)
_REASONS = {
    0x4: "the power limit",
    0x8: "a hardware slowdown",
    0x10: "the sync boost group",
    0x20: "the temperature",
    0x40: "the hardware's temperature limit",
    0x80: "the hardware's power brake",
}
"""Bits that slow a training. The others are harmless: idle, clocks set by a program or a display."""
_LINKS = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")
"""Kinds of links between two GPUs in ``nvidia-smi topo -m``, fastest first."""


def query() -> list[dict[str, str]]:
    """Ask for the fields of every GPU; empty without a driver."""
    fields = ",".join(FIELDS)
    # Older drivers call the reasons of a low clock by another name, and refuse the new one.
    for names in (fields, fields.replace("event_reasons", "throttle_reasons")):
        rows = parsed(_ask(f"--query-gpu={names}", "--format=csv,noheader,nounits"))
        if rows:
            return rows
    return []


def parsed(text: str) -> list[dict[str, str]]:
    rows = [[cell.strip() for cell in line.split(",")] for line in text.strip().splitlines()]
    return [dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS)]


def topology() -> str:
    """Return the table of links, without the codes that underline its head, also in a pipe."""
    return re.sub(r"\x1b\[[0-9;]*m", "", _ask("topo", "-m"))


def judge(row: Mapping[str, str]) -> list[Check]:
    """Judge one GPU. Unknown values (``[N/A]``) are not judged."""
    name = f"GPU {row['index']}"
    found = [
        Check(
            name,
            "ok",
            f"{row['name']}, driver {row['driver_version']}, {row['memory.total']} MiB, "
            f"{row['temperature.gpu']} C",
        )
    ]

    def note(text: str, fix: str) -> None:
        found.append(Check(name, "note", text, fix))

    limit, highest = number(row["power.limit"]), number(row["power.max_limit"])
    if limit is not None and highest is not None and limit < 0.98 * highest:
        note(
            f"the power limit is {limit:.0f} W of {highest:.0f} W",
            "It trains more slowly than published figures: nvidia-smi -pl, or ask the provider.",
        )
    reasons = throttling(row["clocks_event_reasons.active"])
    if reasons:
        note(f"its clock is held down by {', '.join(reasons)}", "Ask the provider.")
    if row["ecc.mode.current"] == "Disabled":
        note("ECC is off", "A flipped bit can damage weights: nvidia-smi -e 1, then a restart.")
    if row["mig.mode.current"] == "Enabled":
        found.append(
            Check(
                name,
                "bad",
                "MIG is on: torch sees a slice of the GPU",
                "nvidia-smi -mig 0, or rent a whole GPU.",
            )
        )
    width, widest = number(row["pcie.link.width.current"]), number(row["pcie.link.width.max"])
    if width is not None and widest is not None and width < widest:
        note(f"its PCIe link has {width:.0f} of {widest:.0f} lanes", "Ask the provider.")
    if row["persistence_mode"] == "Disabled":
        note("persistence mode is off", "Each start takes seconds longer: nvidia-smi -pm 1")
    return found


def judge_links(text: str) -> Check:
    """Judge the slowest link between two GPUs."""
    slowest = max(links(text), key=_LINKS.index, default=None)
    if slowest is None:
        return Check("links", "note", "nvidia-smi topo -m gave no table")
    if slowest == "NV":
        return Check("links", "ok", "NVLink between all GPUs")
    fix = "Gradients take longer: expect less than the published speed on several GPUs."
    return Check("links", "note", f"the slowest link between two GPUs is {slowest}", fix)


def links(text: str) -> set[str]:
    """Return the kinds of links between GPUs in the table of ``nvidia-smi topo -m``."""
    rows = [line.split() for line in text.splitlines() if re.match(r"GPU\d+\s", line)]
    # A row is its name and one cell for each GPU; network cards and affinities come after.
    cells = [cell for row in rows for cell in row[1 : 1 + len(rows)] if cell != "X"]
    kinds = {"NV" if re.fullmatch(r"NV\d+", cell) else cell for cell in cells}
    return kinds & set(_LINKS)


def throttling(mask: str) -> list[str]:
    """Name the reasons in ``clocks_event_reasons.active``, a hexadecimal mask."""
    try:
        bits = int(mask, 16)
    except ValueError:
        return []
    return [name for bit, name in _REASONS.items() if bits & bit]


def figures(row: Mapping[str, str]) -> dict[str, Any]:
    return {
        "driver": row["driver_version"],
        "power limit (W)": row["power.limit"],
        "SM clock (MHz)": row["clocks.max.sm"],
        "memory clock (MHz)": row["clocks.max.mem"],
        "ECC": row["ecc.mode.current"],
        "MIG": row["mig.mode.current"],
    }


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _ask(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
