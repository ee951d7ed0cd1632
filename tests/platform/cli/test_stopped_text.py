"""What a command prints of the trainings that it has stopped."""

from __future__ import annotations

import pytest

from lehr.cli.shutdown import show_ends
from lehr.node.stop import End, StoppedTrainings


def shown(capsys: pytest.CaptureFixture[str], *ends: End) -> list[str]:
    given = {f"run{n}-1": end for n, end in enumerate(ends)}
    show_ends(StoppedTrainings(given).counts, then="The next lehr up")
    found = capsys.readouterr()
    return " ".join((found.out + found.err).split()).split(". ")


def test_each_way_to_end_is_named_with_what_follows(capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, *End, End.SAVED, End.KILLED)
    assert lines == [
        "2 trainings were saved",
        "The next lehr up resumes them",
        "1 training was stopped without a report of a save",
        "The next lehr up resumes it from the last checkpoint",
        "1 training was over: completed, failed, paused or cancelled",
        "! 2 trainings were killed: saving took too long",
        "The next lehr up resumes them from the last checkpoint.",
    ]


def test_nothing_is_printed_of_no_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys) == [""]
