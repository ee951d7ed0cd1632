"""What a campaign has tried and believes, in words and figures: by rung, and as it narrows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Literal

import numpy as np

from lehr.analysis import figure_svg
from lehr.analysis.figure import Axis, Band, Figure, FigurePoints
from lehr.analysis.laws.question import CampaignAnswer
from lehr.base import formats
from lehr.base.names import is_rate
from lehr.control import campaign_record as record
from lehr.control.campaign_record import TrialState
from lehr.control.lifecycle import ENDED
from lehr.schemas.campaigns import AnswerView, CampaignTrialView, CourseView
from lehr.schemas.laws import Believed
from lehr.specs import SweepSpec

_LEAST = 3  # Losses, as for an answer.


def answer_view(spec: SweepSpec, answer: CampaignAnswer) -> AnswerView:
    """Return an answer in the target's units, and in words with 68 %."""
    loss = Believed(value=answer.loss, likely=answer.likely, sure=answer.sure)
    text = f"{spec.metric.name} {loss.value:.3f} ± {(loss.likely[1] - loss.likely[0]) / 2:.2g}"
    best = dict[str, Believed]()
    decide = record.campaign_of(spec).decide.items()
    for (path, one), value, ends in zip(decide, answer.values, answer.intervals, strict=True):
        by = record.scale(spec, one)
        likely, sure = ((low / by, high / by) for low, high in ends)
        best[path] = Believed(value=value / by, likely=likely, sure=sure)
        shown = (formats.parameter(float(f"{v:.2g}"), path) for v in (value / by, *likely))
        text += ", {} {} ({} to {})".format(path.rpartition(".")[2], *shown)
    more = {"regret": answer.regret, "outside": answer.outside, "text": f"{text} with 68 %"}
    return AnswerView(loss=loss, best=best, **more)


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
    rows = [["rung", "trials", "tried", "best", spec.metric.name, "GPU-hours"]]
    for number, rung in enumerate(record.campaign_of(spec).rungs):
        own = [trial for trial in trials if trial.rung == number]
        own.sort(key=lambda trial: [*trial.values.values()])
        texts = [", ".join(formats.parameter(v, p) for p, v in t.values.items()) for t in own]
        ends = [(one.loss, at) for one, at in zip(own, texts, strict=True) if one.loss is not None]
        loss, best = min(ends, default=(None, ""))
        hours = f"{sum(one.hours for one in own):.2g}"
        tried = formats.listed([*dict.fromkeys(texts)], 5)
        rows.append([rung.title, str(len(own)), tried, best, formats.loss(loss), hours])
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
        some = {number for _, number in told[:count]}
        law = believed(*record.asked(spec, hours, [t for t in trials if t.number in some])[:2])
        if law is None or not law.domain:
            continue
        known = vars(answer_view(spec, law.answer()))
        steps.append(CourseView(hours=told[count - 1][0], trials=count, **known))
    return steps[::-1]


def drawn_course(
    metric: str, steps: Sequence[CourseView], trials: Sequence[CampaignTrialView]
) -> dict[str, str]:
    """Draw how an answer narrows over the GPU-hours used, with the trials: SVG by title."""
    if len(steps) < 2:
        return {}
    x, figures = [one.hours for one in steps], {}
    shown = [one for one in trials if one.used is not None and one.used >= x[0]]
    used, run_ids = [one.used or 0.0 for one in shown], [one.run_id for one in shown]
    texts = [f"{one.text}\n{one.why}" for one in shown]
    for title in (*steps[0].best, metric):
        known = [one.best.get(title, one.loss) for one in steps]
        kind: Literal["log", "linear"] = "log" if is_rate(title) else "linear"
        y = [one.value for one in known]
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
