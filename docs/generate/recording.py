"""Renew the sweep that ``lehr demo`` shows where torch is missing.

    LEHR_HOME=/tmp/demo lehr demo && LEHR_HOME=/tmp/demo lehr down
    python docs/generate/recording.py /tmp/demo "2 cores of an AMD EPYC, shared by ..."

The home has that sweep alone. Folders, users and other packages of the machine are left out.
"""

from __future__ import annotations

import json
import lzma
import sys
import time
from pathlib import Path
from typing import Any

from sqlmodel import select

from lehr.specs.examples import RECORDED, RECORDER
from lehr.store import Store
from lehr.store.recording import TABLES
from lehr.store.records.run_rows import provenance_digest
from lehr_trainer.contract.layout import EVENTS

NOTE = (
    "Recorded, not trained here: `lehr demo` trained it on {day}, on {machine}. Its losses are "
    "what that training logged, each at its step; its speeds and times are of that machine. The "
    "files of its checkpoints are not in the recording. To train the same on your machine, install "
    "the extra `trainer` and run `lehr demo`."
)


def recorded(store: Store, machine: str) -> dict[str, Any]:
    """Return the rows and the streams of the home's only sweep, labelled as recorded."""
    with store.db.read() as session:
        rows = {
            str(table.__tablename__): [
                row.model_dump(mode="json") for row in session.exec(select(table)).all()
            ]
            for table in TABLES
        }
    [sweep], [provenance] = rows["sweeps"], rows["provenance"]
    day = time.strftime("%Y-%m-%d", time.gmtime(sweep["created_at"]))
    origin = provenance["data"]
    data = {key: origin[key] for key in ("host", "versions")} | {"command": ["lehr", "demo"]}
    data["git"] = {"commit": origin["git"]["commit"]}
    rows["provenance"] = [{"sha256": provenance_digest(data), "data": data}]
    for row in (sweep, *rows["runs"]):
        row |= {"note": NOTE.format(day=day, machine=machine), "tags": ["recorded"]}
        row["submitted_by"] = RECORDER
        (row["spec"].get("run") or row["spec"])["code"]["digest"] = None
    for row in rows["runs"]:
        row["provenance_sha256"] = provenance_digest(data)
    for row in rows["checkpoints"]:
        row["removed_at"] = row["created_at"]
    streams = {}
    for row in rows["attempts"]:
        texts = {
            stream.name: store.streams.read(row["id"], stream.name, 0, stream.stored).decode()
            for stream in store.streams.of_attempt(row["id"])
        }
        first, _, rest = texts[EVENTS].partition("\n")
        started = json.loads(first)
        del started["host"]["command"], started["host"]["distributions"], started["code"]
        texts[EVENTS] = f"{json.dumps(started, separators=(',', ':'))}\n{rest}"
        # No token opens it: it has ended.
        row |= {"token_sha256": "", "events_applied": len(texts[EVENTS].encode())}
        streams[row["id"]] = texts
    for name in ("sweeps", "runs"):
        for row in rows[name]:
            del row["number"]
    for name in ("trials", "transitions", "requests", "checkpoints"):
        for row in rows[name]:
            del row["id"]
    return {"rows": rows, "streams": streams}


if __name__ == "__main__":
    with Store.open(Path(sys.argv[1])) as opened:
        plain = json.dumps(recorded(opened, sys.argv[2]), separators=(",", ":"), sort_keys=True)
    RECORDED.write_bytes(lzma.compress(plain.encode(), preset=9))
