"""The runs page as one live page: filter by any value, columns of what differs, curves beside the table."""

from __future__ import annotations

import re
import statistics

import pytest
from playwright.sync_api import Page, Route, expect

from lehr.control.lifecycle import RunState
from lehr_testing import seeding

from .conftest import Lehr, Visit, World

pytestmark = pytest.mark.browser


def expect_filtered(page: Page, text: str, names: list[str]) -> None:
    page.get_by_role("searchbox", name="Filter runs").fill(text)
    page.wait_for_function(
        """(wanted) => [...document.querySelectorAll("tbody tr[data-run] .col-name")]
            .map((cell) => cell.textContent).sort().join() === wanted""",
        arg=",".join(names),
    )


def test_filter_finds_runs_by_any_value_of_their_config(look: Visit, world: World):
    page = look.open("/?flat=1")
    expect_filtered(page, "lr=3e-4 state:completed,running", ["big-run", "lr-grid-2"])
    expect(page.locator("#runs-foot")).to_contain_text(re.compile(r"^2 of \d+ runs$"))
    expect_filtered(page, "train/loss < 5 -tag:omk", ["lr-grid-3", "lr-grid-4"])
    expect_filtered(page, "/grid-[12]/ -lr<2e-4", ["lr-grid-2"])
    expect_filtered(
        page, "optimizer.name=adamw name:lr-grid", [f"lr-grid-{n}" for n in range(1, 6)]
    )
    problem = page.get_by_role("alert")
    page.get_by_role("searchbox", name="Filter runs").fill("lrr<1")
    expect(problem).to_contain_text("lrr is no key of the filter")
    expect(problem).to_contain_text("Did you mean lr?")
    page.get_by_role("searchbox", name="Filter runs").fill("lr<fast")
    expect(problem).to_contain_text("fast is not a number")


def test_what_differs_has_a_column_and_any_path_or_metric_can_have_one(look: Visit):
    page = look.open("/?flat=1&filter=lr-grid")
    head = page.locator("th.col-train-optimizer-lr")
    expect(head).to_have_text("lr")
    page.get_by_role("button", name="lr", exact=True).click()
    page.get_by_role("button", name="lr ↑", exact=True).click()
    expect(page.locator("tbody tr[data-run] .col-name").first).to_have_text("lr-grid-5")
    expect(page).to_have_url(re.compile("sort=-train.optimizer.lr"))
    page.get_by_text("Columns", exact=True).click()
    page.get_by_role("textbox", name="Add a column").fill("train.steps")
    page.keyboard.press("Enter")
    expect(page.locator("td.col-train-steps").first).to_have_text("200")
    page.get_by_role("textbox", name="Add a column").fill("data/epoch")
    page.keyboard.press("Enter")
    expect(page.locator("td.col-data-epoch").last).not_to_have_text("—")
    # A click elsewhere closes the menu, and the address keeps what was chosen.
    page.locator("#runs-foot").click()
    expect(page.get_by_role("textbox", name="Add a column")).to_be_hidden()
    page.reload()
    expect(page.locator("td.col-train-steps").first).to_have_text("200")
    # No table is wider than the page, and the state keeps its words.
    box = page.locator("td.col-state").first.bounding_box()
    assert box["width"] >= 100


def test_curves_beside_the_table_are_tied_to_its_rows(look: Visit, world: World):
    page = look.open("/?flat=1&filter=lr-grid&curves=1")
    lines = """() => document.querySelectorAll('[data-metric="train/loss"] .trace.line').length"""
    page.wait_for_function(f"() => ({lines})() >= 5")
    row = page.locator(f'tr[data-run="{world.runs["lr-grid-3"].id}"]')
    row.hover()
    near = page.locator('[data-metric="train/loss"] .trace.near')
    expect(near).to_have_count(1)
    plot = page.locator('[data-metric="train/loss"] .plot').bounding_box()
    page.mouse.move(plot["x"] + plot["width"] / 2, plot["y"] + plot["height"] - 40)
    expect(page.locator("tr.lit")).to_have_count(1)
    expect(page.locator(".tip-row.near")).to_contain_text("lr 2.0e-3")
    expect(page.locator(".tip-step")).to_have_text(re.compile(r"^step \d+$"))
    page.get_by_role("button", name="Hide the curves of lr-grid-1").click()
    page.wait_for_function(f"() => ({lines})() === 4")
    expect(page).to_have_url(re.compile(f"hide={world.runs['lr-grid-1'].id}"))

    # Charts are found by a pattern, and computed from others.
    page.get_by_role("searchbox", name="Search charts").fill("^val/")
    expect(page.locator(".chart h3")).to_have_text(["val/loss", "val/bits_per_byte"])
    page.get_by_role("searchbox", name="Search charts").fill("")
    page.get_by_role("textbox", name="Add a chart of an expression").fill("train/loss - nothing +")
    page.keyboard.press("Enter")
    expect(page.locator(".chart-search .problem")).to_contain_text("ends too early")
    page.get_by_role("textbox", name="Add a chart of an expression").fill("val/loss - train/loss")
    page.keyboard.press("Enter")
    computed = page.locator('[data-metric="val/loss - train/loss"]')
    expect(computed.locator(".read")).to_contain_text("0.04")
    expect(page).to_have_url(re.compile("expr="))

    # Each chart has its own scale, and its points as a file.
    chart = page.locator('[data-metric="train/loss"]')
    chart.locator("summary").click()
    chart.get_by_role("checkbox", name="log y").check()
    page.wait_for_function(
        """() => document.querySelector('[data-metric="train/loss"] .plot').figure.y.log """
    )
    assert chart.locator(".ytick").count() >= 3
    expect(page).to_have_url(re.compile("chart=train/loss:log"))
    with page.expect_download() as download:
        chart.get_by_role("button", name="CSV").click()
    text = download.value.path().read_text().splitlines()
    assert text[0] == "run,label,step,x_step,train/loss"
    assert len(text) > 400

    # Where no run is listed, no curve is.
    page.get_by_role("searchbox", name="Filter runs").fill("none-of-them")
    expect(page.locator("#runs-table")).to_contain_text("No run matches this filter")
    expect(page.locator("#runs-curves .trace.line")).to_have_count(0)


def test_run_leaves_the_table_when_its_state_no_longer_matches(visit: Visit, lehr: Lehr):
    attempts = {}
    for name in ("first", "second"):
        run = lehr.store.runs.create(seeding.run_spec(name))
        attempts[name] = seeding.start(lehr.store, run)
        attempts[name].train([1])
    page = visit.open("/?flat=1&filter=state:running")
    expect(page.locator("tbody tr[data-run]")).to_have_count(2)
    expect(page.locator("#runs-foot")).to_have_text("2 runs")
    attempts["first"].end(RunState.COMPLETED, 1)
    expect(page.locator("tbody tr[data-run] .col-name")).to_have_text(["second"])
    expect(page.locator("#runs-foot")).to_have_text("1 run")


DRAWN = """(step) => document.querySelector('[data-metric="train/loss"] .plot')?.figure
    ?.traces.filter((trace) => trace.run).every((trace) => trace.x.at(-1) === step)"""


def test_row_and_line_stay_lit_while_the_charts_are_live(visit: Visit, lehr: Lehr):
    _, runs = seeding.create_sweep(lehr.store, seeding.lr_sweep("grid", [1e-4, 3e-4, 1e-3]))
    attempts = [seeding.start(lehr.store, run, gpus=[i]) for i, run in enumerate(runs)]
    for attempt in attempts:
        attempt.train(range(1, 51))
    page = visit.open("/?curves=1")
    row = page.locator(f'tr.member[data-run="{runs[1].id}"]')

    def lit_after(step: int) -> list[list[str]]:
        """Train one step; return the runs of the bold lines and those of the lit rows."""
        for attempt in attempts:
            attempt.train([step])
        page.wait_for_function(DRAWN, arg=step)
        expect(row.locator(".col-step")).to_have_text(f"{step}/1,000")
        return page.evaluate(
            """() => ['[data-metric="train/loss"] .trace.near', "tr.lit"].map((those) =>
                [...document.querySelectorAll(those)].map((one) => one.dataset.run))"""
        )

    page.wait_for_function(DRAWN, arg=50)
    row.hover()
    assert [lit_after(step)[0] for step in (51, 52)] == [[runs[1].id]] * 2
    plot = page.locator('[data-metric="train/loss"] .plot').bounding_box()
    page.mouse.move(plot["x"] + plot["width"] / 2, plot["y"] + plot["height"] - 40)
    expect(page.locator("tr.lit")).to_have_count(1)
    near, rows = lit_after(53)
    assert near == rows
    assert len(rows) == 1
    page.mouse.move(5, 5)
    assert lit_after(54) == [[], []]


def test_selection_is_kept_over_filters_and_in_the_address(visit: Visit, lehr: Lehr):
    for name in ("first", "second", "third"):
        run = lehr.store.runs.create(seeding.run_spec(name, project=name))
        seeding.start(lehr.store, run).end(RunState.COMPLETED, 1)
    page = visit.open("/")
    for name in ("first", "second"):
        page.get_by_role("checkbox", name=f"Select {name}").check()
    expect_filtered(page, "project:third", ["third"])
    page.get_by_role("checkbox", name="Select third").check()
    bar = page.locator("#selection")
    expect(bar).to_contain_text("3 selected")
    bar.get_by_role("button", name="Tag").click()
    expect(page.get_by_role("dialog")).to_contain_text("Tag 3 runs")
    page.get_by_role("dialog").get_by_role("button", name="Back").click()
    bar.get_by_role("link", name="Compare").click()
    expect(page.get_by_role("heading", name="3 runs compared")).to_be_visible()
    page.go_back()
    expect(bar).to_contain_text("3 selected")


def test_curves_and_comparisons_are_grouped_by_any_path_tag_or_metric(visit: Visit, lehr: Lehr):
    """Two learning rates with two seeds each, of which one has a tag."""
    rates = (3e-4, 3e-4, 1e-3, 1e-3)
    runs = []
    for n, rate in enumerate(rates):
        tags = ["probe"] if n == 0 else []
        spec = seeding.run_spec(f"run-{n}", lr=rate, steps=200, seed=n, tags=tags)
        runs.append(lehr.store.runs.create(spec))
        attempt = seeding.start(lehr.store, runs[-1])
        attempt.train(range(1, 201))
        attempt.end(RunState.COMPLETED, 200)
    drawn = """() => (document.querySelector('[data-metric="train/loss"] .plot')?.figure?.traces ?? [])
        .reduce((n, trace) => [n[0] + (trace.run ? 1 : 0), n[1] + (trace.fill ? 1 : 0)], [0, 0])
        .join()"""
    page = visit.open("/?curves=1")
    page.wait_for_function(f"() => ({drawn})() === '4,0'")
    field = page.get_by_role("combobox", name="mean by")
    field.fill("lr")
    field.press("Enter")
    page.wait_for_function(f"() => ({drawn})() === '2,2'")
    expect(page).to_have_url(re.compile(r"by=lr"))
    plot = page.locator('[data-metric="train/loss"] .plot').bounding_box()
    page.mouse.move(plot["x"] + plot["width"] / 2, plot["y"] + plot["height"] / 2)
    expect(page.locator(".tip-row")).to_contain_text(
        [re.compile(r"lr (3.0e-4|1.0e-3), mean of 2 runs")] * 2
    )
    # A member's row lights the line of its group.
    for run in runs[:2]:
        page.locator(f'tr[data-run="{run.id}"]').hover()
        expect(page.locator('[data-metric="train/loss"] .trace.near')).to_have_count(1)
    field.fill("tag:probe")
    field.press("Enter")
    page.wait_for_function(f"() => ({drawn})() === '2,1'")
    field.fill("lr, tag:probe")
    field.press("Enter")
    page.wait_for_function(f"() => ({drawn})() === '3,1'")
    # An answer that comes late does not overwrite what is typed meanwhile.
    held: list[Route] = []
    page.route("**/values?*nothing.like.it*", lambda route: held.append(route))  # noqa: PLW0108 - Playwright marks it
    field.fill("nothing.like.it")
    field.press("Enter")
    expect(page.locator("#filter-problem")).to_have_text("mean by: no run has nothing.like.it")
    field.fill("lr")
    while not held:
        page.wait_for_timeout(50)
    with page.expect_response(held[0].request.url):
        held[0].continue_()
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
    expect(field).to_have_value("lr")
    field.press("Enter")
    page.wait_for_function(f"() => ({drawn})() === '2,2'")
    expect(page.locator("#filter-problem")).to_be_hidden()

    page = visit.open(f"/compare?runs={','.join(run.id for run in runs)}")
    page.get_by_role("combobox", name="Mean by").select_option("train.optimizer.lr")
    rows = page.get_by_role("table", name="Groups").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("lr 3.0e-4")
    finals = [
        [lehr.store.series.read(run.id, "val/loss", exact=True).y[-1] for run in pair]
        for pair in (runs[:2], runs[2:])
    ]
    means = [statistics.fmean(pair) for pair in finals]
    cells = rows.nth(1).locator("td")
    expect(cells.nth(2)).to_have_text("2")
    expect(cells.nth(3)).to_have_text(f"{means[1]:.3f} \u00b1 {statistics.stdev(finals[1]):.4g}")
    expect(cells.nth(4)).to_contain_text(f"{abs(means[1] - means[0]):.4g}"[:5])
    page.locator('[data-metric="train/loss"]').scroll_into_view_if_needed()
    page.wait_for_function(f"() => ({drawn})() === '2,2'")
    expect(page).to_have_url(re.compile(r"by=train.optimizer.lr"))
    page.get_by_role("combobox", name="Mean by").select_option("val/loss")
    expect(rows.nth(0)).to_contain_text(re.compile(r"val/loss (below|from) \d"))
    expect(rows).to_have_count(2)
