"""One file of a run, sweep or rollout: the report with its evidence. Write it, and open it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import IO

import yaml

from lehr.app.services import code
from lehr.app.services.context import Context
from lehr.base import home as homes
from lehr.base.bundle import DAMAGE, RECORD, SPEC, Bundle, BundleWriter
from lehr.checkpoints.copies import Copy
from lehr.checkpoints.registry import CheckpointLocations
from lehr.code import archive
from lehr.code.capsule_store import CapsuleStore
from lehr.errors import SpecError, StoreUnavailable, UserError
from lehr.schemas.runs import Opened
from lehr.specs import RunSpec
from lehr.store.bundle_rows import Item, Rows, add_rows, rows_of
from lehr.store.streams.replica import is_events
from lehr.store.streams.replication import MAX_APPEND
from lehr.store.tables import CheckpointRow
from lehr_trainer.contract import layout
from lehr_trainer.errors import BadCheckpoint


def write_bundle(context: Context, item: Item, page: str) -> IO[bytes]:
    """Return the page and its evidence. Raise Conflict if a run has not ended, or was deleted."""
    store, capsules = context.store, CapsuleStore(context.home)
    rows = rows_of(store, item)
    file: IO[bytes] = tempfile.TemporaryFile(dir=context.home)  # noqa: SIM115 - it is returned
    writer = BundleWriter(file, page)
    for row in rows["runs"]:
        text = yaml.safe_dump(row["spec"], sort_keys=False, allow_unicode=True, width=100)
        writer.add(f"runs/{row['id']}/{SPEC}", text.encode())
    for row in rows["attempts"]:
        for one in store.streams.of_attempt(row["id"]):
            content = store.streams.read(row["id"], one.name, 0, one.stored)
            writer.add(f"runs/{row['run_id']}/attempt-{row['number']}/{one.name}", content)
    for digest in sorted({str(row["spec"]["code"]["digest"]) for row in rows["runs"]}):
        if capsules.has(digest):
            path = capsules.path(digest)
            writer.add(f"code/{digest}.tar", path.read_bytes())
            files = {file.name: file.sha256 for file in archive.members(path)}
            writer.add(f"code/{digest}.json", files)
    writer.add(RECORD, rows)
    writer.close(id=item.id, name=item.name)
    file.seek(0)
    return file


def open_bundle(context: Context, path: Path) -> Opened:
    """Record what the file holds: rows, streams and code. Opening it again completes an interrupted
    call, and changes nothing else.

    Raises:
        UserError: it is no such file, is damaged, or has code that this server does not accept.
        Conflict: other runs are here under an id of it, or one was deleted.
    """
    bundle, store = Bundle(path, "the file"), context.store
    if changed := bundle.changed():
        raise UserError(f"the file is refused: {changed[0]} was damaged or changed.")
    try:
        rows: Rows = json.loads(bundle.read(RECORD))
        item_id, name = str(bundle.about["id"]), str(bundle.about["name"])
        specs = [RunSpec.model_validate(row["spec"]) for row in rows["runs"]]
        for digest in {str(spec.code.digest) for spec in specs}:
            packed = f"code/{digest}.tar"
            if packed in bundle.namelist() and not CapsuleStore(context.home).has(digest):
                with code.draft(context) as draft:
                    draft.write_bytes(bundle.read(packed))
                    code.receive(context, draft, digest)
        if context.code != "any" and (problems := list(code.problems(context, specs))):
            raise SpecError(problems)
        by = ", ".join(sorted({row["submitted_by"] for row in rows["runs"]}))
        restored = _checkpoints(bundle, rows)
        new = add_rows(store, rows, item_id, f"Opened from a file: trained elsewhere, by {by}.")
    except (*DAMAGE, BadCheckpoint) as error:
        why = str(error).partition("\n")[0]
        raise UserError(f"the file is refused: its record is not of ended runs: {why}.") from None
    for row in rows["attempts"]:
        folder = f"runs/{row['run_id']}/attempt-{row['number']}"
        streams = [name.removeprefix(f"{folder}/") for name in bundle.below(folder)]
        streams = [name for name in streams if "/" not in name]
        for stream in sorted(streams, key=lambda n: (not is_events(n), n == layout.MEDIA, n)):
            content = bundle.read(f"{folder}/{stream}")
            begin = store.streams.sizes(row["id"]).get(stream, 0)
            for at in range(begin, len(content), MAX_APPEND):
                store.streams.append(row["id"], stream, at, content[at : at + MAX_APPEND])
    for point, copy in restored:
        run = store.runs.get(point.run_id)
        locations = CheckpointLocations(homes.runs_dir(context.home), run, point)
        locations.require_own()
        try:
            copy.fetch(locations.folder)
        except OSError as error:
            raise StoreUnavailable(f"{locations.folder}: {error.strerror}.") from error
        store.checkpoints.mark_restored(run.id, point.path)
    return Opened(id=item_id, name=name, runs=len(specs), new=new)


def _checkpoints(bundle: Bundle, rows: Rows) -> list[tuple[CheckpointRow, Copy]]:
    """Return the checkpoints in the file. Raise BadCheckpoint if one is not as recorded."""
    listed = []
    for row in map(CheckpointRow.model_validate, rows["checkpoints"]):
        folder = f"runs/{row.run_id}/{row.path}"
        if f"{folder}/{layout.MANIFEST}" in bundle.namelist():
            members = SimpleNamespace(open=lambda name, at=folder: bundle.open(f"{at}/{name}"))
            listed.append((row, copy := Copy(folder, members)))
            place, known = layout.checkpoint_at(row.path), copy.verify()
            if (place, known.digest) != ((row.attempt, row.step), row.digest):
                raise BadCheckpoint(f"{folder} is not the recorded checkpoint")
    return listed
