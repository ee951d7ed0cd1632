"""Judge the claim of a run: keep, reject or undecided, by pairs of runs with the same seed.

Only runs that the server started for the claim count, with seeds that it drew at random then. So
nobody can have seen a result before, nor choose a lucky seed. All of them count.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

from lehr.analysis import claims
from lehr.analysis.batches import HeldOut, is_measured
from lehr.analysis.noise import is_value
from lehr.analysis.significance import Group, mean_text
from lehr.app.services import code
from lehr.app.services.budget import planned_hours
from lehr.app.services.context import Context
from lehr.app.services.extend import refuse_repeating, repeat_run
from lehr.base import formats
from lehr.code.changes import changes_between
from lehr.control.lifecycle import RunState
from lehr.errors import Conflict, NotFound, SpecError, SpecProblem, UserError
from lehr.schemas.comparisons import ClaimView
from lehr.specs import RunSpec
from lehr.specs.program import from_root
from lehr.store.tables import RunRow


def check_claims(context: Context, specs: Sequence[RunSpec], *, code_sent: bool = True) -> None:
    """Refuse claims that cannot be judged; without their code, that is not checked.

    Raises:
        SpecError: a baseline does not exist, cannot be repeated, or is evaluated otherwise.
    """
    for spec in {(s.baseline, s.code.model_dump_json()): s for s in specs if s.baseline}.values():
        try:
            _refuse_baseline(context, spec, code_sent=code_sent)
        except (NotFound, Conflict) as error:
            problem = SpecProblem.of("baseline", error.message, error.hint)
            raise SpecError([problem]) from error


def _refuse_baseline(context: Context, spec: RunSpec, *, code_sent: bool) -> None:
    base = context.store.runs.find(str(spec.baseline))
    name, own = f"{base.name} ({base.id})", RunSpec.model_validate(base.spec)
    refuse_repeating(context, base)
    if base.id != spec.baseline:
        raise Conflict(f"write the id of {name}; a name may mean another run later.")
    differ = ["the number of steps"] * (own.steps != spec.steps)
    if code_sent and (before := code.of_run(context, base)) != spec.code.digest:
        paths = (code.path(context, str(digest)) for digest in (before, spec.code.digest))
        # Without the folder of the archive: trainer/ or project/.
        files = [change.name.partition("/")[2] for change in changes_between(*paths)]
        if own.code.evaluation or own.trainer is None:
            evaluation = from_root(own.code.evaluation or ["lehr_trainer/"])
            files = [file for file in files if evaluation.match_file(file)]
        differ += files
    if differ:
        raise Conflict(
            f"{name} is evaluated otherwise: {formats.listed(differ)} must be the same.",
            hint="If other files of the code evaluate, name those in its code.evaluation.",
        )


def claims_of(context: Context, name: str) -> list[ClaimView]:
    """Return the claims of a person in order of submission, as they were last judged."""
    runs = enumerate(context.store.runs.claims(name), start=1)
    known = [{"run_id": run.id, "by": name, "number": n, **(run.claim or {})} for n, run in runs]
    return [ClaimView.model_validate(claim) for claim in known]


def judge_run(context: Context, run: RunRow, *, add_seeds: bool = False) -> ClaimView:
    """Judge the run's claim by its pairs and record the verdict; keep and reject stay.
    ``add_seeds``: start the next pairs if it is undecided and no pair is training.

    Raises:
        UserError: the run makes no claim, or its evaluation is not that of the baseline.
        Conflict: the pairs were evaluated on different held-out sets, or cannot be repeated.
        Forbidden: the pairs are over the budget of the token of the current request.
    """
    store = context.store
    if run.claim is None:
        raise UserError(f"{run.name} ({run.id}) makes no claim: its spec has no hypothesis.")
    base = store.runs.get(run.claim["baseline"])
    with store.transaction():  # Nobody else judges or adds seeds meanwhile.
        every = claims_of(context, run.submitted_by)
        [view] = [one for one in every if one.run_id == run.id]
        if view.verdict != "undecided":
            return view
        check_claims(context, [RunSpec.model_validate(run.spec)])
        view.needed = claims.required(view.number, sum(one.verdict == "keep" for one in every))
        gains, why = _gains(context, view)
        view.sentence = why or _decide(view, gains)
        hours = [planned_hours(context, RunSpec.model_validate(one.spec)) for one in (run, base)]
        if view.next_pairs and None not in hours:
            cost = formats.gpu_hours(view.next_pairs * math.fsum(one or 0.0 for one in hours))
            view.sentence += f" The next {view.next_pairs} take {cost} by the plan."
        if add_seeds and view.next_pairs:
            seeds = [secrets.randbelow(2**31) for _ in range(view.next_pairs)]
            made = [repeat_run(context, one, n=seeds, provenance={}) for one in (run, base)]
            ours, theirs = (operation.prepare()() for operation in made)
            view.sweeps.append((ours, theirs))
            view.sentence, view.next_pairs = f"{len(seeds)} more pairs are training.", 0
        store.runs.set_claim(run.id, view.model_dump(mode="json"))
    context.dispatcher.wake()
    return view


def _gains(context: Context, view: ClaimView) -> tuple[list[float], str]:
    """Return the gains of the pairs in the order of their seeds, and why not all pairs have one.

    Raises:
        Conflict: it is not known that all values are of one held-out set.
    """
    store, metric = context.store, view.metric
    outlines = [[store.sweeps.outlines(sweep) for sweep in pair] for pair in view.sweeps]
    pairs = [pair for ours, theirs in outlines for pair in zip(ours, theirs, strict=True)]
    names = {run.run_id: run.name for pair in pairs for run in pair}
    names |= {view.run_id: view.run_id, view.baseline: view.baseline}
    latest = store.series.latest(list(names), [metric])
    judged = (run for run in names if latest[run])
    held_out = HeldOut.of(store.events.held_out(judged, metric))
    if is_measured(metric) and (note := held_out.note(metric, names)):
        raise Conflict(note)
    gains, training, missing = [], 0, []
    for pair in pairs:
        ours, theirs = (latest[run.run_id].get(metric) for run in pair)
        done = {run.state for run in pair} == {RunState.COMPLETED}
        if not all(RunState(run.state).ended for run in pair):
            training += 1
        elif pair[0].cause == "nan_loss" or (ours and not is_value(ours.value)):
            gains.append(-math.inf)
        elif done and ours and theirs and is_value(theirs.value) and ours.step == theirs.step:
            gains.append((theirs.value - ours.value) * (1 if view.direction == "lowers" else -1))
        else:
            missing += [f"{run.name} ({run.state})" for run in pair]
    view.next_pairs = 0
    if missing:
        what = f"all seeds count, and these have no {metric} at the same step"
        return gains, f"{what}: {formats.listed(missing)}. `lehr retry` repeats what failed."
    return gains, f"{training} of {len(pairs)} pairs are training." if training else ""


def _decide(view: ClaimView, gains: list[float]) -> str:
    """Judge the claim by the gains of all its pairs; return the sentence."""
    if not gains:
        view.next_pairs = claims.FIRST
        return f"no pair of seeds yet; the first look takes {claims.FIRST}."
    made = claims.decide(gains, view.needed or math.inf, looked=view.pairs)
    view.verdict, view.evidence, view.pairs = made.verdict, made.evidence, len(gains)
    if -math.inf in gains:
        return f"{gains.count(-math.inf)} of {len(gains)} seeds diverged."
    view.gain, left = math.fsum(gains) / len(gains), claims.MOST - len(gains)
    if made.verdict == "undecided":
        view.next_pairs = min(made.more or claims.FIRST, claims.FIRST, left)
    then = {
        "keep": "",
        "reject": f"; {claims.MOST} pairs are not expected to",
        "undecided": f"; about {made.more or f'{left} or more'} more pairs do with 80 %",
    }
    return (
        f"{view.metric} gains {mean_text(Group('', tuple(gains)))} by {len(gains)} pairs of seeds; "
        f"evidence {made.evidence:,.3g}, and {view.needed:,.4g} keeps it{then[made.verdict]}."
    )
