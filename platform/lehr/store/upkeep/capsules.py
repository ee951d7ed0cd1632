"""Capsules of a home's record: which it needs, which are missing or damaged, copies of them."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from lehr.code import archive
from lehr.code.capsule_store import CapsuleStore
from lehr.store.read_only import open_read_only
from lehr_trainer.files import fsync_folder

FOLDER = "capsules"
_SHOWN = 12
_NAMED = 3  # Runs that a sentence about a capsule names.
_NEEDED = tuple(
    f"SELECT CASE WHEN json_valid(spec) THEN json_extract(spec, '$.{path}') ELSE '' END,"  # noqa: S608
    f" '{what} ' || id FROM {what}s WHERE {alive} ORDER BY number"
    for what, path, alive in (
        ("run", "code.digest", "id NOT IN (SELECT run_id FROM requests WHERE kind = 'delete')"),
        ("sweep", "run.code.digest", "NOT archived"),
        ("rollout", "run.code.digest", "NOT archived"),
    )
)
"""As ``Runs.capsules_in_use``, with who needs each."""


def needed(database: Path) -> dict[str, list[str]]:
    """Return the capsules that the record needs, each with its runs, sweeps and rollouts.

    Those whose spec is damaged have the key "": nobody knows what they need.
    """
    found: dict[str, list[str]] = defaultdict(list)
    with closing(open_read_only(database, timeout=30)) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        for query in _NEEDED:
            for digest, subject in connection.execute(query):
                if digest == "" or (isinstance(digest, str) and archive.DIGEST.fullmatch(digest)):
                    found[digest].append(subject)
    return dict(found)


def copied(home: Path, folder: Path, database: Path) -> Iterator[Path]:
    """Copy the capsules that a record needs to ``folder``; yield each copy.

    Missing ones are left out: a run may have been deleted after its database was copied.
    """
    capsules = CapsuleStore(home)
    wanted = needed(database)
    for digest in capsules.digests() if "" in wanted else sorted(wanted):
        source = capsules.path(digest)
        folder.mkdir(mode=0o700, exist_ok=True)
        try:
            shutil.copyfile(source, folder / source.name, follow_symlinks=False)
        except FileNotFoundError:
            continue
        (folder / source.name).chmod(0o600)
        yield folder / source.name


def adopt(restored: Path, home: Path) -> None:
    """Move restored capsules to the home's. Those that are there already stay: equal names have
    equal content.
    """
    if not restored.is_dir():
        return
    target = home / FOLDER
    target.mkdir(mode=0o700, exist_ok=True)
    for path in sorted(restored.iterdir()):
        path.rename(target / path.name)
    fsync_folder(target)
    restored.rmdir()


def link(home: Path, kept: Path) -> None:
    """Give replaced databases their capsules: those in the home are removed once no run of its
    record needs them.
    """
    there = sorted((home / FOLDER).glob("*.tar"))
    if there:
        (kept / FOLDER).mkdir(mode=0o700)
    for path in there:
        os.link(path, kept / FOLDER / path.name)


def missing(database: Path, home: Path) -> list[str]:
    """Return a sentence for each capsule that the record needs and the home lacks."""
    capsules = CapsuleStore(home)
    wanted = needed(database)
    damaged_specs = [
        f"the spec of {subject} is damaged in lehr.db" for subject in wanted.pop("", ())
    ]
    return damaged_specs + [
        f"{_title(digest)} is missing; {_of(subjects)}"
        for digest, subjects in wanted.items()
        if not capsules.path(digest).is_file()
    ]


def damaged(home: Path) -> list[str]:
    """Return a sentence for each capsule whose content is not what its name is the digest of."""
    capsules = CapsuleStore(home)
    found = []
    for digest in capsules.digests():
        try:
            is_one = archive.digest_of(capsules.path(digest)) == digest
        except FileNotFoundError:  # Removed meanwhile: its last run was deleted.
            continue
        except OSError as error:
            found.append(f"{_title(digest)} cannot be read: {error.strerror}")
            continue
        if not is_one:
            found.append(f"{_title(digest)} does not match its digest")
    return found


def _title(digest: str) -> str:
    return f"capsule {digest[:_SHOWN]}"


def _of(subjects: list[str]) -> str:
    more = len(subjects) - _NAMED
    verb = "need" if len(subjects) > 1 else "needs"
    listed = ", ".join(subjects[:_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{listed} {verb} it"
