"""What a submission would be answered, without being recorded."""

from __future__ import annotations

from typing import Literal

from lehr.schemas.base import View

SubmissionKind = Literal["run", "sweep", "rollout"]


class SubmissionCheck(View):
    """The server would accept the submission."""

    kind: SubmissionKind
    name: str
    warnings: list[str] = []
    """As of the run or sweep, once it is recorded."""
