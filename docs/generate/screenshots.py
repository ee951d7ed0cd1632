"""The README's screenshots, of real runs: the sweep of ``lehr demo``, and a rollout.

    python docs/generate/screenshots.py

It starts a server with a home of its own in a temporary folder, trains both, takes the pictures and
stops the server: some ten minutes on two cores. Of a server that has these runs already:

    python docs/generate/screenshots.py --server http://127.0.0.1:5347 --token-file ~/.lehr/token

Everything in the pictures comes from the server.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parents[1] / "images"
WIDTH, HEIGHT = 1400, 1010
FIGURE = "#sweep-figure svg"
CHART = ".chart-svg"
ROLLOUT = Path(__file__).parents[2] / "sweeps/rollout_small.yaml"
CHROMIUMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


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


class Server(NamedTuple):
    url: str
    token: str


@contextmanager
def trained(gpus: int = 8) -> Iterator[Server]:
    """Yield a server with a home of its own that has run the demo and a rollout."""
    with tempfile.TemporaryDirectory(prefix="lehr-") as home:
        others = {key: value for key, value in os.environ.items() if not key.startswith("LEHR_")}
        environment = {**others, "LEHR_HOME": home, "COLUMNS": "100"}

        def lehr(*arguments: str) -> str:
            print("lehr", *arguments, flush=True)
            command = [str(Path(sys.executable).parent / "lehr"), *arguments]
            done = subprocess.run(
                command, env=environment, check=True, stdout=subprocess.PIPE, text=True
            )
            return done.stdout

        started = json.loads(lehr("up", "--gpus", str(gpus), "--json"))
        try:
            lehr("demo")
            lehr("rollout", str(ROLLOUT), "-y", "-w")
            yield Server(started["url"], Path(started["token_file"]).read_text().strip())
        finally:
            lehr("down")


@contextmanager
def given(url: str, token_file: Path) -> Iterator[Server]:
    yield Server(url, token_file.read_text().strip())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--server", help="take them of this server, instead of one of its own")
    parser.add_argument("--token-file", type=Path, help="the token of --server")
    parser.add_argument("--sweep", default="lr-grid-small")
    parser.add_argument("--run", default="lr-grid-small-6")
    parser.add_argument("--rollout", default="rollout-small")
    parser.add_argument("--chromium", default=next(filter(shutil.which, CHROMIUMS), CHROMIUMS[0]))
    options = parser.parse_args()
    if options.server and not options.token_file:
        parser.error("--server needs --token-file")
    with given(options.server, options.token_file) if options.server else trained() as server:
        take_all(server, options)


def take_all(server: Server, options: argparse.Namespace) -> None:
    def get(path: str) -> dict[str, Any]:
        answer = httpx.get(
            f"{server.url}/api/v1/{path}",
            headers={"Authorization": f"Bearer {server.token}"},
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
            executable_path=shutil.which(options.chromium), args=["--no-sandbox"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(f"{server.url}/login")
        page.get_by_label("Token").fill(server.token)
        page.get_by_role("button", name="Log in").click()
        page.locator("#totals strong").first.wait_for()
        for shot in wanted:
            take(page, server.url, shot)
            print(IMAGES / shot.file)
        browser.close()


if __name__ == "__main__":
    main()
