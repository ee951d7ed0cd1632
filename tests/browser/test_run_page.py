"""A run's page: log, alerts, tabs and actions."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import Route, expect

from lehr.base.home import runs_dir
from lehr.control.lifecycle import RunState
from lehr.specs import load_spec
from lehr_log.media import _json, _png
from lehr_testing import seeding

from .conftest import Lehr, Visit, World
from .curves import wait_for_step

pytestmark = pytest.mark.browser


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


def test_alert_leads_to_the_curve_and_from_there_to_the_log(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("live", steps=1000))
    attempt = seeding.start(lehr.store, run)
    attempt.train(range(1, 301))
    attempt.warn("loss_too_good", "the loss is too good to be true", 250)
    page = visit.open(f"/runs/{run.id}?tab=config")
    page.locator(".chip.warn > summary").click()
    page.get_by_role("button", name="Show on curve").click()
    chart = page.locator('[data-metric="train/loss"]')
    expect(chart.locator(".read")).to_contain_text("step 250")
    expect(chart.locator(".tip")).to_contain_text("step 250: the loss is too good to be true")
    expect(chart.locator(".plot")).to_be_focused()
    page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="Log at step 251").click()
    expect(page.locator(".log .hit-now")).to_contain_text("step   251  loss 5.4476")
    expect(page.locator(".log .hit-now")).to_be_focused()
    assert page.locator("#run-head").bounding_box()["height"] <= 120
    page.get_by_role("button", name="Add a note").click()
    page.get_by_role("textbox", name="Note on live").fill("warmup")
    page.keyboard.press("Enter")
    expect(page.locator(".note-text")).to_have_text("warmup")
    expect(page.get_by_role("button", name="Edit note")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Edit note")).to_be_focused()
    assert lehr.store.runs.get(run.id).note == "warmup"


def test_failure_has_the_last_line_of_its_traceback_and_leads_to_it(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("broken"))
    attempt = seeding.start(lehr.store, run)
    attempt.train([1])
    error = "ValueError: shape (3, 4) is not (4, 3)"
    attempt.log(
        f"Traceback (most recent call last):\n  raise ValueError(\n{error}\n" + "bye\n" * 900
    )
    reason = f"{error} (train.py exited with code 1; lehr logs {run.id})"
    attempt.end(RunState.FAILED, 1, cause="user_code", message=reason)
    page = visit.open(f"/runs/{run.id}")
    failure = page.locator(".chip.bad > summary")
    expect(failure).to_have_text(f"✕ {error}")
    failure.press("Enter")
    page.get_by_role("button", name="Log at this line").press("Enter")
    expect(page.locator(".log .hit-now")).to_have_text(f"{error}\n")
    expect(page.locator(".log .hit-now")).to_be_in_viewport()


def test_a_trainer_that_stops_for_what_it_warned_of_has_one_chip(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("lost"))
    attempt = seeding.start(lehr.store, run)
    attempt.train(range(1, 41))
    attempt.warn("nan_loss", "loss became NaN at step 40", 40)
    attempt.end(RunState.FAILED, 40, cause="nan_loss", message="loss became NaN")
    page = visit.open(f"/runs/{run.id}?tab=config")
    page.locator(".chip.bad > summary", has_text="✕ loss became NaN").click()
    expect(page.locator(".chip", has_text="loss became NaN at step")).to_have_count(0)
    page.get_by_role("button", name="Show on curve").click()
    expect(page.locator('[data-metric="train/loss"] .read')).to_contain_text("step 40")


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
    expect(page.locator("#run-body dl.facts")).to_contain_text("NVIDIA A100-SXM4-80GB")

    look.open(f"/runs/{run.id}?tab=config&key=optimizer.l")
    config = page.get_by_role("table", name="Config")
    expect(config).to_contain_text("train.optimizer.lr")
    expect(config).not_to_contain_text("train.seed")
    page.get_by_placeholder("field").fill("vocab")
    expect(config.locator(".value")).to_have_text("131072")
    with page.expect_download() as download:
        page.get_by_role("link", name="config.yaml").click()
    assert "optimizer" in download.value.path().read_text()


def test_media_are_shown_by_step_and_side_by_side(visit: Visit, lehr: Lehr):
    attempts = []
    for name in ("one", "two"):
        program = {"kind": "run", "name": name, "trainer": {"script": "train.py"}}
        run = lehr.store.runs.create(load_spec(program))
        attempts.append(seeding.start(lehr.store, run))
        attempts[-1].evaluate(3, 4.0)
        attempts[-1].checkpoint(3, val_loss=4.0)  # Until then the page looks again by itself.
    first, second = attempts
    for step in (1, 2):
        image = _png(np.full((4, 4 * step), 100, np.uint8))
        first.media(step, "samples", "image", image, f"caption {step}")
    second.media(1, "samples", "image", _png(np.zeros((4, 12))), "of two")
    first.media(
        1, "errors", "table", _json({"columns": ["<b>", "n"], "rows": [["<i>", 0.5]] * 1_001})
    )
    first.media(1, "weights", "histogram", _json({"counts": [1, 2, 1], "edges": [0, 1, 2, 3]}))
    first.media(1, "notes", "file", b"text", "notes.txt")
    first.media(1, "odd", "histogram", b"{}")
    page = visit.open(f"/runs/{first.run.id}?tab=samples")
    samples = page.locator("section.media", has=page.get_by_role("heading", name="samples"))

    def width() -> int:
        return samples.get_by_role("img").evaluate("(image) => image.naturalWidth")

    expect(samples).to_contain_text("caption 2")
    page.wait_for_function("() => document.querySelector('.media img').complete")
    assert width() == 8
    samples.get_by_role("slider").press("ArrowLeft")
    expect(samples).to_contain_text("caption 1")
    expect(samples.get_by_role("slider")).to_be_focused()
    page.wait_for_function("() => document.querySelector('.media img').naturalWidth === 4")
    with page.expect_response("**/media"):  # The record arrives, and its content later.
        offset = first.media(3, "samples", "image", image, "caption 3", late=True)
    page.wait_for_timeout(5_000)  # After its pause it has looked again, and sees no reason to.
    with page.expect_response("**/media"):
        lehr.store.streams.append(first.id, "media.bin", offset, image)
    expect(samples.get_by_role("slider")).to_have_attribute("max", "2")
    expect(samples).to_contain_text("caption 1")
    table = page.get_by_role("table", name="errors at step 1")
    expect(table.locator("tbody tr")).to_have_count(1_000)
    expect(table.locator("thead")).to_have_text("<b>n")
    expect(page.get_by_text("The first 1,000 of 1,001 rows.")).to_be_visible()
    bars = page.get_by_role("img", name="weights at step 1").locator("rect")
    heights = bars.evaluate_all("(all) => all.map((bar) => Number(bar.getAttribute('height')))")
    assert heights == [45, 90, 45]
    expect(page.get_by_text("It cannot be shown.")).to_have_count(1)
    with page.expect_download() as download:
        page.get_by_role("link", name="notes.txt").click()
    assert download.value.suggested_filename == "notes.txt"

    visit.open(f"/compare?runs={first.run.id},{second.run.id}")
    columns = samples.locator(".media-run")
    expect(columns).to_contain_text(["caption 3", "Nothing at this step."])
    samples.get_by_role("slider").press("Home")
    expect(columns).to_contain_text(["caption 1", "of two"])


def test_run_is_saved_paused_and_resumed_with_confirmation(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("live"))
    attempt = seeding.start(lehr.store, run)
    attempt.train([1])
    page = visit.open(f"/runs/{run.id}")
    more = page.locator("summary[aria-label='More actions']")
    more.click()
    with page.expect_response("**/checkpoint"):
        page.get_by_role("button", name="Save checkpoint").click()
    assert lehr.store.runs.get(run.id).checkpoint_seq == 1
    page.get_by_role("button", name="Pause").click()
    with page.expect_response("**/pause"):
        page.get_by_role("dialog").get_by_role("button", name="Pause the run").click()
    assert lehr.store.runs.get(run.id).desired == "pause"
    expect(page.locator("#run-head")).to_contain_text("pause requested")
    attempt.end(RunState.PAUSED, 1)
    with page.expect_response("**/resume"):
        page.get_by_role("button", name="Resume").click()
    assert lehr.store.runs.get(run.id).desired == "run"
    more.click()
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
    changes = page.get_by_role("textbox", name="with these changes")
    expect(changes).to_be_focused()
    page.get_by_role("combobox", name="from").select_option("5")
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
