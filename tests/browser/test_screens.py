"""Screens of other kinds: fingers on a phone, large letters, forced colours, long tables."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from lehr_testing import seeding

from .conftest import Lehr, Visit, World, visiting
from .test_policy import pages, settle

pytestmark = pytest.mark.browser

SMALL = """() => [...document.querySelectorAll(
    'main :is(a, button, input, select, summary), header :is(a, button, input, select, summary)')]
    .filter((one) => one.checkVisibility({visibilityProperty: true, opacityProperty: false}))
    .map((one) => [one.closest('label') ?? one, one])
    .filter(([target]) => {
      const box = target.getBoundingClientRect();
      return box.width > 0 && (box.width < 24 || box.height < 24);
    })
    .map(([target, one]) => {
      const box = target.getBoundingClientRect();
      return `${one.outerHTML.slice(0, 110)}: ${Math.round(box.width)} x ${Math.round(box.height)}`;
    })"""


@pytest.mark.slow
@pytest.mark.nightly  # It opens every page once more; test_policy.py does so at every change.
@pytest.mark.parametrize("width", [375, 1440])
def test_targets_are_large_enough_for_a_finger(world: World, browser, width: int):
    small = {}
    with visiting(browser, world.lehr.url, width=width) as visit:
        for name, path in pages(world).items():
            page = visit.open(path)
            settle(page)
            small[name] = page.evaluate(SMALL)
    assert {name: targets for name, targets in small.items() if targets} == {}


OUT_OF_SIGHT = """(row) => [".col-state", ".col-step", ".main"].filter((part) => {
    const box = row.querySelector(part).getBoundingClientRect();
    const { left } = row.querySelector(".col-step").getBoundingClientRect();
    return !(box.width > 0 && box.left >= 0 && box.right <= (part === ".col-state" ? left : innerWidth));
  })"""


@pytest.mark.nightly
def test_phone_shows_state_step_and_what_is_sorted_of_each_run_and_tabs_apart(
    world: World, browser
):
    with visiting(browser, world.lehr.url, width=375) as visit:
        page = visit.open("/?flat=1")
        rows = page.locator("tbody tr[data-run]")
        expect(rows.first).to_be_visible()
        for name in ("big-run", "lr-grid-1", "lr-grid-5"):
            row = rows.and_(page.locator(f'[data-run="{world.runs[name].id}"]'))
            assert row.evaluate(OUT_OF_SIGHT) == [], name
        expect(rows.first.locator(".main")).to_have_attribute("data-label", "val")
        page = visit.open("/?sort=loss")
        expect(rows.first.locator(".main")).to_have_attribute("data-label", "loss")
        expect(rows.first.locator(".col-val")).to_be_hidden()
        page = visit.open(f"/runs/{world.runs['big-run'].id}?tab=events")
        chosen = page.get_by_role("tab", selected=True)
        expect(chosen).to_have_text("Events")
        expect(chosen).to_be_in_viewport(ratio=0.9)
        cut = page.get_by_role("tab").evaluate_all(
            "(tabs) => tabs.filter((tab) => tab.scrollWidth > tab.clientWidth).length"
        )
        assert cut == 0


def test_head_of_a_long_table_stays_in_sight(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("long", steps=1000))
    attempt = seeding.start(lehr.store, run)
    attempt.train(range(1, 3))
    for step in range(1, 121):
        attempt.checkpoint(step)
    page = visit.open(f"/runs/{run.id}?tab=checkpoints")
    table = page.get_by_role("table", name="Checkpoints")
    head = table.locator("thead")
    expect(head).to_be_visible()
    table.locator("tbody tr").last.scroll_into_view_if_needed()
    expect(table.locator("tbody tr").last).to_be_in_viewport()
    expect(head.locator("th").first).to_be_in_viewport()
    # At 200 % the list of runs has no room beside charts; it keeps its head, too.
    for number in range(30):
        lehr.store.runs.create(seeding.run_spec(f"short-{number}"))
    page.set_viewport_size({"width": 720, "height": 450})
    visit.open("/")
    rows = page.locator("tbody tr[data-run]")
    expect(rows.nth(12)).to_be_attached()
    rows.nth(12).scroll_into_view_if_needed()
    expect(page.get_by_role("columnheader", name="name", exact=True)).to_be_in_viewport()
