"""Run the parts one after the other, keep what each found, and write the report.

The result of a part is a file of its own, written when the part ends. So a session may be interrupted
at any time, and the next call runs only what has not passed on this machine.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from first_hour.parts import Failed, NotHere, Outcome, OutOfTime, Part, Result, Session, slug
from first_hour.report import write_report


def run(session: Session, parts: Sequence[Part]) -> list[Outcome]:
    """Run every part that has not passed here before; the report is renewed after each.

    With a time limit a part begins only if the time suffices for the longest of its kind so far.

    Raises:
        KeyboardInterrupt: it was interrupted; finished parts are kept.
    """
    outcomes = [_kept(session, part) for part in parts]
    longest: dict[tuple[str, bool], float] = {}
    did_not_fit: list[str] = []
    write_report(session, parts, outcomes)
    for number, part in enumerate(parts):
        label = f"[{number + 1}/{len(parts)}] {part.name}"
        if outcomes[number] is not None:
            session.log(f"{label}: passed before")
            continue
        needs = 0.0 if part.keeps_to_limit else longest.get(part.kind, 0.0)
        if not part.always and session.left_s <= needs:
            session.log(f"{label}: does not fit into the time that is left")
            did_not_fit.append(part.name)
            write_report(session, parts, outcomes, did_not_fit)
            continue
        session.log(label)
        began = session.clock()
        outcome = outcomes[number] = _act(session, part)
        if outcome.status != "not here":
            longest[part.kind] = max(longest.get(part.kind, 0.0), session.clock() - began)
        _keep(session, outcome)
        reason = f": {outcome.reason}" if outcome.reason else ""
        session.log(f"    {outcome.status} in {outcome.seconds:.0f} s{reason}")
        write_report(session, parts, outcomes, did_not_fit)
    if did_not_fit:
        names = ", ".join(did_not_fit)
        session.log(
            f"did not fit into {session.settings.minutes:g} minutes: {names}; call it again for them"
        )
    return [outcome for outcome in outcomes if outcome is not None]


def _act(session: Session, part: Part) -> Outcome:
    outcome = Outcome(
        part.name,
        part.group,
        "passed",
        commit=session.machine.commit,
        time=f"{datetime.now(UTC):%Y-%m-%d %H:%M}",
        identity=session.machine.identity(),
    )
    began = time.monotonic()
    try:
        result = _result(session, part)
    except NotHere as reason:
        outcome = replace(outcome, status="not here", reason=str(reason))
    except OutOfTime as reason:
        outcome = replace(outcome, status="unfinished", reason=str(reason))
    except Failed as reason:
        outcome = replace(outcome, status="failed", reason=str(reason))
    except Exception as error:  # It is reported, and the others go on.
        traceback.print_exc()
        outcome = replace(outcome, status="failed", reason=f"{type(error).__name__}: {error}")
    else:
        outcome = replace(outcome, figures=result.figures, text=result.text)
        if result.unfinished:
            outcome = replace(outcome, status="unfinished", reason=result.unfinished)
    return replace(outcome, seconds=round(time.monotonic() - began, 1))


def _result(session: Session, part: Part) -> Result:
    if part.compiles and not session.settings.compile:
        raise NotHere("parts that compile are left out (--eager)")
    return part.act(session)


def _kept(session: Session, part: Part) -> Outcome | None:
    """Load a result that need not be repeated: passed, on this very machine."""
    path = session.folder / "parts" / f"{slug(part.name)}.json"
    try:
        found = Outcome(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None
    same = found.identity == session.machine.identity()
    return found if same and found.status == "passed" else None


def _keep(session: Session, outcome: Outcome) -> None:
    path = session.folder / "parts" / f"{slug(outcome.name)}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(outcome.as_dict(), indent=1))
    temporary.replace(path)
