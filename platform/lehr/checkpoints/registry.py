"""A run's checkpoints as the server sees them: find, read, verify, estimate, remove."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from lehr.base.stopped import Stopped, never
from lehr.checkpoints.copies import Copy, Folder, Known, verify_folder
from lehr.checkpoints.copy_files import FolderFiles
from lehr.control.forks import no_such_step
from lehr.errors import Conflict, LehrError, NotFound
from lehr.schemas.checkpoints import (
    CheckpointDeletion,
    CheckpointFiles,
    CheckpointVerdict,
    FileView,
    PlaceVerdict,
)
from lehr.specs.storage_url import short
from lehr.store.records.checkpoints import THERE
from lehr.store.tables import CheckpointRow, RunRow
from lehr_trainer.contract import layout
from lehr_trainer.errors import BadCheckpoint

Source = Folder | Copy  # A checkpoint that can be read, in its folder or its copy.


def find(
    run: RunRow, rows: Sequence[CheckpointRow], step: int, attempt: int | None
) -> CheckpointRow:
    """Return the checkpoint at ``step``, of the newest attempt unless one is given.

    Raises:
        NotFound: there is none; the nearest step is named.
    """
    matching = [row for row in rows if row.step == step and attempt in {None, row.attempt}]
    if matching:
        return max(matching, key=lambda row: row.attempt)
    name = f"{run.name} ({run.id})"
    of = f" of attempt {attempt}" if attempt is not None else ""
    if not rows:
        raise NotFound(f"{name} has no checkpoint.")
    raise no_such_step(name, [row.step for row in rows], step, of)


class CheckpointLocations:
    """The locations of one checkpoint: its folder, if this machine has it, and its copy.

    Workers report these locations, and only a run's own are recorded. A link that leads out of its
    directory is neither read nor removed.
    """

    def __init__(self, runs_dir: Path, run: RunRow, row: CheckpointRow) -> None:
        self.row = row
        self.root = runs_dir.resolve()  # The runs' folder may be a link, but nothing below it.
        self.folder = self.root / run.id / row.path
        own = (self.root / run.id / row.path).resolve().is_relative_to(self.root / run.id)
        leads_out = f"its path {row.path!r} leads out of the run's directory by a link"
        self.stray_folder = None if own else leads_out
        """Why its path does not belong to this run; None when it does."""
        self.copy_url = row.copy_url if row.copy_state == THERE else None

    @property
    def here(self) -> bool:
        return self.stray_folder is None and (self.folder / layout.MANIFEST).is_file()

    def require_own(self) -> None:
        """Raise Conflict when its folder does not belong to this run."""
        if self.stray_folder is not None:
            raise Conflict(
                f"the checkpoint at step {self.row.step:,} cannot be used: {self.stray_folder}.",
                hint="An attempt registered this location. Inspect it before removing it.",
            )

    def readable(self, hold: Collection[str] = ()) -> tuple[Source, Known]:
        """Return the folder if it is complete, else the copy; close it after reading.

        ``hold``: the files that will be read.

        Raises:
            Conflict: neither can be read from this machine.
        """
        why = self.stray_folder
        if why is None:
            try:
                held = Folder(self.folder, root=self.root, hold=hold)
            except BadCheckpoint as error:
                why = str(error) if self.here else "its folder is not on the server's machine"
            else:
                return held, held.known
        if self.copy_url is not None:
            try:
                copy = Copy(self.copy_url)
                known = copy.known()
                if known is not None:
                    copy.hold(set(known.manifest.files) & set(hold))
            except LehrError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a storage's client raises
                why = f"{self.copy_url} cannot be read: {short(error)}"
            else:
                if known is not None:
                    return copy, known
                why = f"{self.copy_url} no longer exists"
        raise Conflict(
            f"the checkpoint at step {self.row.step:,} cannot be read: {why}.",
            hint="With checkpoints.upload in the spec, checkpoints are copied when written.",
        )

    def files(self) -> CheckpointFiles:
        source, known = self.readable()
        source.close()
        return CheckpointFiles(
            run_id=self.row.run_id,
            attempt=self.row.attempt,
            step=self.row.step,
            digest=known.digest,
            files=[
                FileView(name=name, size_bytes=entry.size, sha256=entry.sha256)
                for name, entry in known.manifest.files.items()
            ],
        )

    def verify(self, stopped: Stopped = never) -> CheckpointVerdict:
        """Read every location completely; compare it with its manifest, and that with the store."""
        places = []
        if self.stray_folder is not None:
            places.append(PlaceVerdict(place=self.row.path, ok=False, message=self.stray_folder))
        its_own = self.stray_folder is None and self.row.removed_at is None
        if its_own and (self.here or self.copy_url is None):
            look = partial(verify_folder, self.folder, root=self.root, stopped=stopped)
            places.append(self._judge(str(self.folder), look))
        if self.copy_url is not None:
            url = self.copy_url
            places.append(self._judge(url, lambda: Copy(url).verify(stopped)))
        return CheckpointVerdict(
            run_id=self.row.run_id,
            attempt=self.row.attempt,
            step=self.row.step,
            ok=bool(places) and all(place.ok for place in places),
            places=places,
        )

    def _judge(self, place: str, look: Callable[[], Known]) -> PlaceVerdict:
        try:
            known = look()
        except (BadCheckpoint, LehrError) as error:
            return PlaceVerdict(place=place, ok=False, message=str(error))
        except Exception as error:  # noqa: BLE001 - whatever a storage's client raises
            return PlaceVerdict(place=place, ok=False, message=f"cannot be read: {short(error)}")
        if known.digest != self.row.digest:
            message = (
                f"it is complete, but not the recorded one: its manifest's SHA-256 is "
                f"{known.digest[:12]}, but the record has {self.row.digest[:12]}"
            )
            return PlaceVerdict(place=place, ok=False, message=message)
        files = known.manifest.files
        size = known.manifest.size_bytes
        return PlaceVerdict(
            place=place,
            ok=True,
            message=f"{len(files)} files, {size:,} bytes: they match the manifest",
        )

    def weigh(self) -> CheckpointDeletion:
        """Return what removing it would free, as far as this machine can see."""
        places = []
        notes = [] if self.stray_folder is None else [f"not removed: {self.stray_folder}"]
        if self.row.removed_at is None and self.stray_folder is None:
            if self.here:
                places.append(str(self.folder))
            else:
                notes.append("its folder is not on this machine; files on a node are kept")
        if self.copy_url is not None:
            places.append(self.copy_url)
        return CheckpointDeletion(
            run_id=self.row.run_id,
            attempt=self.row.attempt,
            step=self.row.step,
            deleted=False,
            bytes=len(places) * self.row.size_bytes,
            places=places,
            notes=notes,
        )

    def remove_copy(self) -> None:
        """Remove the copy.

        Raises:
            Conflict: the storage cannot be reached, so the copy still exists.
        """
        if self.copy_url is None:
            return
        try:
            Copy(self.copy_url).remove()
        except LehrError:
            raise
        except Exception as error:
            raise Conflict(
                f"{self.copy_url} cannot be removed: {short(error)}.",
                hint="Try again once it can be reached.",
            ) from error

    def remove_folder(self) -> None:
        """Remove the folder, its manifest first, so that no partial checkpoint looks complete.

        Raises:
            Conflict: it does not belong to this run.
        """
        self.require_own()
        FolderFiles(self.folder, root=self.root).remove(layout.MANIFEST)


def own_folder(runs_dir: Path, run_id: str) -> Path:
    """Return the run's directory.

    Raises:
        Conflict: it is a link, so its content may belong to somebody else.
    """
    folder = runs_dir / run_id
    if folder.is_symlink():
        raise Conflict(
            f"{folder} is a link to {folder.readlink()}; nothing behind it is read or removed.",
            hint="Replace the link by the folder itself, or remove it.",
        )
    return folder
