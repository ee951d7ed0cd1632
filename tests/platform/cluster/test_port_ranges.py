"""Ranges of ports that Ray's fixed ones must avoid."""

from __future__ import annotations

import pytest

from lehr.cluster.port_ranges import clash, free_bases, given_by_kernel, text

GIVEN = [range(32_768, 61_000)]


@pytest.fixture
def kernel(tmp_path):
    """Settings of a kernel."""

    def write(ports, kept=""):
        (tmp_path / "ip_local_port_range").write_text(f"{ports}\n")
        (tmp_path / "ip_local_reserved_ports").write_text(f"{kept}\n")
        return tmp_path

    return write


def test_kernel_gives_its_range_without_what_it_keeps_back(kernel):
    assert given_by_kernel(kernel("32768\t60999")) == GIVEN
    found = given_by_kernel(kernel("100 200", "110,150-160,300"))
    assert found == [range(100, 110), range(111, 150), range(161, 201)]
    assert given_by_kernel(kernel("100 120", "100-120")) == []


def test_kernel_without_these_settings_gives_nothing(kernel, tmp_path):
    assert given_by_kernel(tmp_path / "nowhere") == []
    assert given_by_kernel(kernel("what")) == []


@pytest.mark.parametrize(
    ("base", "found"),
    [
        (6379, None),
        (19_879, None),
        (19_880, "20000 to 29999"),
        (29_999, "20000 to 29999"),
        (30_000, None),
        (32_647, None),
        (32_648, "32768 to 60999"),
        (40_000, "32768 to 60999"),
        (60_999, "32768 to 60999"),
        (61_000, None),
    ],
)
def test_overlap_is_named_from_its_first_port_to_its_last(base, found):
    said = clash(range(base, base + 121), GIVEN)
    assert said is None if found is None else said is not None and said.startswith(found)


def test_free_bases_are_all_that_overlap_nothing():
    assert [text(one) for one in free_bases(121, GIVEN)] == [
        *("1024 to 19879", "30000 to 32647", "61000 to 65000")
    ]
    for one in free_bases(121, GIVEN):
        for base in (one[0], one[-1]):
            assert clash(range(base, base + 121), GIVEN) is None
    assert free_bases(121, [range(1024, 65_536)]) == []
    assert text(range(7, 8)) == "7"
