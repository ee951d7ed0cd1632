"""What a chart of a run's page has drawn."""

from __future__ import annotations

from playwright.sync_api import Page

LAST_STEP = """(name) => {
  const plot = document.querySelector(`[data-metric="${name}"] .plot`);
  return plot?.figure ? plot.figure.traces.at(-1).x.at(-1) : null;
}"""


def wait_for_step(page: Page, metric: str, step: float) -> None:
    """Wait until the metric's chart is drawn up to ``step``."""
    page.wait_for_function(
        f"([name, step]) => ({LAST_STEP})(name) === step", arg=[metric, step], timeout=20_000
    )


def traces(page: Page, metric: str) -> list[dict]:
    return page.evaluate(
        """(name) => document.querySelector(`[data-metric="${name}"] .plot`).figure.traces
            .map(({kind, dash, x, y, symbol}) => ({kind, dash, x, y, symbol}))""",
        metric,
    )
