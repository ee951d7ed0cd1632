"""How the trainings ended that a command has stopped, for the terminal."""

from __future__ import annotations

from lehr.cli.output import console, warn
from lehr.node.stop import End, StoppedTrainings


def show_ends(stopped: StoppedTrainings, *, then: str) -> None:
    """Print how many ended in which way. ``then``: what has those resume, as a sentence's start."""
    counts = stopped.counts
    out = console()
    if saved := counts[End.SAVED]:
        out.print(f"  {_were(saved)} saved. {then} resumes {_it(saved)}.")
    if unsaved := counts[End.UNSAVED]:
        out.print(
            f"  {_were(unsaved)} stopped without a report of a save. {then} resumes {_it(unsaved)} "
            "from the last checkpoint."
        )
    if over := counts[End.OVER]:
        out.print(f"  {_were(over)} over: completed, failed, paused or cancelled.")
    if killed := counts[End.KILLED]:
        warn(
            f"{_were(killed)} killed: saving took too long. {then} resumes {_it(killed)} from the "
            "last checkpoint."
        )


def _were(number: int) -> str:
    return f"{number} training was" if number == 1 else f"{number} trainings were"


def _it(number: int) -> str:
    return "it" if number == 1 else "them"
