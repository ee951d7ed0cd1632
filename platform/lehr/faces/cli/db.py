"""``lehr db``: maintain this machine's databases. Works on files of LEHR_HOME, not over HTTP."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lehr.base import formats
from lehr.base import home as homes
from lehr.errors import NotFound, UserError
from lehr.faces.cli.output import (
    JsonOption,
    console,
    escaped,
    notes,
    print_json,
    print_result,
    warn,
)
from lehr_trainer import extras

if TYPE_CHECKING:
    from types import ModuleType

    from lehr.store.upkeep.backup import Backup

app = typer.Typer(rich_markup_mode=None)
db = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(db, name="db")

Home = Annotated[
    Path | None,
    typer.Option("--home", metavar="FOLDER", help="Home folder. Default: LEHR_HOME, or ~/.lehr."),
]


@db.callback()
def about() -> None:
    """Check, back up, restore and rebuild the databases of this machine's server.

    check and backup work while the server runs. restore and rebuild need it stopped (`lehr down`).
    The server upgrades the tables when it starts.
    """


@db.command("check")
def check(home: Home = None, as_json: JsonOption = False) -> None:
    """Check the databases for damage, without changing them. Exit code 1 if any is found.

    The server may be running.

    JSON: {home, ok, findings: [{level, where, message}]}.
    """
    _upkeep()
    from lehr.store.upkeep.integrity import check as look

    where = _home(home)
    with notes().status("Checking every file"):
        found = look(where)
    wrong = [finding for finding in found if finding.level == "error"]
    if as_json:
        findings = [asdict(finding) for finding in found]
        print_json({"home": str(where), "ok": not wrong, "findings": findings})
    else:
        out = console()
        for one in sorted(found, key=lambda one: one.level):
            mark = "[red]error[/]" if one.level == "error" else "[dim]note [/]"
            out.print(f"{mark}  {escaped(one.where)}: {escaped(one.message)}")
        wording = f"[red]{formats.counted(len(wrong), 'error')}[/]" if wrong else "no damage found"
        out.print(f"{escaped(str(where))}: {wording}")
        if wrong:
            notes().print(
                "  To repair streams.db: lehr db rebuild. To repair lehr.db: lehr db restore."
            )
    if wrong:
        raise typer.Exit(1)


@db.command("backup")
def backup(
    target: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder to create. It must not exist yet.")
    ],
    keep: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Create the backup inside FOLDER, named by its time, and keep only the newest N "
            "there.",
        ),
    ] = None,
    home: Home = None,
    as_json: JsonOption = False,
) -> None:
    """Back up databases, streams and code.

    The copy is consistent, even while runs are training.

    Not included: checkpoints (run directories), prepared data, the token, and the values of
    secrets. If the code of a run is missing, a warning names it. JSON: {backup: {folder, runs,
    files, size_bytes, version, revision, created_at, missing, damaged, left_out: {secrets}},
    removed}.
    """
    upkeep = _upkeep()
    removed: list[Path] = []
    with notes().status("Copying"):
        if keep is None:
            made = upkeep.backup(_home(home), target.absolute())
        else:
            made, removed = upkeep.backup_and_rotate(_home(home), target.absolute(), keep=keep)
    if as_json:
        print_json({"backup": _plain(made), "removed": [str(path) for path in removed]})
        return
    out = console()
    out.print(
        f"{escaped(str(made.folder))}: {formats.counted(made.runs, 'run')}, "
        f"{formats.counted(len(made.files), 'file')}, {formats.size(made.size_bytes)}"
    )
    _warn_of_missing(made)
    if removed:
        out.print(f"  {formats.counted(len(removed), 'older backup')} removed.", style="dim")
    out.print("  Not included: checkpoints, prepared data and the token.", style="dim")
    _print_left_out("Not included", made)
    out.print(f"  Restore it: lehr db restore {escaped(str(made.folder))}", style="dim")


@db.command("restore")
def restore(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder that `lehr db backup` created.")
    ],
    home: Home = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace", help="Replace existing databases. They are moved aside, not deleted."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Verify a backup completely, then restore it. The server must be stopped.

    The server of the restored home starts no run until `lehr db release`, since the one that was
    backed up may still train. Secrets are in no backup: those that the home lacks are named.

    JSON: {backup: {folder, runs, files, size_bytes, version, revision, created_at, missing,
    damaged, left_out: {secrets}}}.
    """
    upkeep = _upkeep()
    # The home may not exist yet: a new machine can start from a backup.
    where = (home or homes.home()).expanduser().absolute()
    _needs_it_down(where, "restore")
    if (where / "lehr.db").exists() and not replace and not (where / ".restoring").exists():
        raise UserError(
            f"{where} already holds a lehr.db.",
            hint="Add --replace (the old files are moved aside), or give another --home.",
        )
    with notes().status("Verifying and restoring the backup"):
        put = upkeep.restore(folder.absolute(), where, replace=replace)
    if as_json:
        print_json({"backup": _plain(put)})
        return
    when = formats.ago(put.created_at)
    console().print(
        f"{escaped(str(where))}: {formats.counted(put.runs, 'run')} from the backup of {when}. "
        "Start the server: lehr up. No run starts until: lehr db release"
    )
    _print_left_out("To set again", put)
    _warn_of_missing(put)


@db.command("rebuild")
def rebuild(home: Home = None, as_json: JsonOption = False) -> None:
    """Rebuild streams.db, and a missing or empty lehr.db. The server must be stopped.

    streams.db is the index of metrics and logs. lehr.db is made of the replica and the folders
    of the runs. What they do not say is listed. Runs that may be training count as running, and
    no other run starts until `lehr db release`.

    JSON: {rebuilt: {streams, points, records, malformed, seconds}, record: {runs, living, left_out,
    variables: [ids], unknown: [texts]} | null}.
    """
    upkeep = _upkeep()
    from lehr.store.upkeep.lost_record import is_lost
    from lehr.store.upkeep.rebuild_record import UNKNOWN

    where = (home or homes.home()).expanduser().absolute()
    if not (where.is_dir() and is_lost(where)):
        where = _home(home)
    _needs_it_down(where, "rebuild")
    with notes().status("Reading every stream"):
        made = upkeep.rebuild(where)
    record = None if made.record is None else {**asdict(made.record), "unknown": list(UNKNOWN)}
    if as_json:
        rebuilt = asdict(made) | {"seconds": round(made.seconds, 3)}
        del rebuilt["record"]
        print_json({"rebuilt": rebuilt, "record": record})
        return
    skipped = (
        f", {formats.counted(made.malformed, 'malformed line')} skipped" if made.malformed else ""
    )
    console().print(
        f"streams.db: {formats.counted(made.points, 'point')} and "
        f"{formats.counted(made.records, 'record')} of "
        f"{formats.counted(made.streams, 'stream')} in {formats.duration(made.seconds)}{skipped}"
    )
    if record is not None:
        _print_record(record)


def _print_record(record: dict[str, list[str]]) -> None:
    out = console()
    out.print(f"lehr.db: {formats.counted(len(record['runs']), 'run')}, made of their files")
    for name, text in (
        ("living", "may be training, and count as running"),
        ("variables", "the values of their env are not known, and a retry lacks them"),
        ("left_out", "not recorded: no configuration, or no streams here"),
    ):
        if record[name]:
            out.print(f"  {formats.listed(record[name])}: {text}", soft_wrap=True)
    out.print("  Not known:")
    for text in record["unknown"]:
        out.print(f"    {text}", soft_wrap=True)
    out.print("  lehr up adopts what is training. Then, to let it start runs: lehr db release")


@db.command("release")
def release(home: Home = None, as_json: JsonOption = False) -> None:
    """Let the server of a home that was restored or rebuilt start runs.

    First make sure that no other server has the same runs. The server may be running.

    JSON: {released}: whether it was held.
    """
    where = _home(home)
    was_held = homes.release(where)
    text = "starts runs from now on" if was_held else "was not held"
    print_result({"released": was_held}, f"{escaped(str(where))} {text}.", as_json=as_json)


def _upkeep() -> ModuleType:
    extras.need("sqlmodel")
    from lehr.store.upkeep import backup

    return backup


def _home(given: Path | None) -> Path:
    from lehr.store.upkeep import lost_record

    where = (given or homes.home()).expanduser().absolute()
    if not (where / "lehr.db").exists():
        if where.is_dir():
            lost_record.refuse(where)
        raise NotFound(
            f"{where} has no lehr.db: no Lehr server has run there.",
            hint="To use another home: --home FOLDER, or LEHR_HOME",
        )
    return where


def _needs_it_down(where: Path, what: str) -> None:
    """Fail early if the server runs. The lock of the home protects the files in any case."""
    pid = homes.lock_holder(where)
    if pid is not None:
        raise UserError(
            f"lehr db {what} needs the server to be stopped: process {pid} uses {where}.",
            hint="Stop it: lehr down --keep-runs (the next lehr up adopts the trainings)",
        )


def _warn_of_missing(backup_: Backup) -> None:
    """Name damage, and capsules that are not in it: their runs cannot be retried or resumed."""
    for text in (*backup_.damaged, *backup_.missing):
        warn(text, on=notes())


def _print_left_out(what: str, backup_: Backup) -> None:
    if names := backup_.left_out.get("secrets"):
        cure = "lehr admin secret set NAME; alerts reach nobody without that of their webhook"
        console().print(f"  {what}: secrets {escaped(', '.join(names))} ({cure})")


def _plain(backup_: Backup) -> dict[str, object]:
    return {
        **asdict(backup_),
        "folder": str(backup_.folder),
        "files": len(backup_.files),
        "size_bytes": backup_.size_bytes,
    }
