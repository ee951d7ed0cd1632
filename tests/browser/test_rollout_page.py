"""The rollout pages: stages in a line, gates with their evidence, live updates, cancel with confirmation."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from lehr_testing import seeding
from lehr_testing.seeded_rollouts import Seeded

from .conftest import Lehr, Visit

pytestmark = pytest.mark.browser


def stage(page: Page, name: str):
    return page.locator(f"#stage-{name}")


def test_failed_gate_is_expanded_with_its_evidence(visit: Visit, lehr: Lehr):
    seeded = Seeded(lehr.store)
    seeded.passed("cpu")
    seeded.passed("one_gpu")
    run = seeded.stopped("two_gpus")
    page = visit.open(f"/rollouts/{seeded.rollout.id}")
    expect(page.locator("#verdict")).to_contain_text("Stopped at stage 3 of 4, 2 GPUs")
    expect(page.locator("#verdict")).to_contain_text("24.42 nats at step 1")
    line = page.get_by_role("list", name="Stages").locator("li")
    expect(line).to_have_count(4)
    for at, state in enumerate(("passed", "passed", "failed", "skipped")):
        expect(line.nth(at).locator(f".state-{state}")).to_be_visible()
    # One stage is shown, below the line: at first that where it stopped.
    expect(page.locator(".stage-part")).to_have_count(1)
    line.first.get_by_role("button").click()
    expect(stage(page, "cpu").locator(".gates")).to_contain_text("first loss")
    expect(page).to_have_url(re.compile("stage=cpu"))
    line.nth(2).get_by_role("button", expanded=False).click()
    stopped = stage(page, "two_gpus").locator("tr.stopped")
    expect(stopped).to_have_count(1)
    expect(stopped).to_contain_text("first loss")
    expect(stopped).to_contain_text("24.42 nats at step 1")
    verdicts = seeded.store.rollouts.verdicts(seeded.rollout.id)
    [expected] = [one.expected for one in verdicts if one.verdict == "failed"]
    expect(stopped).to_contain_text(expected)
    stopped.get_by_role("link", name=run.name).click()
    expect(page).to_have_url(re.compile(f"/runs/{run.id}"))
    # And back: the page of the run names its rollout.
    page.get_by_role("link", name="its rollout").click()
    expect(page.get_by_role("heading", name="llama-1b", exact=True)).to_be_visible()


def test_rollout_is_cancelled_after_confirmation_and_archived(visit: Visit, lehr: Lehr):
    seeded = Seeded(lehr.store)
    run = seeded.submit("cpu")
    seeding.start(lehr.store, run)
    page = visit.open(f"/rollouts/{seeded.rollout.id}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Keep").click()
    assert lehr.store.rollouts.get(seeded.rollout.id).outcome is None
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the rollout").click()
    expect(page.locator("#verdict")).to_contain_text("Cancelled at stage 1 of 4")
    assert lehr.store.runs.get(run.id).desired == "cancel"
    page.get_by_role("button", name="Archive").click()
    expect(page.get_by_text("archived", exact=True)).to_be_visible()
    page.get_by_role("link", name="Rollouts").first.click()
    expect(page.get_by_role("heading", name="No rollouts yet")).to_be_visible()
