"""Pages follow what happens: a run that waits, is tried again, saves its first checkpoint."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from lehr.control.lifecycle import RunState
from lehr_testing import seeding

from .conftest import Lehr, Visit

pytestmark = pytest.mark.browser


def test_waiting_page_follows_its_reason(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("waits"))
    lehr.store.runs.set_pending_reasons({run.id: "waits for 8 x H100"})
    visit.page.clock.install()
    page = visit.open(f"/runs/{run.id}")
    reason = page.locator(".alert").filter(has_text="waits for")
    expect(reason).to_have_text("waits for 8 x H100")
    # It has neither curves nor a log yet: no tools for them, no empty box.
    expect(page.get_by_text("No log yet")).to_be_visible()
    expect(page.get_by_role("log")).to_be_hidden()
    expect(page.get_by_role("toolbar", name="Charts")).to_be_hidden()
    lehr.store.runs.set_pending_reasons({run.id: "waits for 2 x H100"})
    page.clock.run_for(16_000)
    expect(reason).to_have_text("waits for 2 x H100")


def test_fork_appears_with_the_first_checkpoint(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("live"))
    attempt = seeding.start(lehr.store, run)
    attempt.train(range(1, 6))
    visit.page.clock.install()
    page = visit.open(f"/runs/{run.id}")
    with page.expect_response("**/checkpoints"):
        page.clock.run_for(16_000)
    fork = page.get_by_role("button", name="Fork")
    expect(fork).to_have_count(0)
    attempt.checkpoint(5)
    with page.expect_response("**/checkpoints"):
        page.clock.run_for(16_000)
    expect(fork).to_be_visible()


LAST = """() => document.querySelector('[data-metric="train/loss"] .plot')
    ?.figure?.traces.at(-1).x.at(-1) ?? 0"""


def expect_last_step(page: Page, step: int) -> None:
    page.wait_for_function(f"(step) => ({LAST})() === step", arg=step)


def test_retried_run_is_followed_beside_the_table(visit: Visit, lehr: Lehr):
    run = lehr.store.runs.create(seeding.run_spec("again", steps=100))
    attempt = seeding.start(lehr.store, run)
    attempt.train(range(1, 31))
    attempt.end(RunState.FAILED, 30, cause="oom", message="out of memory")
    page = visit.open("/?curves=1")
    expect_last_step(page, 30)
    lehr.store.transitions.apply(
        run.id,
        old=RunState.FAILED,
        new=RunState.QUEUED,
        attempt=1,
        cause="retry",
        actor="user",
    )
    again = seeding.start(lehr.store, lehr.store.runs.get(run.id))
    again.train(range(1, 11))
    expect_last_step(page, 10)
    again.train(range(11, 16))
    expect_last_step(page, 15)


def test_page_of_a_live_sweep_asks_only_for_trials_that_train(visit: Visit, lehr: Lehr):
    spec = seeding.lr_sweep("grid", [1e-4, 3e-4], steps=100)
    sweep, (first, second) = seeding.create_sweep(lehr.store, spec)
    done = seeding.start(lehr.store, first, gpus=[0])
    done.train(range(1, 101))
    done.end(RunState.COMPLETED, 100)
    live = seeding.start(lehr.store, second, gpus=[1])
    live.train(range(1, 11))
    page = visit.open(f"/sweeps/{sweep.id}")
    count = "() => document.querySelectorAll('[data-metric=\"train/loss\"] .trace.line').length"
    page.wait_for_function(f"() => ({count})() >= 2")
    visit.watch.requests.clear()
    for step in (11, 12):
        live.train([step])
        with page.expect_response("**/series?*"):
            pass
    asked = [path for path in visit.watch.requests if "/series?" in path]
    assert asked
    assert not any(first.id in path for path in asked)
