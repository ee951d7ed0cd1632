"""Renew the sweep that ``lehr demo`` shows where torch is missing.

    LEHR_HOME=/tmp/demo lehr demo && LEHR_HOME=/tmp/demo lehr down
    python docs/generate/recording.py /tmp/demo "2 cores of an AMD EPYC, shared by ..."

The home has that sweep alone. Folders, users and other packages of the machine are left out, and
the code: it is that of the package.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lehr.app.presenters import Presenter
from lehr.app.services.bundle import write_bundle
from lehr.app.services.context import Context
from lehr.app.services.report import report_of
from lehr.specs.examples import RECORDED
from lehr.store import Store
from lehr.store.bundle_rows import Rows, add_rows, rows_of
from lehr.store.records.run_rows import provenance_digest
from lehr_trainer.contract.layout import EVENTS

NOTE = (
    "Recorded, not trained here: `lehr demo` trained it on {day}, on {machine}. Its losses are "
    "what that training logged, each at its step; its speeds and times are of that machine. The "
    "files of its checkpoints are not in the recording. To train the same on your machine, install "
    "the extra `trainer` and run `lehr demo`."
)


def recorded(store: Store, machine: str) -> tuple[Rows, dict[str, dict[str, bytes]]]:
    """Return the rows and the streams of the home's only sweep, labelled as recorded."""
    [sweep_row] = store.sweeps.page().items
    rows = rows_of(store, sweep_row)
    [sweep], [provenance] = rows["sweeps"], rows["provenance"]
    day = time.strftime("%Y-%m-%d", time.gmtime(sweep["created_at"]))
    origin = provenance["data"]
    data: dict[str, Any] = {key: origin[key] for key in ("host", "versions")}
    data |= {"command": ["lehr", "demo"], "git": {"commit": origin["git"]["commit"]}}
    rows["provenance"] = [{"sha256": provenance_digest(data), "data": data}]
    for row in (sweep, *rows["runs"]):
        row |= {"note": NOTE.format(day=day, machine=machine), "tags": ["recorded"]}
        row["submitted_by"] = "lehr demo"
        (row["spec"].get("run") or row["spec"])["code"]["digest"] = None
    for row in rows["runs"]:
        row["provenance_sha256"] = provenance_digest(data)
    for row in rows["checkpoints"]:
        row["removed_at"] = row["created_at"]
    streams = {}
    for row in rows["attempts"]:
        texts = {
            stream.name: store.streams.read(row["id"], stream.name, 0, stream.stored)
            for stream in store.streams.of_attempt(row["id"])
        }
        first, _, rest = texts[EVENTS].partition(b"\n")
        started = json.loads(first)
        for name in ("command", "distributions"):
            started["host"].pop(name, None)
        started.pop("code", None)
        texts[EVENTS] = json.dumps(started, separators=(",", ":")).encode() + b"\n" + rest
        row["events_applied"] = len(texts[EVENTS])
        streams[row["id"]] = texts
    return rows, streams


if __name__ == "__main__":
    with Store.open(Path(sys.argv[1])) as opened:
        found, pieces = recorded(opened, sys.argv[2])
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder)) as fresh:
        sweep_id = found["sweeps"][0]["id"]
        add_rows(fresh, found, sweep_id, "")
        for attempt, streams in pieces.items():
            for name, content in streams.items():
                fresh.streams.append(attempt, name, 0, content)
        services: Any = {"dispatcher": None, "cluster_views": None, "one_machine": True}
        context = Context(fresh, Presenter(fresh), home=Path(folder), **services)
        item, page = report_of(context, sweep_id)
        RECORDED.write_bytes(write_bundle(context, item, page).read())
