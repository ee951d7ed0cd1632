"""What the dashboard's pages cost a browser: real Chromium, real HTTP on loopback, 314 seeded runs.

    python tests/bench/dashboard.py [--width 1440] [--pages run sweep] [--live 60]

The server, its store and the browser share the machine's cores, so a page's cost is given as the
processor time of its own thread (Chromium's ``TaskDuration``), which other load hardly changes:
until the first content and until nothing more comes. ``CLS`` is the sum of all layout shifts without
input. ``small``: links, buttons and fields under 24 px. ``frame``: the 95th percentile of the times
between frames while the page is scrolled to its end; headless Chromium draws without a GPU. ``CPU
ms``: what the page's thread needed for a frame of it, which other load hardly changes. ``kB`` and
requests are those of a browser with an empty cache. ``--live``: a sweep of three trains for so
many seconds while its page is open; requests a minute, and by how much the heap grew.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from browser.conftest import CHROMIUM, log_in, new_context
from browser.test_screens import SMALL
from lehr.control.lifecycle import RunState
from lehr.store import Store
from lehr.store.tables import RunRow
from lehr_testing import seeding
from lehr_testing.api import served
from lehr_trainer.contract import records

SHIFTS = """() => { window.shifts = 0; new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true }); }"""
FRAMES = """() => new Promise((done) => {
  const times = [], end = document.scrollingElement.scrollHeight;
  let before = performance.now(), y = 0;
  const next = (now) => {
    times.push(now - before);
    before = now;
    y += 120;
    scrollTo(0, y);
    if (y < end && times.length < 400) requestAnimationFrame(next);
    else done(times.slice(1).sort((a, b) => a - b));
  };
  requestAnimationFrame(next);
})"""


class Place(NamedTuple):
    path: str
    first: str
    """A selector of its first content; ``last``: of what comes late."""
    last: str = "main"


def finish(store: Store, run: RunRow, steps: int, *, lost_at: int = 0) -> None:
    attempt = seeding.start(store, run)
    attempt.train(range(1, (lost_at or steps) + 1), logs=False)
    if lost_at:
        attempt.warn("nan_loss", f"loss became NaN at step {lost_at}", lost_at)
        attempt.end(RunState.FAILED, lost_at, cause="nan_loss", message="loss became NaN")
    else:
        attempt.end(RunState.COMPLETED, steps)


def fill(store: Store) -> dict[str, Place]:
    """Record 314 runs in three projects, and return the pages to open."""
    draw = random.Random(0)
    made: dict[str, str] = {}
    for i in range(230):
        lr = draw.choice([3e-4, 1e-3, 2e-3, 4e-3])
        project = ("ablations", "scaling", "data")[i % 3]
        spec = seeding.run_spec(f"scaling-{i}", lr=lr, steps=200, project=project, tags=["base"])
        made[spec.name] = (run := store.runs.create(spec)).id
        finish(store, run, 200, lost_at=60 if i % 17 == 0 else 0)
    for name, count in (("lr-grid", 6), ("seeds", 36), ("wide-random", 40)):
        rates = [1e-4 * 1.12**i for i in range(count)]
        sweep, trials = seeding.create_sweep(store, seeding.lr_sweep(name, rates, steps=200))
        made[name] = sweep.id
        for i, run in enumerate(trials):
            finish(store, run, 200, lost_at=40 if i >= 30 else 0)
    many = store.runs.create(seeding.run_spec("many-metrics", steps=200))
    attempt = seeding.start(store, many)
    attempt.train(range(1, 201))
    for step in range(1, 201, 10):
        values = {
            f"weight_norm/layer.{layer}.attn.{part}": 1.0 + layer / 10 + step / 1000
            for layer in range(72)
            for part in "qkvo"
        }
        record = records.Metrics(time=attempt.at, step=step, tokens=step, values=values)
        attempt.add_record(record)
    attempt.flush()
    made["many-metrics"] = many.id
    sweep, _ = seeding.create_sweep(store, seeding.lr_sweep("live", [1e-4, 3e-4, 1e-3], steps=4000))
    made["live"] = sweep.id
    twelve = ",".join(made[f"scaling-{i}"] for i in range(1, 13))
    row, chart = "tbody tr:not(.spacer)", ".chart-svg"
    return {
        "runs": Place("/", row, chart),
        "runs sorted": Place("/?sort=val", row, chart),
        "run": Place(f"/runs/{made['scaling-1']}", chart),
        "run, 289 metrics": Place(f"/runs/{many.id}", chart),
        "sweep of 6": Place(f"/sweeps/{made['lr-grid']}", "#sweep-figure svg", chart),
        "sweep of 40": Place(f"/sweeps/{made['wide-random']}", "#sweep-figure svg", chart),
        "compare 3": Place(f"/compare?runs={','.join(twelve.split(',')[:3])}", chart),
        "compare 12": Place(f"/compare?runs={twelve}", chart),
        "cluster": Place("/cluster", "main h2"),
        "live sweep": Place(f"/sweeps/{made['live']}", "main h1"),
    }


def spent(tools: CDPSession, name: str = "TaskDuration") -> float:
    metrics = tools.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == name))


def opened(
    browser: Browser, url: str, cookies: list[Any], place: Place, width: int
) -> dict[str, str]:
    """Open a page in a browser that knows nothing of it, and return what it cost."""
    context = new_context(browser, width=width)
    context.add_cookies(cookies)
    context.add_init_script(f"({SHIFTS})()")
    page = context.new_page()
    tools = context.new_cdp_session(page)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})
    tools.send("Network.enable")
    sizes: list[float] = []
    tools.on("Network.loadingFinished", lambda event: sizes.append(event["encodedDataLength"]))
    page.goto(url + place.path, wait_until="commit")
    page.locator(place.first).first.wait_for()
    first = spent(tools)
    page.locator(place.last).first.wait_for()
    quiet(page, sizes)
    row = {
        "requests": f"{len(sizes)}",
        "kB": f"{sum(sizes) / 1000:.0f}",
        "first CPU s": f"{first:.2f}",
        "CPU s": f"{spent(tools):.2f}",
        "CLS": f"{page.evaluate('window.shifts'):.3f}",
        "nodes": f"{page.locator('*').count():,}",
        "small": f"{len(page.evaluate(SMALL))}",
        "overflow px": f"{page.evaluate('document.documentElement.scrollWidth - innerWidth')}",
    }
    before = spent(tools)
    frames = page.evaluate(FRAMES)
    row["frame ms"] = f"{frames[int(len(frames) * 0.95)]:.0f}" if frames else "-"
    row["CPU ms"] = f"{(spent(tools) - before) * 1000 / max(1, len(frames)):.1f}"
    context.close()
    return row


def quiet(page: Page, sizes: list[float]) -> None:
    """Wait until nothing has come for a second and a half."""
    before = -1
    while len(sizes) != before:
        before = len(sizes)
        page.wait_for_timeout(1500)


def live(browser: Browser, url: str, cookies: list[Any], store: Store, place: Place, s: int) -> str:
    """Watch a sweep that trains."""
    ids = place.path.rpartition("/")[2]
    trials = [store.runs.get(trial.run_id) for trial in store.sweeps.trials(ids)]
    attempts = [seeding.start(store, run, gpus=[i]) for i, run in enumerate(trials)]
    ended = threading.Event()

    def train() -> None:
        step = 1
        while not ended.wait(1.0):
            for attempt in attempts:
                attempt.train(range(step, step + 5))
            step += 5

    context = new_context(browser)
    context.add_cookies(cookies)
    page = context.new_page()
    tools = context.new_cdp_session(page)
    tools.send("Performance.enable", {"timeDomain": "threadTicks"})
    requests: list[str] = []
    page.goto(url + place.path)
    page.wait_for_timeout(5000)
    page.on("request", lambda request: requests.append(request.url))
    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    page.wait_for_timeout(10_000)
    heap, began, cpu = collected(tools), time.monotonic(), spent(tools)
    requests.clear()
    page.wait_for_timeout(s * 1000)
    minutes = (time.monotonic() - began) / 60
    row = (
        f"{len(requests) / minutes:.0f} requests a minute, {(spent(tools) - cpu) / minutes:.1f} CPU s "
        f"a minute, heap {heap:.1f} -> {collected(tools):.1f} MB"
    )
    ended.set()
    thread.join()
    context.close()
    return row


def collected(tools: CDPSession) -> float:
    """Return the heap in MB without garbage."""
    tools.send("HeapProfiler.collectGarbage")
    return spent(tools, "JSHeapUsedSize") / 1e6


def table(rows: dict[str, dict[str, str]], say: Callable[[str], None] = print) -> None:
    heads = list(next(iter(rows.values())))
    say(f"{'page':18}" + "".join(f"{head:>13}" for head in heads))
    for name, row in rows.items():
        say(f"{name:18}" + "".join(f"{row[head]:>13}" for head in heads))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=1440, help="of the window, in pixels")
    parser.add_argument("--pages", nargs="+", help="only pages whose names begin so")
    parser.add_argument("--live", type=int, default=60, help="seconds of the live sweep; 0: none")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as home, served(Path(home) / "home") as (api, url):
        places = fill(api.store)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
            )
            first = new_context(browser)
            log_in(first.new_page(), url)
            cookies = first.cookies()
            first.close()
            table(
                {
                    name: opened(browser, url, cookies, place, options.width)
                    for name, place in places.items()
                    if not options.pages or name.startswith(tuple(options.pages))
                }
            )
            if options.live:
                place = places["live sweep"]
                print("live sweep:", live(browser, url, cookies, api.store, place, options.live))
            browser.close()


if __name__ == "__main__":
    main()
