"""The runs table: live, grouped, filtered, by keyboard, and with very many runs."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from lehr.control.lifecycle import RunState
from lehr_testing import seeding

from .conftest import Lehr, Visit, World

pytestmark = pytest.mark.browser


def row(page, name: str):
    return page.locator("tbody tr", has=page.get_by_role("link", name=name, exact=True))


def test_rows_show_state_reason_and_metrics(look: Visit):
    page = look.open("/?curves=0")
    expect(row(page, "probe-fp8")).to_contain_text("waits for 1 x H100")
    big = row(page, "big-run")
    expect(big.locator(".col-state")).to_contain_text("running")
    expect(big.locator(".col-step")).to_have_text("400/1,000")
    expect(big.locator(".col-mfu")).to_have_text(re.compile(r"^\d\d %$"))
    expect(big.locator(".col-trend svg path")).to_have_count(1)
    expect(big.locator(".col-tags")).to_have_text("omk")
    expect(row(page, "probe-fp8").locator(".col-loss")).to_have_text("—")
    expect(page.locator("#totals")).to_contain_text("8/8 GPUs busy")


def test_sweep_is_one_row_that_can_be_expanded(look: Visit, world: World):
    page = look.page
    group = row(page, "lr-grid")
    expect(group).to_contain_text("4 completed")
    expect(group).to_contain_text("1 failed")
    expect(group).to_contain_text("at lr 2.0e-3")
    # The newest is expanded.
    expect(row(page, "lr-grid-1")).to_be_visible()
    expect(row(page, "lr-grid-5")).to_contain_text("loss became NaN")

    page.get_by_role("button", name="Fold lr-grid").click()

    expect(row(page, "lr-grid-1")).to_have_count(0)
    expect(page).to_have_url(re.compile(f"fold={world.sweep.id}"))
    page.reload()
    expect(row(page, "lr-grid")).to_be_visible()
    expect(row(page, "lr-grid-1")).to_have_count(0)
    page.get_by_role("button", name="Unfold lr-grid").click()
    expect(row(page, "lr-grid-1")).to_be_visible()


def test_running_runs_update_and_new_runs_appear(visit: Visit, lehr: Lehr):
    page = visit.open("/?curves=0")
    run = lehr.store.runs.create(seeding.run_spec("live", steps=500))
    expect(row(page, "live").locator(".col-state")).to_contain_text("waits")

    attempt = seeding.start(lehr.store, run)
    expect(row(page, "live").locator(".col-state")).to_contain_text("running")
    for step in range(1, 6):
        attempt.train([step])
        expect(row(page, "live").locator(".col-step")).to_have_text(f"{step}/500")
    attempt.end(RunState.FAILED, 5, cause="out_of_memory", message="CUDA ran out of memory")
    expect(row(page, "live").locator(".col-state")).to_contain_text("CUDA ran out of memory")


def test_runs_are_found_selected_and_compared_by_keyboard(look: Visit):
    page = look.page
    expect(row(page, "big-run")).to_be_visible()
    page.goto(f"{look.url}/?flat=1")
    expect(row(page, "lr-grid-5")).to_be_visible()
    for key in ("j", "j", "x", "j", "x"):
        page.keyboard.press(key)
    expect(page.locator("#selection")).to_contain_text("2 selected")
    page.keyboard.press("c")
    expect(page.get_by_role("heading", name="2 runs compared")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page).to_have_url(f"{look.url}/sweeps")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("dark or light")


def test_selected_columns_are_remembered(look: Visit):
    page = look.open("/?curves=0")
    expect(page.locator("th.col-id")).to_have_count(0)
    page.locator("#runs-options").get_by_text("View", exact=True).click()
    page.get_by_role("checkbox", name="id", exact=True).check()
    page.get_by_role("checkbox", name="MFU").uncheck()
    expect(page.locator("th.col-id")).to_be_visible()
    look.open("/?curves=0")
    expect(page.locator("th.col-id")).to_be_visible()
    expect(page.locator("th.col-mfu")).to_have_count(0)


def test_cancelling_a_selection_needs_confirmation(visit: Visit, lehr: Lehr):
    page = visit.page
    run = lehr.store.runs.create(seeding.run_spec("unwanted"))
    page.get_by_role("checkbox", name="Select unwanted").check()
    page.get_by_role("button", name="Cancel 1 run").click()
    page.get_by_role("dialog").get_by_role("button", name="Keep").click()
    assert lehr.store.runs.get(run.id).desired == "run"
    page.get_by_role("button", name="Cancel 1 run").click()
    with page.expect_response("**/cancel"):
        page.get_by_role("dialog").get_by_role("button", name="Cancel them").click()
    assert lehr.store.runs.get(run.id).desired == "cancel"


LINES = """() => new Set([...document.querySelectorAll('[data-metric="train/loss"] .trace.line')]
    .map((line) => line.dataset.run)).size"""


def test_a_group_is_one_row_and_one_line_until_it_is_opened(look: Visit):
    page = look.open("/?filter=lr-grid&colour=lr")
    page.wait_for_function(f"() => ({LINES})() === 5")
    expect(page.locator("#runs-curves .scale")).to_contain_text("lr1.0e-43.0e-4")
    page.get_by_text("Group: sweep").click()
    page.get_by_role("combobox", name="Group by").fill("optimizer.name")
    page.keyboard.press("Enter")
    group = page.locator("tr.group")
    expect(group).to_have_text(re.compile(r"optimizer.name adamw\(5\)"))
    expect(group.locator(".col-val")).to_have_text(re.compile(r"^[\d.]+ ±[\d.]+$"))
    page.wait_for_function(f"() => ({LINES})() === 1")
    page.locator('[data-metric="train/loss"] .plot').hover()
    expect(page.locator("tr.group.lit")).to_have_count(1)

    page.get_by_role("button", name="Unfold optimizer.name adamw").click()
    page.wait_for_function(f"() => ({LINES})() === 5")
    expect(page.locator("tr.member .eye")).to_have_count(5)
    expect(page.locator("tr.group .eye")).to_have_count(0)
    expect(page).to_have_url(re.compile("by=optimizer.name&open=optimizer.name"))


def test_rows_below_a_folded_sweep_have_their_settings(visit: Visit, lehr: Lehr):
    for rate in (1e-3, 2e-3):
        lehr.store.runs.create(seeding.run_spec(f"run-{rate}", lr=rate))
    seeding.create_sweep(lehr.store, seeding.lr_sweep("wide", [n * 1e-5 for n in range(1, 201)]))
    page = visit.open("/")
    expect(page.locator("tr[data-run] .col-train-optimizer-lr")).to_have_text(["2.0e-3", "1.0e-3"])


def test_list_beside_the_charts_fits_and_becomes_the_table(look: Visit):
    page = look.open("/?flat=1&sort=val")
    heads = page.locator("table.runs thead th")
    expect(heads).to_have_count(6)
    expect(heads.nth(3)).to_have_text("val ↑")
    expect(page.locator("td.is-best")).to_have_count(1)
    expect(row(page, "lr-grid-4").locator(".is-best")).to_be_visible()
    expect(page.locator("tr.alike")).to_contain_text("all:")
    for element in (page.locator(".runs-room"), page.locator("html")):
        assert element.evaluate("(one) => one.scrollWidth <= one.clientWidth")
    edge = page.get_by_role("separator", name="Width of the list")
    edge.focus()
    for _ in range(9):
        page.keyboard.press("ArrowRight")
    expect(page.locator("th.col-trend")).to_be_visible()
    expect(page.locator("#runs-curves .chart-svg").first).to_be_visible()


def test_a_sort_keeps_groups_together_and_shows_the_best_run_of_each(look: Visit):
    page = look.open("/?open=none")
    page.get_by_role("button", name=re.compile("Fold lr-grid")).click()
    page.get_by_role("button", name="val", exact=True).click()
    group = page.locator("tr.group", has_text="lr-grid")
    best = page.locator("tbody tr:not(.spacer)").first
    expect(best).to_have_text(re.compile("lr-grid"))
    expect(group.locator(".col-val.is-best")).to_be_visible()
    expect(group.locator(".col-train-optimizer-lr")).to_have_text("2.0e-3")
    page.get_by_role("button", name="Unfold lr-grid").click()
    expect(page.locator("tr.member").first).to_contain_text("lr-grid-4")


def test_a_sort_asks_for_the_first_rows_and_follows_new_values(visit: Visit, lehr: Lehr):
    attempts = []
    for i in range(121):  # The oldest is the best.
        attempt = seeding.start(lehr.store, lehr.store.runs.create(seeding.run_spec(f"r{i}")))
        attempt.evaluate(1, 2.0 + i)
        attempt.flush()
        attempts.append(attempt)
    asked = []
    visit.page.on("request", lambda one: asked.append(one.url) if "/api/v1/runs?" in one.url else 0)
    page = visit.open("/?curves=0&sort=val")
    names = page.locator("tbody .col-name a")
    expect(names.first).to_have_text("r0")
    expect(page.locator(".is-best")).to_have_count(1)
    expect(row(page, "r0").locator(".col-val.is-best")).to_be_visible()
    expect(page.locator("#runs-foot")).to_have_text("121 runs")
    assert [url for url in asked if "cursor" in url or "limit=200" in url] == []
    attempts[120].evaluate(2, 1.0)
    attempts[120].flush()
    expect(names.first).to_have_text("r120")


def test_a_cell_narrows_the_filter_by_click_and_by_keyboard(look: Visit):
    page = look.open("/?flat=1&curves=0")
    cell = row(page, "lr-grid-4").locator(".col-train-optimizer-lr")
    expect(cell).to_have_text("2.0e-3")
    cell.click()
    menu = page.get_by_role("group", name="Filter")
    expect(menu.get_by_role("button", name="only lr=0.002")).to_be_focused()
    menu.get_by_role("button", name="not lr=0.002").click()
    expect(row(page, "lr-grid-4")).to_have_count(0)
    expect(menu).to_have_count(0)
    expect(page).to_have_url(re.compile("filter=-lr%3D0.002"))
    for key in ("j", "f", "Escape", "f"):
        page.keyboard.press(key)
    expect(menu.get_by_role("button").first).to_be_focused()
    menu.get_by_role("button", name=re.compile("^only project:")).focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("filter=project:"))


def test_bands_of_many_groups_are_seen_at_the_nearest_line_only(visit: Visit, lehr: Lehr):
    for i in range(8):
        run = lehr.store.runs.create(seeding.run_spec(f"r{i}", lr=(1 + i % 4) * 1e-3))
        seeding.start(lehr.store, run).train(range(1, 3 + i))
    page = visit.open("/?by=lr")
    chart = page.locator('[data-metric="tokens_per_s"]')
    bands = chart.locator(".trace.band")
    expect(bands).to_have_count(4)
    expect(bands.locator("visible=true")).to_have_count(0)
    chart.locator(".plot").hover()
    expect(bands.locator("visible=true")).to_have_count(1)
    expect(chart.locator(".tip")).to_contain_text(", mean ± sd")
    expect(chart.locator(".tip-row.near")).to_have_text(re.compile(r" ± .* lr .*, 2 runs$"))
    page.get_by_role("button", name="Hide the curves of lr 1.0e-3").click()
    expect(bands.locator("visible=true")).to_have_count(3)


@pytest.mark.parametrize("of_sweep", [False, True])
def test_a_mean_says_which_run_is_far(visit: Visit, lehr: Lehr, of_sweep: bool):
    store = lehr.store
    names = ["a", "b", "c", "diverges"]
    if of_sweep:
        sweep, runs = seeding.create_sweep(store, seeding.lr_sweep("far", [1e-3, 2e-3, 3e-3, 4e-3]))
    else:
        runs = [store.runs.create(seeding.run_spec(name)) for name in names]
    for run, loss in zip(runs, (3.0, 3.1, 3.2, 1000.0), strict=True):
        attempt = seeding.start(store, run)
        attempt.evaluate(1, loss)
        attempt.evaluate(2, loss)
        attempt.flush()
    page = visit.open(f"/?fold={sweep.id}" if of_sweep else "/?by=lr")
    mean = page.locator("tr.group .col-val span").first
    expect(mean).to_have_text("3.10 ±0.10")
    said = f"1 far run left out: {runs[3].name}"
    expect(mean).to_have_attribute("title", re.compile(f"^mean of 3 of 4 runs, {said}, ±"))
    chart = page.locator('[data-metric="val/loss"]')
    chart.locator(".plot").hover()
    tip = chart.locator(".tip-row")
    expect(tip).to_contain_text(f"3 runs, {said}")
    assert tip.evaluate("(one) => one.scrollWidth <= one.clientWidth"), "all of it is seen"


def test_groups_by_a_number_are_in_its_order_and_whole(visit: Visit, lehr: Lehr):
    for i in range(236):  # More than the page asks for at once.
        run = lehr.store.runs.create(seeding.run_spec(f"r{i}", lr=(1 + i % 13) * 1e-3))
    seeding.start(lehr.store, run).train([1])
    page = visit.open("/?by=lr")
    names = page.locator("tr.group .name")
    expect(names).to_have_text(
        ["lr below 4.0e-3", "lr 4.0e-3 to 7.0e-3", "lr 7.0e-3 to 0.01", "lr from 0.01"]
    )
    for name in names.all():
        assert name.evaluate("(one) => one.scrollWidth <= one.clientWidth")
    page = visit.open("/?by=lr&filter=lr<6e-3")
    expect(names).to_have_text([f"lr {n}.0e-3" for n in range(1, 6)])


def test_sweeps_and_rollouts_are_groups_of_the_runs_page(look: Visit, world: World):
    page = look.open("/sweeps")
    expect(page.locator("nav [aria-current=page]")).to_have_text("Sweeps")
    rows = page.locator("tbody tr:not(.spacer)")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("4 completed")
    expect(rows.locator(".col-best")).to_contain_text("at lr 2.0e-3")
    expect(rows.locator(".trial-dots circle")).to_have_count(4)
    expect(rows.locator(".trial-dots .broken")).to_have_count(1)
    expect(rows.locator(".col-over")).to_have_text("train.optimizer.lr")
    page.keyboard.press("j")
    expect(rows).to_have_css("outline-style", "solid")
    page.keyboard.press("e")
    expect(page.locator("tr.member")).to_have_count(5)
    page.keyboard.press("x")
    expect(page.locator("#selection")).to_contain_text("5 selected")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="lr-grid")).to_be_visible()
    page = look.open("/rollouts")
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("llama-1b")
    expect(rows.locator(".col-stages")).to_contain_text("one GPU failed")
    rows.get_by_role("link", name="llama-1b").click()
    expect(page).to_have_url(f"{look.url}/rollouts/{world.rollout.id}")


def test_project_menu_has_what_the_server_knows(visit: Visit, lehr: Lehr):
    page = visit.open("/rollouts")
    expect(page.locator("#runs-table")).to_contain_text("lehr rollout sweeps/rollout_small.yaml")
    lehr.store.runs.create(seeding.run_spec("old", project="long-ago"))
    page = visit.open("/rollouts")
    expect(page.get_by_role("combobox", name="Project").locator("option")).to_have_text(
        ["all projects", "long-ago"]
    )


def test_parts_of_the_filter_are_chips(look: Visit):
    page = look.open("/?filter=project:default+lr-grid+lr>2e-4")
    expect(page.get_by_role("combobox", name="Project")).to_have_value("default")
    field = page.get_by_role("combobox", name="Filter runs")
    field.fill("-name:grid-5")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr[data-run]")).to_have_count(3)
    page.get_by_role("button", name="Remove lr>2e-4").click()
    expect(page.locator("tbody tr[data-run]")).to_have_count(4)
    field.focus()
    page.keyboard.press("Backspace")
    expect(field).to_have_value("-name:grid-5")


def test_the_reference_of_a_project_is_marked_and_others_are_compared_with_it(
    visit: Visit, lehr: Lehr
):
    for name, loss in (("old-star", 3.0), ("star", 2.0), ("better", 1.5)):
        run = lehr.store.runs.create(seeding.run_spec(name, tags=["reference"] * ("old" in name)))
        attempt = seeding.start(lehr.store, run)
        attempt.train([1])
        attempt.evaluate(2, loss)
        attempt.flush()
    page = visit.open("/")
    versus = page.locator("tbody .col-versus-val-loss")
    expect(versus).to_have_text([re.compile("1.500"), re.compile("1.000"), "—"])
    page.get_by_role("checkbox", name="Select star", exact=True).check()
    page.get_by_role("button", name="★ Reference").click()
    expect(versus).to_have_text([re.compile("0.500"), "—", "+1.000"])
    expect(page.locator(".star")).to_have_count(1)
    expect(row(page, "star").locator(".star")).to_be_visible()
    page = visit.open("/?sort=loss")
    expect(page.locator("tbody .col-versus-train-loss")).to_have_count(3)
    # On the page of another run it is faint, and the head has that run's values alone.
    row(page, "better").get_by_role("link").click()
    expect(page.locator(".tiles")).to_contain_text("val/loss vs ★")
    chart = page.locator('[data-metric="val/loss"]')
    expect(chart.locator(".trace[data-run]")).to_have_count(4)
    expect(chart.locator(".read")).to_have_text("1.500")
