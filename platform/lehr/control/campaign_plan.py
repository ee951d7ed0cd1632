"""Simulate a campaign before anything is spent: trials that end as draws of the prior say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from lehr.analysis.laws.question import CampaignAnswer, CampaignTrial, Question
from lehr.base.formats import counted, gpu_hours, parameter
from lehr.control import campaign_choice
from lehr.control.campaign_record import MARGIN, STOP_S, asked, campaign_of
from lehr.specs.sweep import SweepSpec
from lehr_trainer.planning.counts import predicted_first_loss

_COURSES = 3
_AT_ONCE = 4  # Trials of a decision: a course takes as many fewer decisions.
_OF_FIRST = 0.28  # Of the first loss: about where trainings on bytes and on tokens end.


def courses(spec: SweepSpec, hours: Sequence[float], in_time: Callable[[], bool]) -> Iterator[str]:
    """Yield simulated courses in words, the last one cut where it is not ``in_time``.

    ``hours``: planned ones of a trial of each rung.
    """
    question, _, _ = asked(spec, hours, ())
    budget, prior = campaign_of(spec).gpu_hours, campaign_choice.believed(question, ())
    scale = _OF_FIRST * predicted_first_loss(spec.run.own.model)
    for draw in range(_COURSES):
        if prior is None or (draw and not in_time()):
            return
        rng, trials, used = np.random.default_rng(draw), list[CampaignTrial](), 0.0
        known, why = list[tuple[float, CampaignAnswer]](), ""
        while not why:
            room = max((budget - used - STOP_S / 3600) / MARGIN, 0.0)
            step = campaign_choice.choose(question, trials, room, _AT_ONCE, spec.seed)
            known += [(used, step.answer)] if step.answer is not None else []
            why = step.stop or ("" if in_time() else "The rest was not simulated, for time.")
            for trial in step.trials:
                rung = question.rungs[trial.rung]
                losses, around = prior.outcome(rung.setting, trial.values)
                end = float(losses[draw] + around[draw] * rng.standard_normal())
                trials.append(replace(trial, loss=scale * end))
                used += rung.hours
        yield _described(question, trials, known, why)


def _described(
    question: Question,
    trials: Sequence[CampaignTrial],
    known: Sequence[tuple[float, CampaignAnswer]],
    why: str,
) -> str:
    widths = Counter(question.rungs[trial.rung].setting.width for trial in trials)
    of_each = ", ".join(f"{n} of {width:,.0f}" for width, n in sorted(widths.items()))
    texts = [f"{counted(len(trials), 'trial')} (by width: {of_each})"]
    half = [each for each in known if each[0] <= known[-1][0] / 2]
    for spent, answer in (*half[-1:], *known[-1:]):
        ends = zip(question.fields, answer.intervals, strict=True)
        parts = [f"loss ± {(answer.likely[1] - answer.likely[0]) / 2:.2g}"]
        for field, (likely, _) in ends:
            low, high = (parameter(float(f"{end:.2g}"), field.path) for end in likely)
            parts.append(f"{field.path.rpartition('.')[2]} {low} to {high}")
        texts.append(f"after {gpu_hours(spent)} {', '.join(parts)}")
    return f"{'; '.join(texts)}. {why}"
