"""The sweep page: the verdict, loss against learning rate, curves, trials."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from lehr.control.lifecycle import RunState
from lehr_testing import seeding

from .conftest import RATES, Lehr, Visit, World

pytestmark = pytest.mark.browser


def figure(page: Page) -> dict:
    page.wait_for_function("() => document.getElementById('sweep-figure')?.data?.length > 0")
    return page.evaluate(
        """() => {
          const plot = document.getElementById("sweep-figure");
          return {x: plot.layout.xaxis.type, y: plot.layout.yaxis.type,
            traces: Object.fromEntries(plot.data.map((t) => [t.meta.role, {x: [...t.x], y: [...t.y], text: t.text}]))};
        }"""
    )


def test_loss_against_learning_rate_with_the_best_marked(look: Visit, world: World):
    page = look.open(f"/sweeps/{world.sweep.id}")
    drawn = figure(page)
    assert (drawn["x"], drawn["y"]) == ("log", "log")
    assert drawn["traces"]["points"]["x"] == RATES[:-1]
    assert drawn["traces"]["best"]["x"] == [2e-3]
    assert drawn["traces"]["diverged"]["x"] == [1e-2]
    expect(page.locator("#verdict")).to_contain_text("Best lr 2.0e-3: val/loss 4.")
    trials = page.get_by_role("table", name="Trials").locator("tbody tr")
    expect(trials.first).to_contain_text("2.0e-3")
    expect(trials.first).to_contain_text("best")
    expect(trials.last).to_contain_text("loss became NaN")
    expect(trials.last.get_by_role("button", name="Run again")).to_be_visible()


def test_the_verdict_repeats_no_note_of_the_fit(visit: Visit, lehr: Lehr):
    rates = [1e-3, 2e-3, 4e-3, 7e-3]
    sweep, runs = seeding.create_sweep(lehr.store, seeding.lr_sweep("fitted", rates, steps=400))
    for run in runs:
        attempt = seeding.start(lehr.store, run)
        attempt.train(range(1, 401), logs=False)
        attempt.end(RunState.COMPLETED, 400)
    page = visit.open(f"/sweeps/{sweep.id}")
    expect(page.locator("#verdict")).to_contain_text("the best rate is between")
    head_text = page.locator("#sweep-head").inner_text()
    assert "is probably near" not in head_text
    # Without a verdict beside them, the notes have it.
    api_notes = page.request.get(f"{visit.url}/api/v1/sweeps/{sweep.id}").json()["notes"]
    assert any("is probably near" in note for note in api_notes)


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
    page.get_by_role("button", name="lr 1.0e-4").click()
    page.wait_for_function(f"() => ({count})() === 4")
    expect(page).to_have_url(re.compile(f"hide={world.runs['lr-grid-1'].id}"))


def test_running_sweep_is_compared_at_equal_steps(visit: Visit, lehr: Lehr):
    sweep, runs = seeding.create_sweep(
        lehr.store, seeding.lr_sweep("live-grid", [1e-4, 1e-3], steps=400)
    )
    page = visit.open(f"/sweeps/{sweep.id}")
    expect(page.locator("#verdict")).to_contain_text("No trial has a val/loss to compare yet")
    attempts = [seeding.start(lehr.store, run, gpus=[i]) for i, run in enumerate(runs)]
    attempts[0].train(range(1, 201))
    attempts[1].train(range(1, 101))
    expect(page.locator("#verdict")).to_contain_text("still running")
    attempts[1].train(range(101, 401))
    attempts[0].train(range(201, 401))
    for attempt in attempts:
        attempt.end(RunState.COMPLETED, 400)
    expect(page.locator("#verdict")).to_have_text(
        re.compile(r"^Best lr 1.0e-3: val/loss \d.\d+\.$")
    )
    expect(page.locator("td b", has_text=re.compile(r"^\d\.\d+$"))).to_have_count(2)


def test_failed_trials_can_be_retried(visit: Visit, lehr: Lehr):
    sweep, runs = seeding.create_sweep(lehr.store, seeding.lr_sweep("grid", [1e-4, 1e-3], steps=50))
    for run in runs:
        attempt = seeding.start(lehr.store, run)
        attempt.end(RunState.FAILED, 0, cause="node_lost", message="the node was lost")
    page = visit.open(f"/sweeps/{sweep.id}")
    page.get_by_role("button", name="Run again").first.click()
    expect(page.locator(".status-line").first).to_contain_text("1 wait")
    assert lehr.store.runs.get(runs[0].id).state == RunState.QUEUED


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
    figure(page)
    page.get_by_role("combobox", name="Parameter on the x axis").select_option("train.seed")
    page.wait_for_function(
        "() => document.getElementById('sweep-figure').layout.xaxis.title.text === 'train.seed'"
    )
    expect(page).to_have_url(re.compile("parameter=train.seed"))


def test_late_response_does_not_undo_the_selected_parameter(visit: Visit, lehr: Lehr):
    spec = seeding.lr_sweep("many", [3e-4, 1e-3], steps=100, **{"train.seed": {"values": [0, 1]}})
    sweep, runs = seeding.create_sweep(lehr.store, spec)
    for run in runs:
        attempt = seeding.start(lehr.store, run)
        attempt.train(range(1, 101), logs=False)
        attempt.end(RunState.COMPLETED, 100)
    page = visit.open(f"/sweeps/{sweep.id}")
    figure(page)
    held: list[Route] = []

    def hold(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    choice = page.get_by_role("combobox", name="Parameter on the x axis")
    page.route("**/figure?parameter=train.seed", hold)
    choice.select_option("train.seed")
    while not held:
        page.wait_for_timeout(50)
    choice.select_option("train.optimizer.lr")
    expect(page).to_have_url(re.compile("parameter=train.optimizer.lr"))
    with page.expect_response(lambda answer: f"/sweeps/{sweep.id}?limit=" in answer.url):
        # The selection has changed meanwhile, so the sweep is read again for the selected one.
        held[0].continue_()
    expect(choice).to_have_value("train.optimizer.lr")
    title = "document.getElementById('sweep-figure').layout.xaxis.title.text"
    assert page.evaluate(title) == "train.optimizer.lr"


def test_older_sweeps_are_listed_once_if_requested_twice(visit: Visit, lehr: Lehr):
    with lehr.store.transaction():
        for n in range(101):
            seeding.create_sweep(lehr.store, seeding.lr_sweep(f"sweep-{n:03d}", [1e-3]))
    page = visit.open("/sweeps")
    rows = page.get_by_role("table", name="Sweeps").locator("tbody tr")
    expect(rows).to_have_count(100)
    held: list[Route] = []
    page.route("**/sweeps?*cursor=*", lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks it
    page.get_by_role("button", name="Older sweeps").dblclick()
    while len(held) < 2:
        page.wait_for_timeout(50)
    for route in held:
        with page.expect_response(route.request.url):
            route.continue_()
    expect(rows).to_have_count(101)
    expect(page.get_by_role("link", name="sweep-000", exact=True)).to_have_count(1)


def test_all_sweeps_are_listed_with_their_best(look: Visit):
    page = look.open("/sweeps")
    listed = page.get_by_role("table", name="Sweeps").locator("tbody tr")
    expect(listed).to_contain_text("4 completed")
    expect(listed).to_contain_text("at lr 2.0e-3")


def test_values_are_added_and_failed_trials_retried_together(visit: Visit, lehr: Lehr):
    sweep, runs = seeding.create_sweep(lehr.store, seeding.lr_sweep("grid", [1e-4, 1e-3], steps=50))
    for run in runs:
        attempt = seeding.start(lehr.store, run)
        attempt.end(RunState.FAILED, 0, cause="node_lost", message="the node was lost")
    page = visit.open(f"/sweeps/{sweep.id}")
    page.get_by_role("button", name="Run failed again").click()
    expect(page.locator(".status-line").first).to_contain_text("2 wait")

    page.get_by_role("button", name="Add values").click()
    page.get_by_role("textbox", name="values").fill("fast")
    page.get_by_role("dialog").get_by_role("button", name="Add").click()
    expect(page.get_by_role("alert")).to_contain_text("train.optimizer.lr")
    page.get_by_role("textbox", name="values").fill("1e-2, 3e-2")
    page.get_by_role("dialog").get_by_role("button", name="Add").click()
    expect(page.get_by_role("table", name="Trials").locator("tbody tr")).to_have_count(4)
    expect(page.get_by_role("dialog")).to_have_count(0)
    # The refusal is what the test is about; browsers log it.
    visit.watch.console = [line for line in visit.watch.console if "422" not in line]


def test_pruned_trial_shows_the_step_where_it_ended(visit: Visit, lehr: Lehr):
    sweep, runs = seeding.create_sweep(lehr.store, seeding.lr_sweep("asha", [1e-4, 1e-3], steps=50))
    for run, last in zip(runs, (10, 50), strict=True):
        attempt = seeding.start(lehr.store, run)
        attempt.train(range(1, last + 1))
        attempt.end(RunState.PRUNED if last == 10 else RunState.COMPLETED, last)
    page = visit.open(f"/sweeps/{sweep.id}")
    expect(page.locator(".legend")).to_contain_text("lr 1.0e-4 pruned")
    page.wait_for_function(
        """() => document.querySelector('[data-metric="train/loss"] .plot')?.figure?.traces
            ?.some((t) => t.marker?.symbol === "line-ns-open" && t.x[0] === 10)"""
    )
    trials = page.get_by_role("table", name="Trials").locator("tbody tr")
    expect(trials.last).to_contain_text("pruned")


def test_the_button_adds_the_trials_that_would_tell_more(visit: Visit, lehr: Lehr):
    rates = [1e-4, 1e-3, 1e-2]
    sweep, runs = seeding.create_sweep(lehr.store, seeding.lr_sweep("edge", rates, steps=40))
    for run, loss in zip(runs, (4.0, 3.0, 2.0), strict=True):
        attempt = seeding.start(lehr.store, run)
        attempt.started()
        attempt.evaluate(40, loss)
        attempt.end(RunState.COMPLETED, 40)
    page = visit.open(f"/sweeps/{sweep.id}")
    expect(page.locator("#sweep-head")).to_contain_text(f"lehr extend {sweep.id}")
    page.get_by_role("button", name="Add 1 proposed trial").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Learning rates 1.0e-1")
    expect(dialog).to_contain_text("GPU-hours")
    dialog.get_by_role("button", name="Back").click()
    assert lehr.store.sweeps.trial_count(sweep.id) == 3
    page.get_by_role("button", name="Add 1 proposed trial").click()
    page.get_by_role("dialog").get_by_role("button", name="Add the trials").click()
    expect(page.get_by_text("The trials are queued.")).to_be_visible()
    trials = lehr.store.sweeps.trials(sweep.id)
    assert [trial.parameters["train.optimizer.lr"] for trial in trials[3:]] == [0.1]


def test_the_seeds_button_of_a_run_queues_repetitions(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("base"))
    page = visit.open(f"/runs/{run.id}")
    page.get_by_role("button", name="Seeds").click()
    page.get_by_role("dialog").get_by_label("runs").fill("2")
    page.get_by_role("dialog").get_by_role("button", name="Queue them").click()
    expect(page.get_by_role("heading", name="base-seeds")).to_be_visible()
    [sweep] = lehr.store.sweeps.page().items
    assert lehr.store.sweeps.trial_count(sweep.id) == 2
