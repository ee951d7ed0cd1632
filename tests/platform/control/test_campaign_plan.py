"""The course of a campaign that is expected before anything is spent."""

from __future__ import annotations

import re
from itertools import count

from lehr.control.campaign_plan import courses
from lehr_testing.campaigns import campaign

HOURS = [0.01, 0.03, 0.04, 0.1, 0.15, 0.4]


def test_courses_by_the_prior_stay_in_the_budget_and_say_why_they_stop() -> None:
    spec = campaign(budget={"gpu_hours": 1.0})
    drawn = [*courses(spec, HOURS, lambda: True)]
    assert len(set(drawn)) == 3
    for text in drawn:
        assert re.match(r"\d+ trials \(by width: \d+ of 32", text)
        spent = [float(hours) for hours in re.findall(r"after ([\d.]+) GPU-hours loss ± ", text)]
        assert len(spent) == 2
        assert 0.05 <= spent[0] < spent[1] <= 1.0
        assert text.rpartition(". ")[2]
    assert [*courses(spec, HOURS, lambda: True)] == drawn


def test_a_course_is_cut_where_time_is_up() -> None:
    calls = count()
    [text] = courses(campaign(), HOURS, lambda: next(calls) < 1)
    assert text.startswith("5 trials")
    assert text.endswith("The rest was not simulated, for time.")
