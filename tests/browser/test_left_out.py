"""What is left out is said, rows stand where they belong, and what is recommended can run."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from lehr.control.lifecycle import RunState
from lehr.specs import SweepSpec, load_spec
from lehr_testing import seeding
from lehr_testing.paths import ROOT

from .conftest import Lehr, Visit

# Faults that were found once, as in test_mended.py.
pytestmark = [pytest.mark.browser, pytest.mark.nightly]

# A strict policy refuses a style element, not a sheet that a script constructs.
LARGER_TEXT = """() => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync("td { height: 47px; }");
  document.adoptedStyleSheets = [sheet];
  dispatchEvent(new Event("resize"));
}"""


def test_comparison_names_the_runs_that_it_leaves_out(visit: Visit, lehr: Lehr):
    with lehr.store.transaction():
        runs = [lehr.store.runs.create(seeding.run_spec(f"run-{n:03d}")) for n in range(103)]
    page = visit.open(f"/compare?runs={','.join(run.id for run in runs)}")
    heading = "100 runs compared; 3 of 103 are left out: at most 100 at a time"
    expect(page.get_by_role("heading", name=heading)).to_be_visible()
    table = page.get_by_role("table", name="Results")
    expect(table.locator("tbody tr")).to_have_count(100)


def test_sweep_compares_its_best_trials_and_says_so(visit: Visit, lehr: Lehr):
    # Trials are numbered by rate; the best rates are the last ones.
    rates = [1e-7 * 1.2**n for n in range(24)]
    sweep, trials = seeding.create_sweep(lehr.store, seeding.lr_sweep("grid", rates, steps=100))
    for n, run in enumerate(trials):
        attempt = seeding.start(lehr.store, run)
        attempt.evaluate(100, 9.0 - 0.1 * n)
        attempt.end(RunState.COMPLETED, 100)
    page = visit.open(f"/sweeps/{sweep.id}")
    link = page.get_by_role("link", name="Compare the best 20")
    compared = (link.get_attribute("href") or "").partition("runs=")[2].split(",")
    assert compared == [run.id for run in reversed(trials)][:20]


def test_rows_stand_at_their_place_with_larger_text(visit: Visit, lehr: Lehr):
    with lehr.store.transaction():
        for n in range(150):
            lehr.store.runs.create(seeding.run_spec(f"bulk-{n:03d}"))
    page = visit.open("/")
    expect(page.get_by_text("bulk-149")).to_be_visible()
    page.evaluate(LARGER_TEXT)
    page.evaluate("scrollTo(0, 3000)")
    # The newest is first: a row's place follows from its name.
    page.wait_for_function(
        """() => {
          const body = document.querySelector("table.runs tbody");
          const row = body.querySelector("tr[data-run]");
          const index = 149 - Number(row.querySelector(".col-name").textContent.match(/bulk-(\\d+)/)[1]);
          const top = row.getBoundingClientRect().top - body.getBoundingClientRect().top;
          const height = row.getBoundingClientRect().height;
          return index > 20 && height > 45 && Math.abs(top - index * height) < height / 2;
        }""",
        timeout=10_000,
    )


def test_empty_pages_recommend_what_this_machine_can_run(visit: Visit):
    for address in ("/", "/sweeps"):
        page = visit.open(address)
        empty = page.locator(".empty pre").last
        named = re.findall(r"lehr sweep (\S+)", empty.inner_text())
        assert named, address
        for path in named:
            spec = load_spec(ROOT / path)
            assert isinstance(spec, SweepSpec)
            assert spec.run.resources.gpu_type is None
            assert spec.run.resources.gpus <= 1
    page = visit.open("/rollouts")
    path = re.search(r"lehr rollout (\S+)", page.locator(".empty pre").first.inner_text())[1]
    assert (ROOT / path).is_file()
