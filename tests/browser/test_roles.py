"""What a viewer's page offers: buttons that the server would refuse are disabled, with the reason."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from .conftest import Watch, World, log_in, new_context, viewer_token

pytestmark = pytest.mark.browser


def test_buttons_that_a_viewer_may_not_press_are_disabled_with_the_reason(world: World, browser):
    context = new_context(browser)
    page = context.new_page()
    watch = Watch(world.lehr.url)
    watch.follow(page)
    log_in(page, world.lehr.url, viewer_token(world.lehr.url))

    def assert_disabled(*names: str) -> None:
        for name in names:
            button = page.get_by_role("button", name=name, exact=True).first
            expect(button).to_be_disabled()
            reason = f"Needs the role {role}; your token guest has the role viewer."
            expect(button).to_have_attribute("title", reason)

    role = "researcher"
    page.get_by_role("checkbox", name="Select big-run").check()
    assert_disabled("Tag", "Cancel 1 run")
    page.goto(f"{world.lehr.url}/runs/{world.runs['big-run'].id}")
    assert_disabled("Pause", "Fork", "Seeds", "Add a note")
    page.locator("summary[aria-label='More actions']").click()
    assert_disabled("Save checkpoint", "Cancel", "Edit tags")
    page.goto(f"{world.lehr.url}/sweeps/{world.sweep.id}")
    page.locator("summary[aria-label='More actions']").click()
    assert_disabled("Add values", "Run failed again", "Run again", "Add a note")
    page.goto(f"{world.lehr.url}/rollouts/{world.rollout.id}")
    assert_disabled("Archive")
    trials = ",".join(world.runs[f"lr-grid-{n}"].id for n in (1, 3))
    page.goto(f"{world.lehr.url}/compare?runs={trials}")
    assert_disabled("Repeat lr-grid-1 with other seeds")
    role = "admin"
    page.goto(f"{world.lehr.url}/cluster")
    page.get_by_label("More of n1").click()
    assert_disabled("Drain n1", "Set the end of n1")
    watch.assert_clean()
    context.close()
