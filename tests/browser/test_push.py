"""The page can be installed, and its worker shows what the server sends."""

from __future__ import annotations

import json

import pytest
from playwright.sync_api import expect

from .conftest import Visit

pytestmark = pytest.mark.browser

REGISTER = """async () => {
    const module = document.querySelector("script[type=module]").src;
    const worker = new URL("../service_worker.js", module);
    await navigator.serviceWorker.register(worker, { scope: "/" });
    return (await navigator.serviceWorker.ready).scope;
}"""


def test_page_can_be_installed_and_its_worker_shows_messages(look: Visit) -> None:
    """A headless browser has no push service: its tools deliver the message."""
    page = look.page
    page.goto(look.url)
    expect(page.get_by_role("button", name="Notify")).to_be_visible()
    tools = page.context.new_cdp_session(page)
    assert tools.send("Page.getAppManifest")["errors"] == []
    assert tools.send("Page.getInstallabilityErrors") == {"installabilityErrors": []}
    known: list[str] = []
    tools.on(
        "ServiceWorker.workerRegistrationUpdated",
        lambda event: known.extend(one["registrationId"] for one in event["registrations"]),
    )
    tools.send("ServiceWorker.enable")
    assert page.evaluate(REGISTER) == f"{look.url}/"
    [worker] = page.context.service_workers
    worker.evaluate(
        "self.registration.showNotification = async (...shown) => { self.shown = shown; }"
    )
    message = {"title": "lr-3", "body": "is completed.", "tag": "s1", "path": "/runs/r1"}
    tools.send(
        "ServiceWorker.deliverPushMessage",
        {"origin": look.url, "registrationId": known[-1], "data": json.dumps(message)},
    )
    title, options = worker.evaluate(
        "new Promise((done) => setInterval(() => self.shown && done(self.shown), 20))"
    )
    assert (title, options["body"]) == ("lr-3", "is completed.")
    assert (options["tag"], options["data"]) == ("s1", "/runs/r1")
