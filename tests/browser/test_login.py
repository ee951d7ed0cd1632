"""Login, and requests without a login."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from lehr_testing.api import TOKEN

from .conftest import Visit, World, new_context

pytestmark = pytest.mark.browser


def test_login_leads_to_the_requested_page(world: World, browser):
    context = new_context(browser)
    page = context.new_page()
    run = world.runs["big-run"]

    answer = page.goto(f"{world.lehr.url}/runs/{run.id}?x=tokens")
    assert answer.status == 401
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()

    expect(page).to_have_url(f"{world.lehr.url}/runs/{run.id}?x=tokens")
    expect(page.get_by_role("heading", name="big-run")).to_be_visible()
    context.close()


def test_a_wrong_token_is_an_error_on_the_login_page(world: World, browser):
    context = new_context(browser)
    page = context.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{world.lehr.url}/login")
    page.get_by_label("Token").fill("not-the-token")
    with page.expect_response("**/login") as answer:
        page.get_by_role("button", name="Log in").click()

    assert answer.value.status == 401
    expect(page.get_by_role("alert")).to_contain_text(
        "the token is not this server's", ignore_case=True
    )
    expect(page.get_by_label("Token")).to_be_focused()
    assert context.cookies() == errors == []
    context.close()


def test_logout_ends_the_session(look: Visit):
    page = look.page
    page.get_by_role("button", name="Log out").click()
    expect(page).to_have_url(re.compile("/login$"))
    assert page.request.get(f"{look.url}/api/v1/runs").status == 401
    # What the page had requested meanwhile is refused, too.
    look.watch.console = [line for line in look.watch.console if "401" not in line]
