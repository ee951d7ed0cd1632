"""The sweep page: the verdict, loss against learning rate, curves, trials."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from lehr.control.lifecycle import RunState
from lehr_testing import campaigns, seeding

from .conftest import RATES, Lehr, Visit, World

pytestmark = pytest.mark.browser


FIGURE = "#sweep-figure svg"


def test_loss_against_learning_rate_with_the_best_marked(look: Visit, world: World):
    page = look.open(f"/sweeps/{world.sweep.id}")
    expect(page.locator(f"{FIGURE} .points a")).to_have_count(len(RATES) - 1)
    expect(page.locator(f"{FIGURE} .label")).to_have_text("best 2.0e-3")
    diverged = page.locator(f"{FIGURE} .diverged a")
    expect(diverged).to_have_attribute("href", f"/runs/{world.runs['lr-grid-5'].id}")
    page.set_viewport_size({"width": 800, "height": 900})
    width = page.locator("#sweep-figure").bounding_box()["width"]
    expect(page.locator(FIGURE)).to_have_attribute("viewBox", re.compile(f"^0 0 {width:.0f} "))
    expect(page.locator("#verdict")).to_contain_text("Best lr 2.0e-3: val/loss 4.")
    trials = page.get_by_role("table", name="Trials").locator("tbody tr")
    expect(trials.first).to_contain_text("2.0e-3")
    expect(trials.first).to_contain_text("best")
    expect(trials.last).to_contain_text("loss became NaN")
    expect(trials.last.get_by_role("button", name="Run again")).to_be_visible()


def test_curves_are_coloured_by_parameter_and_hidden_by_a_click(look: Visit, world: World):
    page = look.open(f"/sweeps/{world.sweep.id}")
    page.locator(".charts").first.scroll_into_view_if_needed()
    count = """() => document.querySelector('[data-metric="train/loss"] .plot')?.figure?.traces
        ?.filter((t) => t.fill === undefined && t.marker?.symbol === undefined && t.line.width > 1).length"""
    page.wait_for_function(f"() => ({count})() === 5")
    colours = page.evaluate(
        """() => [...new Set(document.querySelector('[data-metric="train/loss"] .plot').figure.traces
            .filter((t) => t.line?.width > 1.5).map((t) => t.line.color))]"""
    )
    assert len(colours) == 5
    page.get_by_role("button", name="Hide the curves of lr-grid-1").click()
    page.wait_for_function(f"() => ({count})() === 4")
    expect(page).to_have_url(re.compile(f"hide={world.runs['lr-grid-1'].id}"))


def test_several_parameters_have_a_selector_and_parallel_coordinates(visit: Visit, lehr: Lehr):
    spec = seeding.lr_sweep("many", [3e-4, 1e-3], steps=100, **{"train.seed": {"values": [0, 1]}})
    sweep, runs = seeding.create_sweep(lehr.store, spec)
    for run in runs:
        attempt = seeding.start(lehr.store, run)
        attempt.train(range(1, 101))
        attempt.end(RunState.COMPLETED, 100)
    page = visit.open(f"/sweeps/{sweep.id}")
    expect(page.locator(".parallel path")).to_have_count(4)
    # One curve a point: the mean of its seeds, and a band of their noise.
    bands = """() => document.querySelector('[data-metric="train/loss"] .plot')?.figure?.traces
        ?.filter((t) => t.fill === "tonexty").length"""
    page.locator('[data-metric="train/loss"]').scroll_into_view_if_needed()
    page.wait_for_function(f"() => ({bands})() === 2")
    page.get_by_role("checkbox", name="one curve for all seeds").uncheck()
    page.wait_for_function(f"() => ({bands})() === 0")
    expect(page).to_have_url(re.compile("seeds=each"))
    page.get_by_role("button", name="seed", exact=True).click()
    expect(page.locator(f"{FIGURE} .name").last).to_have_text("train.seed")
    expect(page).to_have_url(re.compile("parameter=train.seed"))


def test_a_trial_is_marked_in_the_table_the_figure_and_the_curves(look: Visit, world: World):
    page = look.open(f"/sweeps/{world.sweep.id}")
    run = world.runs["lr-grid-2"].id
    row = page.locator(f'.trials tr[data-run="{run}"]')
    dot = page.locator(f'{FIGURE} .points a[href$="{run}"]')
    figure, table = (page.locator(place).bounding_box() for place in (FIGURE, ".trials"))
    assert figure["x"] + figure["width"] < table["x"]
    row.hover()
    expect(dot).to_have_class("lit")
    expect(page.locator(f"{FIGURE} a:not([tabindex='-1'])")).to_have_count(0)
    dot.focus()
    expect(page.locator(".trials tr.lit")).to_have_attribute("data-run", run)
    expect(row.locator("svg").first).to_have_attribute(
        "color", dot.evaluate("(link) => link.style.color")
    )


def test_the_proposal_is_in_the_form_and_before_the_end_it_is_too_early(visit: Visit, lehr: Lehr):
    spec = seeding.lr_sweep("edge", [5e-5, 1e-4, 2e-4, 4e-4], steps=100)
    sweep, runs = seeding.create_sweep(lehr.store, spec)
    attempts = [seeding.start(lehr.store, run) for run in runs]
    for attempt in attempts:
        attempt.train(range(1, 101))
        if attempt is not attempts[-1]:
            attempt.end(RunState.COMPLETED, 100)
    page = visit.open(f"/sweeps/{sweep.id}")
    expect(page.get_by_text("too early: 4 of 4 trials at step 100 or above")).to_be_visible()
    attempts[-1].end(RunState.COMPLETED, 100)
    page.get_by_role("button", name="Add 1 proposed trial").click()
    expect(page.get_by_role("textbox", name="values")).to_have_value("0.0008")
    expect(page.get_by_role("dialog")).to_contain_text("GPU-hours, as the completed ones took")
    page.get_by_role("dialog").get_by_role("button", name="Add").click()
    expect(page.locator(".trials tbody tr")).to_have_count(5)
    expect(page.locator("#sweep-head code")).to_have_count(0)


def test_values_are_added_and_failed_trials_retried_together(visit: Visit, lehr: Lehr):
    sweep, runs = seeding.create_sweep(lehr.store, seeding.lr_sweep("grid", [1e-4, 1e-3], steps=50))
    for run in runs:
        attempt = seeding.start(lehr.store, run)
        attempt.end(RunState.FAILED, 0, cause="node_lost", message="the node was lost")
    page = visit.open(f"/sweeps/{sweep.id}")
    page.get_by_role("button", name="Run failed again").click()
    expect(page.locator(".status-line").first).to_contain_text("2 wait")

    page.get_by_role("button", name="Add values").click()
    expect(page.get_by_role("dialog")).to_contain_text("its GPU-hours are not known")
    page.get_by_role("textbox", name="values").fill("fast")
    page.get_by_role("dialog").get_by_role("button", name="Add").click()
    expect(page.get_by_role("alert")).to_contain_text("train.optimizer.lr")
    page.get_by_role("textbox", name="values").fill("1e-2, 3e-2")
    page.get_by_role("dialog").get_by_role("button", name="Add").click()
    expect(page.get_by_role("table", name="Trials").locator("tbody tr")).to_have_count(4)
    expect(page.get_by_role("dialog")).to_have_count(0)
    # The refusal is what the test is about; browsers log it.
    visit.watch.console = [line for line in visit.watch.console if "422" not in line]


def test_a_campaign_says_what_it_answers_and_launches_its_rollout(visit: Visit, lehr: Lehr):
    sweep = campaigns.recorded(lehr.store)
    page = visit.open(f"/sweeps/{sweep.id}")
    section = page.locator("#campaign")
    expect(section.locator("svg.figure")).to_have_count(4)
    narrows = section.locator("svg", has_text=re.compile("as it narrows")).first
    expect(narrows.locator(".points a")).to_have_count(7)
    expect(narrows.locator(".points a").first).to_have_attribute("href", re.compile("^/runs/"))
    expect(section.get_by_role("img", name="of the budget is spent")).to_be_visible()
    expect(section.locator("dl").first).to_contain_text("estimated for the run itself")
    section.get_by_text("Recommended rollout").click()
    expect(section.locator("pre")).to_contain_text("kind: rollout")
    expect(page.get_by_role("button", name="Add GPU-hours")).to_be_visible()
    # Its trials differ in size: by rung, and no chart that mixes them.
    expect(page.locator("#sweep-figure")).to_be_hidden()
    rungs = page.get_by_role("table", name="Trials").locator("tbody tr")
    expect(rungs).to_have_count(6)
    rungs.first.locator("summary").click()
    expect(rungs.first.locator("li a")).to_have_count(3)
    section.get_by_role("button", name="Launch this rollout").click()
    expect(page.get_by_role("dialog")).to_contain_text("GPU-hours")
    page.get_by_role("button", name="Launch the rollout").click()
    page.wait_for_url("**/rollouts/*")
    [rollout] = lehr.store.rollouts.page(limit=5, archived=None).items
    assert rollout.name == "c-target"
