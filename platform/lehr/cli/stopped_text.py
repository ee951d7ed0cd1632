"""How the trainings ended that a command has stopped, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping

from lehr.cli.output import console, warn


def show_ends(counts: Mapping[str, int], *, then: str) -> None:
    """Print how many ended in which way.

    Args:
        counts: the numbers, by ``lehr.node.stop.End``.
        then: what has those resume that are to, as the start of a sentence.
    """
    out = console()
    if saved := counts["saved"]:
        out.print(f"  {_were(saved)} saved. {then} resumes {_it(saved)}.")
    if unsaved := counts["unsaved"]:
        out.print(
            f"  {_were(unsaved)} stopped without a report of a save. {then} resumes {_it(unsaved)} "
            "from the last checkpoint."
        )
    if over := counts["over"]:
        out.print(f"  {_were(over)} over: completed, failed, paused or cancelled.")
    if killed := counts["killed"]:
        warn(
            f"{_were(killed)} killed: saving took too long. {then} resumes {_it(killed)} from the "
            "last checkpoint."
        )


def _were(number: int) -> str:
    return f"{number} training was" if number == 1 else f"{number} trainings were"


def _it(number: int) -> str:
    return "it" if number == 1 else "them"
