"""What a campaign has tried and believes, in words and figures: by rung, and as it narrows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from lehr.analysis import figure_svg
from lehr.analysis.figure import Axis, Band, Figure, FigurePoints
from lehr.base import formats
from lehr.base.names import is_rate
from lehr.control import campaign_record as record
from lehr.control.lifecycle import ENDED
from lehr.schemas.campaigns import AnswerView, CampaignTrialView, CourseView, DecidedView

if TYPE_CHECKING:
    from lehr.analysis.laws.question import CampaignAnswer
    from lehr.control.campaign_record import TrialState
    from lehr.specs import SweepSpec

_LEAST = 3  # Losses, as for an answer.


def decided(spec: SweepSpec, answer: CampaignAnswer | None) -> dict[str, DecidedView]:
    """Return what is decided, with what an answer says of it, in the target's units."""
    views = {}
    for number, (path, one) in enumerate(record.campaign_of(spec).decide.items()):
        known: dict[str, Any] = {}
        if answer is not None:
            by = record.scale(spec, one)
            likely, sure = ((low / by, high / by) for low, high in answer.intervals[number])
            known = {"value": answer.values[number] / by, "likely": likely, "sure": sure}
        views[path] = DecidedView(**one.model_dump(), **known)
    return views


def answer_text(metric: str, decide: Mapping[str, DecidedView], answer: AnswerView) -> str:
    """Return an answer in words: the loss, and each decided value, with 68 %."""
    text = f"{metric} {answer.loss:.3f} ± {(answer.likely[1] - answer.likely[0]) / 2:.2g}"
    for path, one in decide.items():
        known = (one.value or 0.0, *(one.likely or ()))
        shown = (formats.parameter(float(f"{each:.2g}"), path) for each in known)
        text += ", {} {} ({} to {})".format(path.rpartition(".")[2], *shown)
    return f"{text} with 68 %"


def trial_views(
    spec: SweepSpec, trials: Sequence[TrialState], why: Mapping[str, str]
) -> list[CampaignTrialView]:
    """Return the trials, in their order. ``why``: each was started, by run."""
    campaign = record.campaign_of(spec)
    ended = [trial for trial in trials if trial.state in ENDED]
    ended.sort(key=lambda trial: (trial.ended_at or 0.0, trial.number))
    used = dict(zip((t.run_id for t in ended), accumulate(t.hours for t in ended), strict=True))
    views = []
    for trial in trials:
        loss, doubt = record.ending(trial) or (None, 0.0)
        values = {path: trial.parameters[path] for path in campaign.decide}
        rung = record.rung_of(campaign, trial)
        seen = f"{formats.loss(loss)}{f' ± {doubt:.2g} by its forecast' if doubt else ''}"
        text = f"{campaign.rungs[rung].title}, {formats.point(values)}: {spec.metric.name} {seen}"
        views.append(CampaignTrialView(
            number=trial.number, run_id=trial.run_id, state=trial.state.value, rung=rung,
            values=values, seed=trial.parameters[spec.seed_path], loss=loss, doubt=doubt,
            hours=trial.hours + (trial.living_hours or 0.0), used=used.get(trial.run_id),
            reserved=record.reserved(campaign, trial), why=why.get(trial.run_id, ""), text=text,
        ))  # fmt: skip
    return views


def rung_table(spec: SweepSpec, trials: Sequence[CampaignTrialView]) -> list[list[str]]:
    """Return what was tried at each rung, from the smallest, in words, after a head."""
    campaign = record.campaign_of(spec)
    rows = [["rung", "trials", "tried", "best", spec.metric.name, "GPU-hours"]]
    for number, rung in enumerate(campaign.rungs):
        own = [trial for trial in trials if trial.rung == number]
        tried = []
        for path in campaign.decide if own else ():
            values = sorted({one.values[path] for one in own})
            ends = dict.fromkeys((values[0], values[-1]))
            tried.append(" to ".join(formats.parameter(value, path) for value in ends))
        done = [(one.loss, one.number, one) for one in own if one.loss is not None]
        loss, _, best = min(done, default=(None, 0, None))
        at = [formats.parameter(own, path) for path, own in best.values.items()] if best else []
        hours = f"{sum(one.hours for one in own):.2g}"
        rows.append(
            [rung.title, str(len(own)), ", ".join(tried), ", ".join(at), formats.loss(loss), hours]
        )
    return rows


def course(
    spec: SweepSpec, trials: Sequence[TrialState], views: Sequence[CampaignTrialView], most: int
) -> list[CourseView]:
    """Return what was believed after trials that told something, for ``most`` of them at most."""
    from lehr.control.campaign_choice import believed

    hours = [rung.flops for rung in record.campaign_of(spec).rungs]
    told = sorted((one.used, one.number) for one in views if one.used and one.loss is not None)
    counts, steps = range(len(told), _LEAST - 1, -1), []
    for count in counts[:: max(-(-len(counts) // most), 1)] if most else ():
        known = {number for _, number in told[:count]}
        law = believed(*record.asked(spec, hours, [t for t in trials if t.number in known])[:2])
        if law is None or not law.domain:
            continue
        own = law.answer()
        decide, answer = decided(spec, own), AnswerView.model_validate(own, from_attributes=True)
        steps.append(CourseView(
            hours=told[count - 1][0], trials=count, decide=decide, answer=answer,
            text=answer_text(spec.metric.name, decide, answer),
        ))  # fmt: skip
    return steps[::-1]


def drawn_course(
    metric: str, steps: Sequence[CourseView], trials: Sequence[CampaignTrialView]
) -> dict[str, str]:
    """Draw how an answer narrows over the GPU-hours used, with the trials: SVG by title."""
    import numpy as np

    if len(steps) < 2:
        return {}
    x, figures = [one.hours for one in steps], {}
    panels: dict[str, list[Any]] = {metric: [step.answer for step in steps]}
    panels |= {path: [step.decide[path] for step in steps] for path in steps[0].decide}
    shown = [one for one in trials if one.used is not None and one.used >= x[0]]
    used, run_ids = [one.used or 0.0 for one in shown], [one.run_id for one in shown]
    texts = [f"{one.text}\n{one.why}" for one in shown]
    for title, known in reversed(panels.items()):
        kind: Literal["log", "linear"] = "log" if is_rate(title) else "linear"
        y = [one.loss if title == metric else one.value for one in known]
        within = [one.sure for one in known], [one.likely for one in known]
        bands = [Band(x, *map(list, zip(*own, strict=True))) for own in within]
        on = np.interp(used, x, y).tolist()
        points = [
            FigurePoints("recommended, within 68 and 95 %", "fit", x, y, width=1.5),
            FigurePoints("trials", "points", used, on, "dot", texts=texts, runs=run_ids),
        ]
        figure = Figure(Axis("GPU-hours used"), Axis(title, kind), points, bands)
        figures[title] = figure_svg.draw(figure, f"{title} as it narrows", links=True)
    return figures
