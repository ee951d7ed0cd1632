"""The README's screenshots, taken from a server that has run ``lehr demo`` and a rollout.

    lehr demo && lehr rollout sweeps/rollout_small.yaml -y
    python docs/generate/screenshots.py --server http://127.0.0.1:5347 --token-file ~/.lehr/token \
        --sweep lr-grid-small --rollout rollout-small

They show real runs: everything in them comes from the server.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parents[1] / "images"
WIDTH, HEIGHT = 1400, 1010
FIGURE = ".js-plotly-plot .main-svg"
CHART = ".chart-svg"


class Shot(NamedTuple):
    file: str
    path: str
    scheme: str
    ready: str
    """A selector that is there once the page is drawn."""


def shots(sweep: dict[str, Any], run: dict[str, Any], rollout: dict[str, Any]) -> list[Shot]:
    """Return the shots: the sweep, its best run beside its neighbours, one run and the rollout."""
    trials = [trial["run"]["id"] for trial in sweep["trials"]]
    best = trials.index(sweep["best_run_id"])
    beside = ",".join(
        [trials[best], *trials[max(0, best - 1) : best], *trials[best + 1 : best + 2]]
    )
    return [
        Shot("runs.png", "/", "light", "tbody tr:not(.spacer)"),
        Shot("sweep.png", f"/sweeps/{sweep['id']}", "light", FIGURE),
        Shot("run-dark.png", f"/runs/{run['id']}?smooth=0.6", "dark", CHART),
        Shot("compare-dark.png", f"/compare?runs={beside}", "dark", CHART),
        Shot("rollout.png", f"/rollouts/{rollout['id']}", "light", "main h1"),
    ]


def take(page: Page, server: str, shot: Shot) -> None:
    page.emulate_media(color_scheme=shot.scheme)  # type: ignore[arg-type]
    page.goto(server + shot.path)
    page.locator(shot.ready).first.wait_for()
    page.wait_for_load_state("load")
    # Charts below the first screen are drawn after those above.
    page.wait_for_timeout(3_000)
    page.screenshot(path=IMAGES / shot.file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server", default="http://127.0.0.1:5347")
    parser.add_argument("--token-file", type=Path, required=True)
    parser.add_argument("--sweep", default="lr-grid-small")
    parser.add_argument("--run", default="lr-grid-small-6")
    parser.add_argument("--rollout", default="rollout-small")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    token = options.token_file.read_text().strip()

    def get(path: str) -> dict[str, Any]:
        answer = httpx.get(
            f"{options.server}/api/v1/{path}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
        )
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    wanted = shots(
        get(f"sweeps/{options.sweep}"),
        get(f"runs/{options.run}"),
        get(f"rollouts/{options.rollout}"),
    )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=options.chromium, args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(f"{options.server}/login")
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        page.locator("#totals strong").first.wait_for()
        for shot in wanted:
            take(page, options.server, shot)
            print(IMAGES / shot.file)
        browser.close()


if __name__ == "__main__":
    main()
