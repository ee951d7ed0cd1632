"""Notifications of the browser: also while the page is hidden, and for runs that were known before."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Browser, Page, expect

from lehr.control.lifecycle import RunState
from lehr_testing import seeding

from .conftest import Lehr, Watch, log_in, new_context

pytestmark = pytest.mark.browser

STUB = """
  window.notes = [];
  window.Notification = class {
    static permission = "granted";
    static async requestPermission() { return "granted"; }
    constructor(title, options) { window.notes.push({title, ...options}); }
  };
  let hidden = false;
  Object.defineProperty(document, "hidden", {get: () => hidden});
  window.hide = (yes) => {
    hidden = yes;
    document.dispatchEvent(new Event("visibilitychange"));
  };
"""

KNOWN = re.compile(r"/api/v1/runs\?state=queued&state=starting&.*state=paused&limit=")
"""The request for the runs that go on."""


def titles(page: Page, count: int) -> list[str]:
    """Wait for so many notifications, and return their titles in order."""
    page.wait_for_function("(n) => window.notes.length >= n", arg=count, timeout=20_000)
    return sorted(note["title"] for note in page.evaluate("window.notes"))


def test_hidden_page_announces_the_end_and_the_alert_of_a_run(lehr: Lehr, browser: Browser):
    attempts = []
    for n, name in enumerate(("ends", "alerts", "lasts")):
        run = lehr.store.runs.create(seeding.run_spec(name, steps=100))
        attempts.append(seeding.start(lehr.store, run, gpus=[n]))
        attempts[-1].train(range(1, 11))
    context = new_context(browser)
    try:
        context.add_init_script(STUB)
        page = context.new_page()
        watch = Watch(lehr.url)
        watch.follow(page)
        log_in(page, lehr.url)
        bell = page.get_by_role("button", name="Notifications")
        expect(bell).to_have_attribute("aria-pressed", "false")
        bell.click()
        expect(bell).to_have_attribute("aria-pressed", "true")

        # A new page knows which runs go on, before the stream names them.
        with page.expect_response(KNOWN):
            page.reload()
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("tbody tr[data-run]")).to_have_count(3)
        page.evaluate("hide(true)")
        watch.requests.clear()
        attempts[0].end(RunState.FAILED, 10, cause="oom", message="out of memory")

        attempts[1].warn("nan_loss", "the loss is NaN", 10)
        attempts[1].train([11])  # A warning is news of its run with the next step.
        assert titles(page, 2) == ["alerts: alert", "ends failed"]
        attempts[2].warn("spikes", "the loss has spikes", 10)
        attempts[2].train([11])
        assert titles(page, 3) == ["alerts: alert", "ends failed", "lasts: alert"]
        # A hidden page does nothing else.
        assert [path for path in watch.requests if not path.startswith("/static/")] == []

        # The icon is a file that exists.
        icons = {note["icon"] for note in page.evaluate("window.notes")}
        assert [page.request.get(icon).status for icon in icons] == [200]
        # What changed in between is shown at the return, and announced once.
        expect(page.get_by_role("row", name="ends")).not_to_contain_text("failed")
        page.evaluate("hide(false)")
        expect(page.get_by_role("row", name="ends")).to_contain_text("failed")
        assert page.evaluate("window.notes.length") == 3
        watch.assert_clean()
    finally:
        context.close()


@pytest.mark.nightly  # javascript/news has what counts as news.
def test_end_that_no_event_named_is_announced_at_the_catch_up(lehr: Lehr, browser: Browser):
    """Browsers without shared workers leave the stream: a page there asks at its return."""
    run = lehr.store.runs.create(seeding.run_spec("ends", steps=100))
    attempt = seeding.start(lehr.store, run)
    attempt.train(range(1, 11))
    context = new_context(browser)
    try:
        context.add_init_script(f"{STUB} delete window.SharedWorker;")
        context.add_init_script("localStorage.setItem('lehr.notify', 'on')")
        page = context.new_page()
        with page.expect_response(KNOWN):
            log_in(page, lehr.url)
        expect(page.locator("#connection")).to_have_text("live")
        expect(page.locator("tbody tr[data-run]")).to_have_count(1)
        page.evaluate("hide(true)")
        attempt.end(RunState.FAILED, 10, cause="oom", message="out of memory")
        page.evaluate("hide(false)")
        assert titles(page, 1) == ["ends failed"]
    finally:
        context.close()
