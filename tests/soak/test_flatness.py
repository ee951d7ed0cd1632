"""The judgement of a soak: flat, growing and too short series, over several lives of a process."""

from __future__ import annotations

import random
from dataclasses import fields, replace

import pytest

from soak import report, samples
from soak.flatness import Point, Trend, trend
from soak.samples import Sample

WARM_H, AVERAGE_H = 10 / 60, 2 / 60


def series(*, per_hour: float = 0.0, hours: float = 3.0, lives: int = 4, seed: int = 1):
    """A sample each 15 s, of lives that begin at other levels and warm up by 30 in six minutes."""
    chance = random.Random(seed)
    levels = [chance.uniform(100, 150) for _ in range(lives)]
    found, noise = [], 0.0
    for number in range(int(hours * 240)):
        now = number / 240
        life, age = divmod(now, hours / lives)
        noise = 0.8 * noise + chance.gauss(0, 0.5)  # What is high stays high for a while.
        value = levels[int(life)] + 30 * min(1.0, age * 10) + per_hour * age + noise
        found.append(Point(now, str(int(life)), value))
    return found


def found(points) -> Trend:
    result = trend(points, warm_up_h=WARM_H, average_h=AVERAGE_H)
    assert result is not None
    return result


@pytest.mark.parametrize("seed", range(5))
def test_levels_and_warm_ups_of_several_lives_are_no_growth(seed):
    assert found(series(seed=seed)).verdict(6.0) == "flat"


@pytest.mark.parametrize("seed", range(5))
def test_growth_within_lives_is_found_although_each_begins_anew(seed):
    growing = found(series(per_hour=12.0, seed=seed))
    assert growing.verdict(6.0) == "grows"
    assert growing.low < 12.0 < growing.high


def test_few_minutes_are_not_enough_for_a_verdict():
    assert found(series(hours=0.4, lives=1)).verdict(6.0) == "not known yet"
    assert trend(series(hours=0.1, lives=1), warm_up_h=WARM_H, average_h=AVERAGE_H) is None


def test_values_that_follow_each_other_widen_the_interval():
    chance = random.Random(3)
    alone = [Point(n / 30, "", chance.gauss(0, 1)) for n in range(90)]
    walk = [
        Point(n / 30, "", sum(p.value for p in alone[max(0, n - 8) : n + 1])) for n in range(90)
    ]
    widths = [
        one.high - one.low
        for points in (alone, walk)
        if (one := trend(points, warm_up_h=0, average_h=0))
    ]
    assert widths[1] > 4 * widths[0]


def sample(**changes) -> Sample:
    kinds = {"str": "", "int": 0, "float": 0.0, "bool": False}
    return replace(
        Sample(**{field.name: kinds[str(field.type)] for field in fields(Sample)}), **changes
    )


def test_samples_are_read_as_they_were_written_and_a_torn_row_is_left_out(tmp_path):
    path = tmp_path / "samples.csv"
    rows = [sample(hours=0.1, server="7@9", server_mb=150.5), sample(hours=0.2, rest=True)]
    for row in rows:
        samples.append(path, row)
    with path.open("a") as file:
        file.write("0.3,7@9,15")
    assert samples.read(path) == rows


def test_disk_is_judged_at_rest_and_memory_by_the_life_of_its_process():
    rows = [
        sample(hours=p.hours, server=p.life, server_mb=p.value, home_mb=n * 5.0)
        for n, p in enumerate(series())
    ]
    rows += [sample(hours=n / 6, home_mb=300.0 + n % 2, rest=True) for n in range(18)]
    verdicts = {one.measure.title: one.verdict for one in report.judge(rows)}
    assert verdicts["memory of the server"] == verdicts["disk of the home"] == "flat"
    assert verdicts["memory of the bridge"] == "not known yet"
