"""The curves of a run's page: they grow as it trains; resumes and forks; zoom, axes and cursor."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import expect

from lehr.app.presenters.streams import flops_per_token
from lehr_testing import seeding
from lehr_trainer.contract import records

from .conftest import Lehr, Visit, World
from .curves import LAST_STEP, traces, wait_for_step

pytestmark = pytest.mark.browser


def metrics_of(requests: list[str]) -> set[str]:
    """Return the metrics whose curves were requested, beside those of the tiles."""
    queries = [parse_qs(urlsplit(path).query) for path in requests if "/series?" in path]
    queries = [query for query in queries if query["points"] != ["60"]]
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

    expect(page.locator("#run-head")).to_contain_text("step 303 of 1,000")
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


def test_resume_shows_superseded_points(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['big-run'].id}")
    wait_for_step(page, "train/loss", 400)
    drawn = traces(page, "train/loss")
    [old] = [trace for trace in drawn if trace["dash"] == "dot"]
    assert (old["x"][0], old["x"][-1]) == (201, 300)
    assert drawn[-1]["x"] == list(range(1, 401))
    marked = """() => document.querySelector('[data-metric="train/loss"] .plot').figure.shapes
        .map((s) => [s.x0, s.dash ?? "solid"])"""
    page.wait_for_function(f"() => ({marked})().length")  # Marks may come after the curve.
    marks = page.evaluate(marked)
    assert [200, "solid"] in marks, "the checkpoint"
    assert [200, "dot"] in marks, "the resume"
    assert [350, "dash"] in marks, "the alert"
    expect(page.locator(".chip.warn")).to_contain_text("too good to be true")
    page.locator(".toolbar summary", has_text="View").click()
    page.get_by_role("button", name="superseded").click()
    page.wait_for_function(
        """() => !document.querySelector('[data-metric="train/loss"] .plot').figure.traces
            .some((t) => t.dash === "dot")"""
    )
    expect(page).to_have_url(re.compile("old=0"))


def test_view_settings_are_in_the_url(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['big-run'].id}?smooth=0.9&x=tokens&logy=1&range=100-300")
    wait_for_step(page, "train/loss", 300 * seeding.TOKENS_PER_STEP)
    drawn = traces(page, "train/loss")
    assert drawn[-1]["x"][0] == 100 * seeding.TOKENS_PER_STEP
    raw = drawn[-2]
    assert raw["x"] == drawn[-1]["x"], "the raw line lies behind the smoothed one"
    assert raw["y"] != drawn[-1]["y"]
    shown = page.get_by_role("button", name="Show all steps")
    expect(shown).to_have_text("zoomed \u00d7")  # The axis has tokens.
    expect(shown).to_have_attribute("title", "steps 100 to 300")
    page.get_by_role("button", name="Show all steps").click()
    wait_for_step(page, "train/loss", 400 * seeding.TOKENS_PER_STEP)
    page.get_by_role("button", name="time", exact=True).click()
    expect(page).to_have_url(re.compile(r"\?smooth=0.9&x=time&logy=1$"))


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


def test_curves_are_drawn_over_flops(look: Visit, world: World):
    run = world.runs["big-run"]
    cost = flops_per_token(run.spec["train"])
    page = look.open(f"/runs/{run.id}?x=flops&range=100-300")
    wait_for_step(page, "train/loss", 300 * seeding.TOKENS_PER_STEP * cost)
    assert traces(page, "train/loss")[-1]["x"][0] == pytest.approx(
        100 * seeding.TOKENS_PER_STEP * cost
    )


def test_system_tab_divides_a_step_over_the_axis_of_the_loss_and_finds_packages(
    visit: Visit, lehr: Lehr
):
    attempt = seeding.start(lehr.store, lehr.store.runs.create(seeding.run_spec("live")))
    attempt.train(range(1, 101))
    packages = {"numpy": "2.4.1", "torch": "2.13.0", "torchvision": "0.28"}
    attempt.add_record(
        records.Started(
            time=attempt.at, attempt=1, world_size=1, device="cpu", parameters=9, tokens_per_step=9,
            total_steps=1000, versions={}, host={"distributions": packages}, startup_s={},
        )
    )  # fmt: skip
    use = {f"system/gpu{gpu}_utilization": 0.9 for gpu in range(8)}
    attempt.add_record(records.Metrics(time=attempt.at, step=100, tokens=1, values=use))
    attempt.flush()
    page = visit.open(f"/runs/{attempt.run.id}?tab=system")
    expect(page.locator('[data-metric="system/gpu*_utilization"] .colour-key')).to_be_visible()
    expect(page.locator('[data-metric^="system/"]')).to_have_count(1)
    search = page.get_by_label("Find or add charts")
    search.fill("gpu7")
    expect(page.locator('[data-metric="system/gpu7_utilization"]')).to_be_visible()
    search.fill("")
    split = page.locator('[data-metric="step_time_s, data_wait_s"]')
    loss = page.locator('[data-metric="train/loss"]')
    expect(split.locator(".trace.line")).to_have_count(2)
    assert split.locator(".xtick").all_inner_texts() == loss.locator(".xtick").all_inner_texts()
    page.get_by_text("3 packages").click()
    page.get_by_role("searchbox", name="Search packages").fill("Torch")
    expect(page.locator("details p.mono")).to_have_text("torch 2.13.0, torchvision 0.28")


def test_the_loss_that_a_recorder_writes_under_two_names_is_drawn_once(visit: Visit, lehr: Lehr):
    for values, pinned, charts in (
        ({"train/loss": 2.0, "loss": 2.0}, ["train/loss"], 1),
        ({"train/loss": 2.0, "loss": 3.0}, ["train/loss"], 2),
        ({"loss": 2.0}, ["loss"], 1),
    ):
        attempt = seeding.start(lehr.store, lehr.store.runs.create(seeding.run_spec("script")))
        attempt.add_record(records.Metrics(time=attempt.at, step=1, tokens=1, values=values))
        attempt.flush()
        page = visit.open(f"/runs/{attempt.run.id}")
        expect(page.locator(".pinned .chart h3")).to_have_text(pinned)
        expect(page.locator(".chart")).to_have_count(charts)


def test_link_to_a_moment_has_the_cursor_and_the_pins(look: Visit, world: World):
    page = look.open(f"/runs/{world.runs['big-run'].id}?at=301&pins=val/loss,train/lr")
    expect(page.locator(".pinned .chart h3")).to_have_text(["val/loss", "train/lr"])
    wait_for_step(page, "train/lr", 400)
    expect(page.locator('[data-metric="train/lr"] .read')).to_contain_text("step 300")
    page.get_by_role("button", name="Copy link to this moment").click()
    expect(page.locator(".toast")).to_contain_text("cop")
    expect(page).to_have_url(re.compile(r"at=300&pins=val/loss,train/lr"))
    page.keyboard.press("Escape")
    page.wait_for_function("() => !location.search.includes('at=')")
