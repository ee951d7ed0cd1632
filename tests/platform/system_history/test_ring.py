"""A node's ring file: falling resolution, a fixed size, means, gaps, restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from lehr.system_history.ring import LEVELS, Ring

NOW = 1_800_000_000.0
DAY = 86_400.0


def filled(path: Path, seconds: float, step: float = 10.0) -> Ring:
    """A ring whose ``cpu`` is the hour that a figure was measured in, until NOW."""
    ring = Ring(path)
    at = NOW - seconds
    while at < NOW:
        ring.add(at, {"cpu": (NOW - at) // 3600, "ram_bytes": 64e9})
        at += step
    return ring


def test_each_span_has_the_finest_resolution_that_reaches_back(tmp_path: Path) -> None:
    ring = filled(tmp_path / "n1.ring", 3 * 3600)
    for back, step in ((3600, 10), (3 * 3600, 60), (2 * DAY, 900)):
        span = ring.read(NOW - back, NOW, now=NOW, points=10_000)
        assert span.step_s == step
        known = [value for value in span.columns["cpu"] if value is not None]
        assert {round(value) for value in known} <= {0, 1, 2, 3}
        assert span.columns["ram_bytes"].count(None) == span.columns["cpu"].count(None)
    hour = ring.read(NOW - 3600, NOW - 1, now=NOW, points=10_000)
    assert len(hour.times) == 360
    assert hour.columns["cpu"] == [0.0] * 360 or hour.columns["cpu"][1:] == [0.0] * 359


def test_file_never_grows_and_old_slots_are_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "n1.ring"
    ring = Ring(path)
    ring.add(NOW - 91 * DAY, {"cpu": 1.0})
    size = path.stat().st_size
    for hour in range(0, 91 * 24, 6):
        ring.add(NOW - 91 * DAY + hour * 3600, {"cpu": 0.25})
    assert path.stat().st_size == size < 500_000
    span = ring.read(0, NOW, now=NOW, points=100_000)
    assert NOW - span.times[0] <= LEVELS[-1].span_s + 900
    assert {value for value in span.columns["cpu"] if value is not None} == {0.25}


def test_values_of_a_slot_are_averaged_also_after_a_restart(tmp_path: Path) -> None:
    for value in (0.1, 0.2, 0.6):
        Ring(tmp_path / "n1.ring").add(NOW, {"cpu": value})
    span = Ring(tmp_path / "n1.ring").read(NOW, NOW, now=NOW, points=10)
    assert span.columns["cpu"] == [pytest.approx(0.3)]


def test_few_points_are_means_of_neighbours_and_gaps_stay(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "n1.ring")
    for second, value in ((0, 1.0), (10, 3.0), (40, 8.0), (50, 10.0)):
        ring.add(NOW + second, {"cpu": value})
    span = ring.read(NOW, NOW + 50, now=NOW + 50, points=3)
    assert (span.step_s, span.columns["cpu"]) == (20, [2.0, None, 9.0])


def test_new_figure_gets_a_column_and_the_others_stay(tmp_path: Path) -> None:
    ring = Ring(tmp_path / "n1.ring")
    ring.add(NOW, {"cpu": 0.5})
    ring.add(NOW + 10, {"cpu": 0.7, "gpu0.power_watts": 700.0})
    span = ring.read(NOW, NOW + 10, now=NOW + 10, points=10)
    assert span.columns["cpu"] == [0.5, pytest.approx(0.7)]
    assert span.columns["gpu0.power_watts"] == [None, 700.0]


@pytest.mark.parametrize("damage", [b"", b"{", b'{"columns": 5}', b"\xff" * 5000])
def test_damaged_file_is_begun_anew(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "n1.ring"
    path.write_bytes(damage)
    ring = Ring(path)
    assert ring.read(NOW - 60, NOW, now=NOW, points=10).columns == {}
    ring.add(NOW, {"cpu": 0.5})
    assert ring.read(NOW, NOW, now=NOW, points=10).columns == {"cpu": [0.5]}
