"""``lehr law`` against a real server without a cluster."""

from __future__ import annotations

import json
import re

from lehr_testing import campaigns, laws


def test_law_of_finished_sweeps_with_its_doubt(acting):
    for width in laws.WIDTHS:
        laws.swept(acting.api.store, width)
    shown = acting.lehr("law", "w64", "w128", "w256", "--parameters", "1e7", "--tokens", "1e6")
    assert shown.returncode == 0, shown.stderr
    assert re.search(
        r"val/loss at its end\n  1\.\d+ \(1\.\d+ to [12]\.\d+ with 68 %, 1\.\d+ to 2", shown.stdout
    )
    told = json.loads(acting.lehr("law", "w64", "w128", "--no-published", "--json").stdout)["law"]
    assert (told["published"], len(told["runs"])) == (False, 6)
    assert told["target"]["name"] == "the largest run"
    alike = json.loads(
        acting.lehr("law", "--filter", "w128-", "-p", "default", "w64", "--json").stdout
    )
    assert sorted(run["name"] for run in alike["law"]["runs"]) == sorted(
        f"w{width}-{number}" for width in (64, 128) for number in (1, 2, 3)
    )
    nothing = acting.lehr("law", "--project", "other")
    assert nothing.returncode != 0
    assert "no sweep or run is named, or none that has ended matches." in nothing.stderr
    refused = acting.lehr("law", "w64")
    assert refused.returncode != 0
    assert "there are 3 of 1 size." in refused.stderr


def test_show_of_a_campaign_says_what_it_answers(acting):
    campaigns.recorded(acting.api.store)
    shown = acting.lehr("show", "c")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"  answer: val/loss 2\.\d+ ± 0\.\d+, lr ", shown.stdout)
    assert "  spent: under 0.01 GPU-hours of 1.00 GPU-hours; 0.00 reserved" in shown.stdout
    assert re.search(r"width 32, 103.7 k tokens +3 +1.0e-3, 3.0e-3, 9.0e-3 +3.0e-3 ", shown.stdout)
    assert len(re.findall(r"  after \d trials, .* GPU-hours: val/loss ", shown.stdout)) == 7
    assert "best" not in shown.stdout.rpartition("rung ")[2].partition("\n")[2]
