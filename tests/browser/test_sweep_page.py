"""The sweep page: the verdict, loss against learning rate, curves, trials."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from lehr.control.lifecycle import RunState
from lehr_testing import campaigns, seeding

from .conftest import RATES, Lehr, Visit, World
from .test_screens import SMALL

pytestmark = pytest.mark.browser


FIGURE = "#sweep-figure svg"


def test_loss_against_learning_rate_with_the_best_marked(look: Visit, world: World):
    page = look.open(f"/sweeps/{world.sweep.id}")
    expect(page.locator(f"{FIGURE} .points [data-run]")).to_have_count(len(RATES) - 1)
    expect(page.locator(f"{FIGURE} .label")).to_have_text("best 2.0e-3")
    diverged = page.locator(f"{FIGURE} .diverged [data-run]")
    expect(diverged).to_have_attribute("data-run", world.runs["lr-grid-5"].id)
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
        ?.filter((t) => t.kind === "line").length"""
    page.wait_for_function(f"() => ({count})() === 5")
    colours = page.evaluate(
        """() => [...new Set(document.querySelector('[data-metric="train/loss"] .plot').figure.traces
            .filter((t) => t.kind === "line").map((t) => t.colour))]"""
    )
    assert len(colours) == 5
    page.get_by_role("button", name="Hide the curves of lr-grid-1").click()
    page.wait_for_function(f"() => ({count})() === 4")
    expect(page).to_have_url(re.compile(f"hide={world.runs['lr-grid-1'].id}"))


def test_several_parameters_have_a_selector_and_parallel_coordinates(visit: Visit, lehr: Lehr):
    decays, seeds = {"values": [0.1, 0.2]}, {"values": [0, 1]}
    more = {"train.optimizer.weight_decay": decays, "train.seed": seeds}
    spec = seeding.lr_sweep("many", [3e-4, 1e-3], steps=100, **more)
    sweep, runs = seeding.create_sweep(lehr.store, spec)
    for run in runs:
        attempt = seeding.start(lehr.store, run)
        attempt.train(range(1, 101))
        attempt.end(RunState.COMPLETED, 100)
    page = visit.open(f"/sweeps/{sweep.id}")
    expect(page.locator(".parallel path")).to_have_count(8)
    # One curve a point: the mean of its seeds, and a band of their noise.
    bands = """() => document.querySelector('[data-metric="train/loss"] .plot')?.figure?.traces
        ?.filter((t) => t.kind === "band").length"""
    page.locator('[data-metric="train/loss"]').scroll_into_view_if_needed()
    page.wait_for_function(f"() => ({bands})() === 4")
    page.get_by_role("checkbox", name="one curve for all seeds").uncheck()
    page.wait_for_function(f"() => ({bands})() === 0")
    expect(page).to_have_url(re.compile("seeds=each"))
    page.get_by_role("button", name="seed", exact=True).click()
    expect(page.locator(f"{FIGURE} .name").last).to_have_text("train.seed")
    expect(page).to_have_url(re.compile("parameter=train.seed"))


def test_a_trial_is_marked_in_the_table_the_figure_and_the_curves(look: Visit, world: World):
    page = look.open(f"/sweeps/{world.sweep.id}")
    runs = [world.runs[f"lr-grid-{n}"].id for n in (2, 3)]
    row = page.locator(f'.trials tr[data-run="{runs[0]}"]')
    dot = page.locator(f'{FIGURE} .points [data-run="{runs[0]}"]')
    lit = page.locator(".trials tr.lit")
    row.hover()
    expect(dot).to_have_class("lit")
    expect(row.locator("svg").first).to_have_attribute(
        "color", dot.evaluate("(point) => point.style.color")
    )
    # The figure is one link, to the point nearest to the pointer: points need no room of their own.
    link = page.locator(f"{FIGURE} a")
    box = dot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 25, box["y"] + 15)
    expect(lit).to_have_attribute("data-run", runs[0])
    expect(link).to_have_attribute("href", f"/runs/{runs[0]}")
    page.mouse.move(box["x"] + 5, box["y"] + 130)
    expect(lit).to_have_count(0)
    assert link.get_attribute("href") is None
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    link.focus()
    page.keyboard.press("ArrowRight")
    expect(lit).to_have_attribute("data-run", runs[1])
    assert page.evaluate(SMALL) == []
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(f"/runs/{runs[1]}"))


COVERED = """(what) => {
    const box = (one) => [one.textContent || one.dataset.run, one.getBoundingClientRect()];
    const texts = [...document.querySelectorAll("#sweep-figure text")].map(box);
    const all = [...texts, ...[...document.querySelectorAll(what)].map(box)];
    return texts.flatMap(([a, one], i) => all.slice(i + 1)
        .filter(([, other]) => one.left < other.right && other.left < one.right
            && one.top < other.bottom && other.top < one.bottom)
        .map(([b]) => `${a} on ${b}`));
}"""


def test_figure_and_trials_are_first_and_no_label_covers_another(visit: Visit, lehr: Lehr):
    rates = [1e-4 * 1.12**i for i in range(40)]
    sweep, runs = seeding.create_sweep(lehr.store, seeding.lr_sweep("wide", rates, steps=200))
    for i, run in enumerate(runs):
        attempt = seeding.start(lehr.store, run)
        attempt.train(range(1, 41 if i >= 30 else 201), logs=False)
        if i >= 30:
            attempt.end(RunState.FAILED, 40, cause="nan_loss", message="loss became NaN")
        else:
            attempt.end(RunState.COMPLETED, 200)
    page = visit.open(f"/sweeps/{sweep.id}")
    expect(page.locator("#findings .finding").first).to_be_visible()
    for place in ("#sweep-figure", ".trials"):
        box = page.locator(place).bounding_box()
        assert box is not None
        assert box["y"] <= 230
    head = page.locator("#sweep-head").bounding_box()
    assert head is not None
    assert head["height"] <= 120
    assert page.evaluate(COVERED, "#sweep-figure [data-run]") == []
    assert page.evaluate(SMALL) == []
    points = page.locator(f"{FIGURE} .points [data-run]")
    page.get_by_role("combobox", name="colour").fill("tokens_per_s")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("colour=tokens_per_s"))
    expect(page.locator(".colours .scale")).to_contain_text("tok/s")
    page.reload()
    expect(page.locator(".trials .eye")).to_have_count(len(rates))
    expect(points.first).to_have_attribute("style", re.compile("color"))
    colours = page.locator(".trials .eye svg").evaluate_all(
        "(all) => all.map((one) => one.getAttribute('color'))"
    )
    drawn = points.evaluate_all("(all) => all.map((one) => one.style.color)")
    assert set(drawn) <= set(colours)
    assert len(set(drawn)) > 20
    page.set_viewport_size({"width": 390, "height": 844})
    tops = {
        place: (page.locator(place).bounding_box() or {"y": 0})["y"]
        for place in ("#sweep-head .counts", "#sweep-figure", "#verdict", ".trials")
    }
    assert sorted(tops, key=tops.__getitem__) == list(tops)
    expect(page.locator(FIGURE)).to_have_attribute("viewBox", re.compile("^0 0 3"))
    expect(page.locator(FIGURE)).to_contain_text("probably")
    assert page.evaluate(COVERED, "#none") == []


def test_trials_that_wait_are_on_the_axis(visit: Visit, lehr: Lehr):
    sweep, _ = seeding.create_sweep(lehr.store, seeding.lr_sweep("waits", RATES, steps=100))
    page = visit.open(f"/sweeps/{sweep.id}")
    expect(page.locator(f"{FIGURE} .pending [data-run]")).to_have_count(len(RATES))
    expect(page.locator(FIGURE)).to_contain_text("0.01")


def test_the_proposal_is_in_the_form_and_before_the_end_it_is_too_early(visit: Visit, lehr: Lehr):
    spec = seeding.lr_sweep("edge", [5e-5, 1e-4, 2e-4, 4e-4], steps=100)
    sweep, runs = seeding.create_sweep(lehr.store, spec)
    attempts = [seeding.start(lehr.store, run) for run in runs]
    for attempt in attempts:
        attempt.train(range(1, 101))
        if attempt is not attempts[-1]:
            attempt.end(RunState.COMPLETED, 100)
    page = visit.open(f"/sweeps/{sweep.id}")
    expect(
        page.get_by_text("too early for proposals: 1 of 4 trials have not ended")
    ).to_be_visible()
    attempts[-1].end(RunState.COMPLETED, 100)
    page.get_by_role("button", name="Add 1 proposed trial").click()
    expect(page.get_by_role("textbox", name="values")).to_have_value("0.0008")
    expect(page.get_by_role("dialog")).to_contain_text("GPU-hours, as the completed ones took")
    expect(page.get_by_role("combobox", name="parameter")).to_have_count(0)
    page.keyboard.press("Enter")
    expect(page.locator(".trials tbody tr")).to_have_count(5)
    expect(page.locator("#sweep-head code")).to_have_count(0)


def test_seeds_that_are_proposed_are_queued_at_once(visit: Visit, lehr: Lehr):
    rates = [1e-3 * 1.2**i for i in range(5)]
    sweep, runs = seeding.create_sweep(lehr.store, seeding.lr_sweep("near", rates, steps=100))
    for run in runs:
        attempt = seeding.start(lehr.store, run)
        attempt.train(range(1, 101), lr=0.01 if run is runs[-1] else None)
        attempt.end(RunState.COMPLETED, 100)
    page = visit.open(f"/sweeps/{sweep.id}")
    page.get_by_role("button", name=re.compile("Add [0-9]+ proposed trials")).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("GPU-hours, as the completed ones took")
    dialog.get_by_role("button", name="Add").click()
    expect(page.get_by_role("button", name="Add values")).to_be_visible()
    added = lehr.store.sweeps.repetitions(lehr.store.sweeps.outlines(sweep.id))
    assert {one.state for one in added} == {"queued"}


def test_values_are_added_and_failed_trials_retried_together(visit: Visit, lehr: Lehr):
    sweep, runs = seeding.create_sweep(lehr.store, seeding.lr_sweep("grid", [1e-4, 1e-3], steps=50))
    for run in runs:
        attempt = seeding.start(lehr.store, run)
        attempt.end(RunState.FAILED, 0, cause="node_lost", message="the node was lost")
    page = visit.open(f"/sweeps/{sweep.id}")
    page.get_by_label("More actions").click()
    page.get_by_role("button", name="Run failed again").click()
    expect(page.locator("#sweep-head .counts")).to_contain_text("2 wait")

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
    expect(narrows.locator(".points [data-run]")).to_have_count(7)
    narrows.locator("a").focus()
    expect(narrows.locator("a")).to_have_attribute("href", re.compile("^/runs/"))
    expect(section.get_by_role("img", name="of the budget is spent")).to_be_visible()
    expect(section.locator(".verdict")).to_contain_text("estimated for the run itself")
    expect(section.locator(".hint").first).to_contain_text(
        re.compile("next .*GPU-hour.* spent .* of 1.00")
    )
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
