"""The GPU bench, section by section, and what to change in the spec for its best MFU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from first_hour.parts import Failed, NotHere, Part, Result, Session
from lehr_trainer.experiments.gpu_rows import SECTIONS

GROUP = "Bench"
_REPORTED = "bench: table"
REHEARSED = ("--sequences=2", "--timeout-s=1800")
"""Options of a rehearsal: with two sequences most rows share their shapes, and so compiled code."""
QUICK_COMPILER = {
    "ATEN_CPU_CAPABILITY": "default",
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "TORCHINDUCTOR_DEBUG_COMPILE": "1",
}
"""Variables of a rehearsal: C++ kernels without vectors and optimization, no pool of compilers a row."""


def section(session: Session, *, name: str) -> Result:
    """Measure the rows of a section; rows that were measured before are kept."""
    began = time.monotonic()
    table = measured(session, name)
    rows = [row for row in table["rows"] if row["name"] not in SECTIONS.values()]
    figures = {
        "rows": len(rows),
        "measured": sum("step" in row["values"] for row in rows),
        "minutes": (time.monotonic() - began) / 60,
    }
    broken = [f"{row['name']}: {row['note']}" for row in rows if row.get("failed")]
    if broken:
        raise Failed(f"{len(broken)} of {len(rows)} rows failed: {'; '.join(broken)}")
    left = [row["name"] for row in rows if row["note"] == "not measured yet"]
    if left:
        return Result(figures, unfinished=f"{len(left)} rows are left for another call")
    if not figures["measured"]:
        raise NotHere("; ".join(f"{row['name']}: {row['note']}" for row in rows))
    return Result(figures)


def table(session: Session) -> Result:
    """Make the table of all that was measured, with the advice for the spec."""
    found = measured(session, *SECTIONS, budget_s=0)
    text = (_folder(session) / "results.md").read_text().strip()
    # It shows what the sections found until now, so a further call makes it again.
    left = any(row["note"] == "not measured yet" for row in found["rows"])
    return Result(text=text, unfinished="some rows are not measured yet" if left else "")


def measured(session: Session, *sections: str, budget_s: float | None = None) -> dict:
    """Call the bench as users do, and return its table."""
    settings = session.settings
    budget = budget_s
    if budget is None:
        budget = min(settings.bench_budget_s, session.left_s)
    command = [
        *(sys.executable, "-m", "lehr_trainer", "bench", "gpu", "--json"),
        f"--out={_folder(session)}",
        f"--device={session.machine.device}",
        f"--size={settings.bench_size}",
        f"--budget-s={budget}",
        *(f"--only={name}" for name in sections),
        *["--eager"] * (not settings.compile),
    ]
    environment = dict(os.environ)
    if not session.machine.on_cuda:
        command += REHEARSED
        environment |= QUICK_COMPILER
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"the bench ended with {done.returncode}; its reason is above")
    found: dict = json.loads(done.stdout)
    return found


def _folder(session: Session) -> Path:
    return session.folder / "bench"


PARTS = [
    *(
        Part(f"bench: {name}", GROUP, partial(section, name=name), keeps_to_limit=True)
        for name in SECTIONS
    ),
    Part(_REPORTED, GROUP, table, always=True),
]
