"""The curves of a run's page: they grow as it trains; resumes and forks; zoom, axes and cursor."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from lehr.control.lifecycle import RunState
from lehr.presenters.flops import flops_per_token
from lehr_testing import seeding

from .conftest import Lehr, Visit, World
from .curves import LAST_STEP, traces, wait_for_step

pytestmark = pytest.mark.browser


def metrics_of(requests: list[str]) -> set[str]:
    """Return the metrics that were requested."""
    queries = [parse_qs(urlsplit(path).query) for path in requests if "/series?" in path]
    return {name for query in queries for name in query["name"]}


def test_running_run_fetches_only_new_points(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("live", steps=1000))
    attempt = seeding.start(lehr.store, run)
    attempt.train(range(1, 301))
    page = visit.open(f"/runs/{run.id}")
    wait_for_step(page, "train/loss", 300)
    page.get_by_text("speed 3").click()  # What is folded fetches nothing.
    page.evaluate("scrollTo(0, 0)")
    known = metrics_of(visit.watch.requests)
    visit.watch.requests.clear()

    for step in (301, 302, 303):
        attempt.train([step])
        wait_for_step(page, "train/loss", step)

    expect(page.locator(".status-line")).to_contain_text("step 303 of 1,000")
    series = [path for path in visit.watch.requests if "/series?" in path]
    assert series
    # Folding brought charts into sight, whose first request may come late.
    for path in series:
        assert "from=" in path or not metrics_of([path]) & known, path
        known |= metrics_of([path])
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
    # Its clock begins again.
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
    # A chart without a point at this step marks the newest one before it, where that is.
    cursor, dot = page.evaluate(
        """() => [".cursor", ".cursor-dots i"].map((part) => {
            const one = document.querySelector(`[data-metric="val/loss"] ${part}`);
            return new DOMMatrix(getComputedStyle(one).transform).e;
        })"""
    )
    assert dot < cursor - 10


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
