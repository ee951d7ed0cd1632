"""What pages must not get wrong: figures without values, GPUs of dead nodes, runs left out, Back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from lehr.control.lifecycle import RunState
from lehr_testing import seeding
from lehr_trainer.contract import records

from .conftest import Lehr, Visit, World

if TYPE_CHECKING:
    from playwright.sync_api import Route

# Faults that were found once; the pages' own tests are next to them.
pytestmark = [pytest.mark.browser, pytest.mark.nightly]


def test_sweep_has_a_strip_for_stopped_trials_and_every_trials_metrics(visit: Visit, lehr: Lehr):
    spec = seeding.lr_sweep("grid", [1e-4, 1e-3], steps=200, **{"train.seed": {"values": [0, 1]}})
    sweep, runs = seeding.create_sweep(lehr.store, spec)
    for run in runs[:3]:
        attempt = seeding.start(lehr.store, run)
        attempt.train(range(1, 101))
        if run is runs[2]:
            values = {"train/only_here": 1.0}
            attempt.add_record(
                records.Metrics(time=attempt.at, step=101, tokens=101, values=values)
            )
            attempt.flush()
        attempt.end(RunState.COMPLETED, 100)
    seeding.start(lehr.store, runs[3]).end(RunState.CANCELLED, 0)
    page = visit.open(f"/sweeps/{sweep.id}")
    page.wait_for_function("() => document.getElementById('sweep-figure')?.data?.length > 0")
    strip = page.evaluate(
        """() => {
          const {data, layout} = document.getElementById("sweep-figure");
          const stopped = data.find((trace) => trace.meta.role === "gave_up");
          return {y: [...stopped.y], axis: stopped.yaxis, apart: layout.yaxis.domain[1] < layout.yaxis2.domain[0]};
        }"""
    )
    assert strip == {"y": ["stopped"], "axis": "y2", "apart": True}
    expect(page.locator('[data-metric="train/only_here"]')).to_have_count(1)

    # A drag along an axis chooses trials, and a press on a name moves its axis.
    bar = page.locator(".parallel-bar")
    expect(bar).to_contain_text("Drag along an axis, or use its arrow keys")
    titles = page.locator(".parallel text.title > title")
    assert titles.all_text_contents()[0] == "train.optimizer.lr"
    grip = page.locator(".parallel .grip").first
    grip.scroll_into_view_if_needed()
    box = grip.bounding_box()
    page.mouse.move(box["x"] + 10, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 10, box["y"] + box["height"] / 3)
    page.mouse.up()
    expect(bar).to_contain_text("2 of 4 trials chosen")
    expect(page.locator(".parallel path.off")).to_have_count(2)
    page.locator(".parallel text.title").nth(1).click()
    expect(titles.first).to_have_text("train.seed")

    # The same by keyboard.
    move = page.get_by_role("button", name="Move the axis of train.optimizer.lr")
    move.focus()
    page.keyboard.press("Enter")
    expect(titles.first).to_have_text("train.optimizer.lr")
    expect(move).to_be_focused()
    choose = page.get_by_role("button", name="Choose trials by train.optimizer.lr")
    choose.focus()
    page.keyboard.press("Escape")
    expect(page.locator(".parallel path.off")).to_have_count(0)
    page.keyboard.press("ArrowDown")
    expect(bar).to_contain_text("2 of 4 trials chosen")
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowUp")
    expect(choose).to_be_focused()
    expect(page.locator(".parallel path.off")).to_have_count(2)


def test_free_gpus_of_a_node_that_does_not_answer_are_not_free(look: Visit):
    def dead(route: Route) -> None:
        answer = route.fetch()
        cluster = answer.json()
        cluster["nodes"][0].update(alive=False)
        for gpu in cluster["nodes"][0]["gpus"][:2]:
            gpu.update(run_id=None, run_name=None)
        route.fulfill(response=answer, json=cluster)

    look.page.route("**/api/v1/cluster", dead)
    page = look.open("/cluster")
    expect(page.locator(".gpu.gone")).to_have_count(2)
    expect(page.locator(".gpu.gone").first).to_contain_text("no answer")
    expect(page.locator(".gpu.gone").first).not_to_contain_text("%")
    expect(page.locator(".gpu.free")).to_have_count(0)


def test_node_that_has_left_is_no_failure_and_cannot_be_readmitted(look: Visit):
    def left(route: Route) -> None:
        answer = route.fetch()
        cluster = answer.json()
        cluster["nodes"][0].update(alive=False, left=True, excluded="it has left: lehr node leave")
        for gpu in cluster["nodes"][0]["gpus"][:2]:
            gpu.update(run_id=None, run_name=None)
        route.fulfill(response=answer, json=cluster)

    look.page.route("**/api/v1/cluster", left)
    page = look.open("/cluster")
    expect(page.locator(".gpu.gone").first).to_contain_text("has left")
    expect(page.locator(".node-head").first).to_contain_text("has left the cluster")
    expect(page.locator(".node-head .bad")).to_have_count(0)
    expect(page.get_by_role("button", name="Readmit")).to_have_count(0)


def test_comparison_has_last_and_best_values_and_can_be_sorted(look: Visit, world: World):
    first, third, fourth = (world.runs[f"lr-grid-{n}"].id for n in (1, 3, 4))
    page = look.open(f"/compare?runs={third},{first},{fourth},{third}")
    expect(page.get_by_role("heading", name="3 runs compared")).to_be_visible()
    table = page.get_by_role("table", name="Results")
    rows = table.locator("tbody tr")
    expect(rows.first).to_contain_text("lr 1.0e-3")
    table.get_by_role("button", name="best", exact=True).click()
    expect(rows.first).to_contain_text("lr-grid-4")
    expect(rows.last).to_contain_text("lr-grid-1")
    expect(page).to_have_url(re.compile("order=best"))
    page = look.open(f"/compare?runs={first},{first}")
    expect(page.get_by_role("heading", name="Nothing to compare")).to_be_visible()


def test_back_returns_to_the_tab_and_the_range_before(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['big-run'].id}")
    expect(page.get_by_role("tab", name="Curves")).to_have_attribute("aria-selected", "true")
    page.get_by_role("tab", name="Events").click()
    expect(page.get_by_role("table", name="Events")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("tab", name="Curves")).to_have_attribute("aria-selected", "true")
    plot = page.locator('[data-metric="train/loss"] .plot')
    plot.locator(".chart-svg").first.wait_for()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 120, box["y"] + 80)
    page.mouse.down()
    page.mouse.move(box["x"] + 250, box["y"] + 80, steps=5)
    page.mouse.up()
    chip = page.get_by_role("button", name="Show all steps")
    expect(chip).to_be_visible()
    expect(page).to_have_url(re.compile(r"range=\d+-\d+"))
    page.go_back()
    expect(chip).to_be_hidden()
    # A range that ends before it begins is none.
    look.open(f"/runs/{world.runs['big-run'].id}?range=5-1")
    expect(page.get_by_role("toolbar", name="Charts")).to_be_visible()
    expect(chip).to_be_hidden()
    # What ended without a checkpoint cannot be forked.
    with page.expect_response("**/checkpoints"):
        look.open(f"/runs/{world.runs['lr-grid-5'].id}")
    expect(page.get_by_role("button", name="Retry")).to_be_visible()
    expect(page.get_by_role("button", name="Fork")).to_have_count(0)


def test_lists_of_sweeps_have_a_heading_and_a_filter(look: Visit):
    page = look.open("/sweeps")
    expect(page.get_by_role("heading", name="Sweeps")).to_be_visible()
    table = page.get_by_role("table", name="Sweeps")
    expect(table).to_contain_text("lr-grid")
    page.get_by_role("searchbox", name="Filter sweeps").fill("nosuch")
    expect(page.get_by_role("heading", name="No sweep matches this filter")).to_be_visible()
    page.get_by_role("searchbox", name="Filter sweeps").fill("lr-")
    expect(table).to_contain_text("lr-grid")
    expect(page).to_have_url(re.compile("filter=lr-"))
