"""Markup in every text of a worker and of a user, and metrics with names of JavaScript's own."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from lehr.control.lifecycle import RunState
from lehr.specs import SweepSpec, load_spec
from lehr_testing import seeding
from lehr_testing.api import begin, end, ingest, line, metrics, started

from .conftest import Lehr, Visit

pytestmark = pytest.mark.browser

LINK = "<a href='https://a.org/y'>log in again</a>"
MARKUP = f"<img src=//a.org/x onerror=\"document.title='owned'\">{LINK}<b>bold</b>"
NAMES = ("__proto__", "constructor", "toString", "hasOwnProperty", "valueOf")
TABS = ("curves", "samples", "checkpoints", "logs", "config", "events", "system")


def program_sweep() -> SweepSpec:
    """A sweep of a user's program: any text may be a metric, a parameter or a value."""
    trainer = {"script": "train.py", "args": {"text": "a"}, "steps": 200}
    spec = load_spec(
        {
            "kind": "sweep",
            "name": "grid",
            "metric": {"name": LINK},
            "parameters": {"trainer.args.text": {"values": [LINK, MARKUP]}},
            "run": {"name": "grid", "trainer": trainer, "code": {"include": ["."]}},
        }
    )
    assert isinstance(spec, SweepSpec)
    return spec


@pytest.fixture
def pages(lehr: Lehr) -> dict[str, str]:
    """A run that failed, one that trains, a sweep ranked by a metric with such a name."""
    sweep, trials = seeding.create_sweep(lehr.store, program_sweep())
    runs = [lehr.store.runs.create(seeding.run_spec("one", tags=[MARKUP[:60]])), *trials]
    values = dict.fromkeys((*NAMES, LINK, MARKUP, f"train/{MARKUP}"), 1.0)
    notice = {"message": MARKUP, "name": MARKUP, "text": MARKUP}
    for run in runs:
        attempt = begin(lehr.store, run.id)
        ingest(
            lehr.store,
            attempt,
            started()
            + metrics(1, 40)
            + line("warning", step=39, code="nan_loss", message=MARKUP)
            + line("warning", step=40, code=MARKUP, message=MARKUP)
            + line("sample", step=40, prompt=MARKUP, text=MARKUP)
            + line("notice", step=40, **notice)
            + line("metrics", step=41, tokens=41, values=values)
            + line("metrics", step=42, tokens=42, values=values),
        )
        ingest(lehr.store, attempt, MARKUP.encode() + b"\n", "rank-0.log")
        if run is not trials[0]:
            end(lehr.store, run.id, RunState.FAILED, MARKUP)
    lehr.store.runs.set_note(runs[0].id, MARKUP)
    return {
        **{tab: f"/runs/{runs[0].id}?tab={tab}" for tab in TABS},
        "live run": f"/runs/{trials[0].id}",
        "sweep": f"/sweeps/{sweep.id}",
        "sweeps": "/sweeps",
        "runs": "/",
        "compare": f"/compare?runs={runs[0].id},{trials[0].id}",
        "cluster": "/cluster",
    }


def test_markup_stays_text_on_every_page(visit: Visit, pages: dict[str, str]):
    for name, path in pages.items():
        page = visit.open(path)
        expect(page.locator("h1").first).to_be_visible()
        if name not in {"sweeps", "cluster"}:
            expect(page.locator("main")).to_contain_text("log in again")
        if name == "sweep":
            expect(page.locator("#sweep-figure")).to_contain_text(f"{LINK} at step 42")
        assert_is_text(page)


def assert_is_text(page: Page) -> None:
    assert page.title() != "owned"
    assert page.locator("img[src*='a.org']").count() == 0
    links = (
        "[...document.querySelectorAll('a')].map(a => [a.textContent, a.href.baseVal ?? a.href])"
    )
    elsewhere = [one for one in page.evaluate(links) if one[1].startswith("https://")]
    # A URL in a text is a link that shows where it leads.
    assert [href for text, href in elsewhere if text != href] == []
