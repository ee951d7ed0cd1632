"""What only a drawn page shows: sizes, places, shifts, paper."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from lehr_testing import campaigns, seeding

from .conftest import Lehr, Visit, World, visiting
from .curves import wait_for_step
from .test_policy import settle

pytestmark = pytest.mark.browser

SHIFTS = """() => {
  globalThis.shifted = 0;
  new PerformanceObserver((list) => {
    for (const one of list.getEntries()) if (!one.hadRecentInput) shifted += one.value;
  }).observe({type: "layout-shift", buffered: true});
}"""


def plots(page: Page) -> list[int]:
    """The heights of all drawn charts, in pixels."""
    return page.locator(".chart-svg").evaluate_all(
        "(all) => all.map((one) => Number(one.getAttribute('height')))"
    )


def test_what_comes_late_does_not_push_the_page_away(look: Visit, world: World):
    look.tab.add_init_script(f"({SHIFTS})()")
    trials = ",".join(world.runs[f"lr-grid-{i}"].id for i in (1, 3, 5))
    shifts = {}
    for path in (
        "/",
        f"/runs/{world.runs['lr-grid-5'].id}",
        f"/sweeps/{world.sweep.id}",
        f"/compare?runs={trials}",
    ):
        settle(look.open(path))
        expect(look.tab.locator("table, pre.log").last).to_be_visible()
        shifts[path] = look.tab.evaluate("shifted")
    assert max(shifts.values()) < 0.1, shifts


def test_law_of_a_campaign_does_not_push_what_is_below_it(visit: Visit, lehr: Lehr):
    sweep = campaigns.recorded(lehr.store)
    visit.tab.add_init_script(f"({SHIFTS})()")
    page = visit.open(f"/sweeps/{sweep.id}")
    expect(page.locator("#campaign svg.figure")).to_have_count(4)
    assert page.evaluate("shifted") < 0.1


def test_charts_that_a_printer_draws_have_their_height(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['big-run'].id}")
    wait_for_step(page, "train/loss", 400)
    before = len(plots(page))
    page.emulate_media(media="print")
    page.wait_for_function(f"() => document.querySelectorAll('.chart-svg').length > {before}")
    assert set(plots(page)) == {220}


def test_rows_are_selected_all_at_once_or_from_one_to_another(look: Visit):
    page = look.open("/?flat=1&filter=lr-grid")
    rows = page.locator("tbody tr[data-run]")
    expect(rows).to_have_count(5)
    selected = page.locator("tr[aria-selected=true]")
    rows.nth(1).get_by_role("checkbox").click()
    rows.nth(3).get_by_role("checkbox").click(modifiers=["Shift"])
    expect(selected).to_have_count(3)
    everything = page.get_by_role("checkbox", name="Select all runs")
    everything.click()
    expect(selected).to_have_count(5)
    page.locator("h1, body").first.press("a")
    expect(selected).to_have_count(0)
    expect(everything).not_to_be_checked()
    box = page.locator("th.col-val").bounding_box()
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 4)
    expect(page.locator("th.col-val")).to_have_attribute("aria-sort", "ascending")


def test_phone_opens_a_row_by_a_tap_and_stacks_facts(world: World, browser):
    with visiting(browser, world.lehr.url, width=375) as visit:
        page = visit.open(f"/runs/{world.runs['big-run'].id}?tab=system")
        facts = page.locator("#run-body dl.facts dt").first
        expect(facts).to_be_visible()
        assert facts.evaluate("(dt) => dt.nextElementSibling.offsetLeft === dt.offsetLeft")
        page = visit.open("/cluster")
        expect(page.get_by_role("table", name="Queue").get_by_text("in about")).to_be_in_viewport()
        page = visit.open("/?flat=1")
        row = page.locator(f'tr[data-run="{world.runs["big-run"].id}"]')
        row.locator(".col-step").click(force=True)
        expect(page).to_have_url(f"{visit.url}/runs/{world.runs['big-run'].id}")


def test_curve_of_a_run_is_in_sight_at_200_percent(world: World, browser):
    with visiting(browser, world.lehr.url, width=720, height=450) as visit:
        page = visit.open(f"/runs/{world.runs['big-run'].id}")
        expect(page.locator(".run-curves .plot").first).to_be_in_viewport(ratio=0.4)
        more = page.locator("#run-head details.menu > summary[aria-label]")
        more.click()
        expect(page.get_by_role("button", name="Pause")).to_be_visible()


def test_an_added_chart_appears_beside_a_search_with_the_key_of_its_metrics(
    look: Visit, world: World
):
    page = look.open(f"/runs/{world.runs['big-run'].id}?metrics=tok")
    wait_for_step(page, "tokens_per_s", 400)
    page.get_by_label("Find or add charts").fill("train/loss, val/loss")
    page.keyboard.press("Enter")
    chart = page.locator("figure.chart").filter(has_text="train/loss, val/loss")
    expect(chart.locator(".legend span")).to_have_text(["train/loss", "val/loss"])
    page.keyboard.press("Escape")
    page.locator("body").press("?")
    expect(page.get_by_role("dialog")).to_contain_text("on a chart: move its cursor")


def test_cursor_stays_below_the_pointer_while_points_come(visit: Visit, lehr: Lehr):
    attempt = seeding.start(lehr.store, lehr.store.runs.create(seeding.run_spec("live")))
    attempt.train(range(1, 101))
    page = visit.open(f"/runs/{attempt.run.id}")
    wait_for_step(page, "tokens_per_s", 100)
    chart = page.locator('[data-metric="tokens_per_s"]')
    box = chart.locator(".plot").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    expect(chart.locator(".read")).to_have_text(re.compile("step [45][0-9]$"))
    attempt.train(range(101, 201))
    wait_for_step(page, "tokens_per_s", 200)
    expect(chart.locator(".read")).to_have_text(re.compile("step (9|10)[0-9]$"))


def test_progress_is_seen_in_forced_colours(world: World, browser):
    with visiting(browser, world.lehr.url, forced_colors="active") as visit:
        bar = visit.open(f"/runs/{world.runs['big-run'].id}").locator(".progress > i")
        expect(bar).to_be_visible()
        assert bar.evaluate(
            "(bar) => getComputedStyle(bar).backgroundColor"
            " !== getComputedStyle(bar.parentElement).backgroundColor"
        )
