"""A run's page: curves and log grow as it trains; its parts, actions and permalinks."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from lehr.control.lifecycle import RunState
from lehr.home import runs_dir
from lehr.presenters.flops import flops_per_token
from lehr_testing import seeding

from .conftest import Lehr, Visit, World

pytestmark = pytest.mark.browser

LAST_STEP = """(name) => {
  const plot = document.querySelector(`[data-metric="${name}"] .plot`);
  return plot?.figure ? plot.figure.traces.at(-1).x.at(-1) : null;
}"""


def wait_for_step(page: Page, metric: str, step: float) -> None:
    """Wait until the metric's chart is drawn up to ``step``."""
    page.wait_for_function(
        f"([name, step]) => ({LAST_STEP})(name) === step", arg=[metric, step], timeout=20_000
    )


def traces(page: Page, metric: str) -> list[dict]:
    return page.evaluate(
        """(name) => document.querySelector(`[data-metric="${name}"] .plot`).figure.traces
            .map((t) => ({mode: t.mode, dash: t.line?.dash, x: [...t.x], y: [...t.y],
              fill: t.fill, symbol: t.marker?.symbol}))""",
        metric,
    )


def test_running_run_fetches_only_new_points(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("live", steps=1000))
    attempt = seeding.start(lehr.store, run)
    attempt.train(range(1, 301))
    page = visit.open(f"/runs/{run.id}")
    wait_for_step(page, "train/loss", 300)
    page.get_by_text("speed 3").click()  # What is folded fetches nothing.
    page.evaluate("scrollTo(0, 0)")
    visit.watch.requests.clear()

    for step in (301, 302, 303):
        attempt.train([step])
        wait_for_step(page, "train/loss", step)

    expect(page.locator(".status-line")).to_contain_text("step 303 of 1,000")
    series = [path for path in visit.watch.requests if "/series?" in path]
    assert series
    assert all("from=" in path for path in series)
    assert not any("name=mfu" in path for path in series)
    drawn = traces(page, "train/loss")[-1]
    assert drawn["x"] == sorted(set(drawn["x"])), "no step twice, none out of order"
    assert len(drawn["x"]) == 303


def test_chart_scrolled_out_of_view_has_no_gap(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("live", steps=1000))
    attempt = seeding.start(lehr.store, run)
    attempt.train(range(1, 11))
    page = visit.open(f"/runs/{run.id}")
    wait_for_step(page, "train/loss", 10)
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    wait_for_step(page, "memory/peak_bytes", 10)
    attempt.train(range(11, 21))
    wait_for_step(page, "memory/peak_bytes", 20)
    assert page.evaluate(LAST_STEP, "train/loss") == 10
    attempt.train(range(21, 31))
    wait_for_step(page, "memory/peak_bytes", 30)
    page.evaluate("scrollTo(0, 0)")
    wait_for_step(page, "train/loss", 30)
    assert traces(page, "train/loss")[-1]["x"] == list(range(1, 31))


def test_first_evaluation_adds_its_chart(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("live", steps=1000))
    attempt = seeding.start(lehr.store, run)
    page = visit.open(f"/runs/{run.id}")
    expect(page.get_by_role("heading", name="No metrics yet")).to_be_visible()
    attempt.train(range(1, 11))
    wait_for_step(page, "train/loss", 10)
    attempt.evaluate(10, 7.5)
    attempt.flush()
    wait_for_step(page, "val/loss", 10)
    expect(page.locator(".figures")).to_contain_text("7.500")


def test_log_tail_is_followed(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("live"))
    attempt = seeding.start(lehr.store, run)
    page = visit.open(f"/runs/{run.id}")
    log = page.get_by_role("log")
    expect(log).to_contain_text("lehr_trainer: live, attempt 1")
    attempt.log("half a li")
    expect(log).to_contain_text("half a li")
    attempt.log("ne\nand \x1b[31mred\x1b[0m\n")
    expect(log).to_contain_text("half a line\nand red\n", use_inner_text=True)


def test_long_log_can_be_searched_and_read_backwards(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("live"))
    attempt = seeding.start(lehr.store, run)
    attempt.log("".join(f"line {n} äöü\n" for n in range(2000)))
    attempt.log("other rank\n", rank=1)
    page = visit.open(f"/runs/{run.id}?tab=logs")
    expect(page.get_by_text("500 lines")).to_be_visible()
    page.get_by_role("button", name="Earlier lines").click()
    expect(page.get_by_text("2,001 lines")).to_be_visible()
    expect(page.get_by_role("log")).to_contain_text("line 0 äöü\nline 1 äöü\n", use_inner_text=True)

    page.get_by_role("searchbox", name="Search in the log").fill("line 19")
    page.get_by_role("checkbox", name="only lines that match").check()
    expect(page.get_by_text("111 of 2,001 lines match")).to_be_visible()
    expect(page.locator(".log mark")).to_have_count(111)
    expect(page).to_have_url(re.compile("find=line"))
    page.get_by_role("searchbox", name="Search in the log").fill("")
    page.get_by_role("combobox", name="Log").select_option("1/rank-1.log")
    expect(page.get_by_role("log")).to_contain_text("other rank")


def test_alert_has_how_sure_it_is_its_cause_and_what_to_try(look: Visit, world: World):
    run = next(run for run in world.runs.values() if run.cause == "nan_loss")
    page = look.open(f"/runs/{run.id}")
    alert = page.locator(".alert").filter(has_text="nan, since step 39")
    expect(alert.locator("dt")).to_have_text(["seen", "sure", "cause", "try"])
    expect(alert).to_contain_text("certain: the records prove it")
    expect(alert).to_contain_text("a step that was too large, or an overflow of 16-bit numbers")
    warning = re.compile("^loss became NaN at step 39$")
    expect(page.locator(".alert").filter(has_text=warning)).to_be_visible()


def test_resume_shows_superseded_points(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['big-run'].id}")
    wait_for_step(page, "train/loss", 400)
    drawn = traces(page, "train/loss")
    [old] = [trace for trace in drawn if trace["dash"] == "dot"]
    assert (old["x"][0], old["x"][-1]) == (201, 300)
    assert drawn[-1]["x"] == list(range(1, 401))
    marks = page.evaluate(
        """() => document.querySelector('[data-metric="train/loss"] .plot').figure.shapes
            .map((s) => [s.x0, s.line.dash ?? "solid"])"""
    )
    assert [200, "solid"] in marks, "the checkpoint"
    assert [200, "dot"] in marks, "the resume"
    assert [350, "dash"] in marks, "the alert"
    assert [20, "dashdot"] in marks, "the end of the warmup"
    expect(page.get_by_text("On the curves:")).to_contain_text("step 20: warmup ends at LR 3.0e-4")
    expect(page.locator(".alert")).to_contain_text("too good to be true")
    page.get_by_role("button", name="superseded").click()
    page.wait_for_function(
        """() => !document.querySelector('[data-metric="train/loss"] .plot').figure.traces
            .some((t) => t.line?.dash === "dot")"""
    )
    expect(page).to_have_url(re.compile("old=0"))


def test_curve_of_a_fork_continues_that_of_its_parent(visit: Visit, lehr: Lehr):
    """Also that of a fork of a fork; on the run's page and on the live page."""
    spec = seeding.run_spec("first", steps=400)
    line = [lehr.store.runs.create(spec)]
    seeding.start(lehr.store, line[0]).train(range(1, 301))
    for name, begin in (("second", 100), ("third", 200)):
        run = lehr.store.runs.create(
            seeding.run_spec(name, steps=400),
            forked_from=line[-1].id,
            resume_from=f"attempt-1/checkpoints/step-{begin:08d}",
        )
        attempt = seeding.start(lehr.store, run)
        attempt.train(range(begin + 1, begin + 101))
        attempt.end(RunState.COMPLETED, begin + 100)
        line.append(run)
    page = visit.open(f"/runs/{line[2].id}")
    page.wait_for_function(
        """() => document.querySelector('[data-metric="train/loss"] .plot')?.figure?.traces
            .some((trace) => trace.line?.dash === "dot")"""
    )
    expect(page.get_by_role("link", name="second", exact=True)).to_be_visible()
    before, own = traces(page, "train/loss")[-2:]
    assert (before["dash"], own["dash"]) == ("dot", "solid")
    assert before["x"] == list(range(1, 202)), "up to the first step of the fork"
    assert own["x"] == list(range(201, 301))
    values = {
        run.id: lehr.store.series.read(run.id, "train/loss", exact=True, points=1000)
        for run in line
    }
    at = [dict(zip(one.step, one.y, strict=True)) for one in values.values()]
    drawn = dict(zip(before["x"], before["y"], strict=True))
    assert (drawn[100], drawn[101], drawn[200]) == (at[0][100], at[1][101], at[1][200])
    # Its clock begins anew.
    page.get_by_role("button", name="time", exact=True).click()
    page.wait_for_function(
        """() => !document.querySelector('[data-metric="train/loss"] .plot').figure.traces
            .some((trace) => trace.line?.dash === "dot")"""
    )
    page = visit.open("/?curves=1&filter=third")
    page.wait_for_function(
        """() => document.querySelector('[data-metric="train/loss"] .plot')?.figure?.traces
            .some((trace) => trace.line?.dash === "dot" && trace.x[0] === 1)"""
    )


def test_nan_is_marked_at_its_step(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['lr-grid-5'].id}")
    page.wait_for_function(
        """() => document.querySelector('[data-metric="train/loss"] .plot')?.figure?.traces.at(-1)
            .marker.symbol === "x" """
    )
    assert traces(page, "train/loss")[-1]["x"] == [39]
    expect(page.locator(".failure")).to_contain_text("loss became NaN at step 39")
    expect(page.locator(".figures")).to_contain_text("NaN")


def test_view_settings_are_in_the_url(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['big-run'].id}?smooth=0.9&x=tokens&logy=1&range=100-300")
    wait_for_step(page, "train/loss", 300 * seeding.TOKENS_PER_STEP)
    drawn = traces(page, "train/loss")
    assert drawn[-1]["x"][0] == 100 * seeding.TOKENS_PER_STEP
    raw = drawn[-2]
    assert raw["x"] == drawn[-1]["x"], "the raw line lies behind the smoothed one"
    assert raw["y"] != drawn[-1]["y"]
    expect(page.get_by_role("button", name="Show all steps")).to_have_text(
        "steps 100 to 300 \u00d7"
    )
    page.get_by_role("button", name="Show all steps").click()
    wait_for_step(page, "train/loss", 400 * seeding.TOKENS_PER_STEP)
    page.get_by_role("button", name="time", exact=True).click()
    expect(page).to_have_url(re.compile(r"\?smooth=0.9&x=time&logy=1$"))


def test_curves_are_drawn_over_flops(look: Visit, world: World):
    run = world.runs["big-run"]
    cost = flops_per_token(run.spec["train"])
    page = look.open(f"/runs/{run.id}?x=flops&range=100-300")
    wait_for_step(page, "train/loss", 300 * seeding.TOKENS_PER_STEP * cost)
    assert traces(page, "train/loss")[-1]["x"][0] == pytest.approx(
        100 * seeding.TOKENS_PER_STEP * cost
    )


def test_dragging_zooms_every_chart_and_a_double_click_undoes_it(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['big-run'].id}")
    wait_for_step(page, "train/loss", 400)
    box = page.locator('[data-metric="train/loss"] .plot').bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"range=\d+-\d+"))
    page.wait_for_function(f"() => ({LAST_STEP})('tokens_per_s') < 220")
    page.locator('[data-metric="train/loss"] .plot').dblclick()
    wait_for_step(page, "tokens_per_s", 400)


def test_cursor_shows_the_values_of_all_charts(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['big-run'].id}")
    wait_for_step(page, "train/loss", 400)
    wait_for_step(page, "tokens_per_s", 400)
    box = page.locator('[data-metric="train/loss"] .plot').bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 60)
    readings = page.locator(".chart .read")
    expect(readings.first).to_contain_text(re.compile(r"step 1\d\d"))
    here = readings.first.text_content().split("step")[1]
    expect(page.locator('[data-metric="tokens_per_s"] .read')).to_contain_text(f"step{here}")
    # Every chart in sight shows the line, not only the one under the mouse.
    # Those just below the window are drawn ahead, and wait for their cursor until they are seen.
    in_sight = page.evaluate(
        """() => [...document.querySelectorAll(".chart:has(.chart-svg)")]
            .filter((chart) => chart.getBoundingClientRect().top < innerHeight).length"""
    )
    assert in_sight > 1
    expect(page.locator(".cursor.on")).to_have_count(in_sight)


def test_held_cursor_shows_the_sample_and_the_log_of_its_step(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['big-run'].id}?range=240-260")
    wait_for_step(page, "train/loss", 260)
    plot = page.locator('[data-metric="train/loss"] .plot')
    box = plot.bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.5, box["y"] + 60)
    read = page.locator('[data-metric="train/loss"] .read')
    expect(read).to_contain_text("step 2")
    step = read.text_content().split("step ")[1]
    moment = page.locator('[data-metric="train/loss"] .moment')
    expect(moment).to_contain_text("sample of step 200")
    expect(moment).to_contain_text("The meaning of life is to look at curves")
    lines = moment.get_by_label(f"Log lines of step {step}")
    expect(lines).to_have_text(re.compile(rf"^step +{step} +loss \d"))
    plot.press("ArrowRight")
    expect(moment.get_by_label(f"Log lines of step {int(step) + 1}")).to_be_visible()
    page.keyboard.press("Escape")
    expect(moment).to_be_hidden()


def test_arrow_key_at_the_end_of_a_curve_keeps_the_cursor(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['big-run'].id}")
    wait_for_step(page, "train/loss", 400)
    plot = page.locator('[data-metric="train/loss"] .plot')
    chart = """() => ["read", "cursor"].map((part) => {
        const one = document.querySelector(`[data-metric="train/loss"] .${part}`);
        return part === "read" ? one.textContent.split(" ").slice(1).join(" ") : one.className;
    })"""
    plot.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
        assert page.evaluate(chart) == ["step 400", "cursor on"]
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(chart) == ["step 399", "cursor on"]
    page.keyboard.press("Escape")
    assert page.evaluate(chart) == ["", "cursor"]


def test_tabs_have_their_own_urls(look: Visit, world: World):
    run = world.runs["big-run"]
    page = look.open(f"/runs/{run.id}")
    tab = page.get_by_role("tab", name="Checkpoints")
    tab.click()
    expect(page.get_by_role("table", name="Checkpoints")).to_contain_text("9.06 GB")
    expect(page).to_have_url(re.compile("tab=checkpoints"))
    tab.press("ArrowLeft")
    expect(page.get_by_role("tabpanel")).to_contain_text("The meaning of life is to look")
    # An answer that comes after its tab was left does not show in the next one.
    held: list[Route] = []
    page.route("**/events", lambda route: held.append(route) if not held else route.continue_())
    page.keyboard.press("6")
    while not held:
        page.wait_for_timeout(50)
    page.keyboard.press("1")
    wait_for_step(page, "train/loss", 400)
    with page.expect_response("**/events"):
        held[0].continue_()
    expect(page.get_by_role("toolbar", name="Charts")).to_be_visible()
    page.keyboard.press("6")
    events = page.get_by_role("table", name="Events")
    expect(events).to_contain_text("node n1 was lost")
    page.get_by_role("combobox", name="show").select_option("resumed")
    expect(events.locator("tbody tr")).to_have_count(1)
    page.keyboard.press("7")  # The choice has the focus: keys are its own.
    expect(page.get_by_role("tab", name="Events")).to_have_attribute("aria-selected", "true")

    look.open(f"/runs/{run.id}?tab=system")
    attempts = page.get_by_role("table", name="Attempts")
    expect(attempts.locator("tbody tr")).to_have_count(2)
    expect(attempts).to_contain_text("attempt-1/checkpoints/step-00000200")
    expect(page.locator("dl.facts")).to_contain_text("NVIDIA A100-SXM4-80GB")
    expect(page.locator(".breakdown")).to_contain_text("(0.10 %) waiting for data")
    now = page.get_by_role("table", name="GPUs now").locator("tbody tr")
    expect(now).to_have_count(8)
    expect(now.first).to_contain_text("97 %")
    expect(now.first).to_contain_text("61.3 GB of 80 GB")
    expect(
        page.get_by_text("Utilization is the share of the time in which any kernel ran")
    ).to_contain_text("profile.tool=torch")

    look.open(f"/runs/{run.id}?tab=config&against=lr-grid-1")
    config = page.get_by_role("table", name="Config")
    expect(config).to_contain_text("train.optimizer.lr")
    expect(config).not_to_contain_text("train.seed")
    page.get_by_role("combobox", name="or preset").select_option("llama-1b")
    expect(config).to_contain_text("train.model.num_hidden_layers")
    expect(config.locator("tr", has_text="num_hidden_layers")).to_contain_text("16")
    expect(config).not_to_contain_text("train.model.hidden_size")
    expect(config).not_to_contain_text("train.steps")
    expect(page).to_have_url(re.compile("against=preset:llama-1b"))
    with page.expect_download() as download:
        page.get_by_role("link", name="config.yaml").click()
    assert "optimizer" in download.value.path().read_text()


def test_run_is_saved_paused_and_resumed_with_confirmation(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("live"))
    attempt = seeding.start(lehr.store, run)
    attempt.train([1])
    page = visit.open(f"/runs/{run.id}")
    with page.expect_response("**/checkpoint"):
        page.get_by_role("button", name="Save checkpoint").click()
    assert lehr.store.runs.get(run.id).checkpoint_seq == 1
    page.get_by_role("button", name="Pause").click()
    with page.expect_response("**/pause"):
        page.get_by_role("dialog").get_by_role("button", name="Pause the run").click()
    assert lehr.store.runs.get(run.id).desired == "pause"
    expect(page.locator(".status-line")).to_contain_text("pause requested")
    attempt.end(RunState.PAUSED, 1)
    with page.expect_response("**/resume"):
        page.get_by_role("button", name="Resume").click()
    assert lehr.store.runs.get(run.id).desired == "run"
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the run").click()
    page.wait_for_function(
        "() => document.querySelector('#toasts').textContent.includes('Cancelling')"
    )
    assert lehr.store.runs.get(run.id).desired == "cancel"


def test_fork_continues_from_a_checkpoint_with_a_changed_setting(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("live"))
    attempt = seeding.start(lehr.store, run)
    attempt.train(range(1, 11))
    for step in (5, 10):
        attempt.checkpoint(step, val_loss=8.0 - step / 10)
        folder = runs_dir(lehr.store.home) / run.id / f"attempt-1/checkpoints/step-{step:08d}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_text("{}")
    page = visit.open(f"/runs/{run.id}")
    page.get_by_role("button", name="Fork").click()
    page.get_by_role("combobox", name="from").select_option("5")
    changes = page.get_by_role("textbox", name="with these changes")
    changes.fill("train.optimizer.learning_rate=1e-4")
    page.get_by_role("dialog").get_by_role("button", name="Fork").click()
    expect(page.get_by_role("alert")).to_contain_text("lr")
    changes.fill("train.optimizer.lr=1e-4\nname=forked")
    page.get_by_role("dialog").get_by_role("button", name="Fork").click()

    expect(page.get_by_role("heading", name="forked")).to_be_visible()
    parent = page.locator(".crumbs").get_by_role("link", name="live", exact=True)
    expect(parent).to_have_attribute("href", f"/runs/{run.id}")
    made = lehr.store.runs.find("forked")
    assert made.spec["train"]["optimizer"]["lr"] == 1e-4
    assert made.resume_from.endswith("step-00000005")
    # The refusal is part of the test; browsers log it.
    visit.watch.console = [line for line in visit.watch.console if "422" not in line]


def test_unknown_run_gets_a_suggestion(look: Visit):
    page = look.page
    look.open("/runs/big-rnu")
    expect(page.get_by_role("alert")).to_contain_text("big-run")
    # The 404 is what the test is about; browsers log it.
    look.watch.console = [line for line in look.watch.console if "404" not in line]


def test_the_system_tab_follows_a_new_attempt(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("live"))
    attempt = seeding.start(lehr.store, run)
    attempt.train(range(1, 11))
    page = visit.open(f"/runs/{run.id}?tab=system")
    attempts = page.get_by_role("table", name="Attempts").locator("tbody tr")
    expect(attempts).to_have_count(1)
    attempt.lose("node n1 was lost")
    seeding.start(lehr.store, lehr.store.runs.get(run.id), gpus=[3], resume=5)
    expect(attempts).to_have_count(2)
    expect(attempts.first).to_contain_text("n1:3")
