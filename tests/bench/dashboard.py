"""How soon the dashboard's pages can be used, in Chromium, with many runs and many points.

    python tests/bench/dashboard.py [--runs 1000 10000] [--curves 50] [--points 100000] [--tries 5]
                                    [--opens 1000] [--metrics 300] [--live 8]

Prints JSON. For the runs table: milliseconds from navigation to the first row, and to a checked
box (interactive); bytes of API answers; table rows in the page. For the chart: from navigation to
all curves drawn, with the server's own part (p95 of a series request) and the payload, and what
a move of the pointer over it costs, with its layout. For the metrics: from navigation to the visible
charts of a run with so many, and to the charts that a search leaves. For the live
sweep, whose trials log a step each second: the share of a core that the page's thread takes, and
that all of the browser's processes take, which draw without a GPU here. For the
opens: one tab goes round the pages so many times; what the server's process and the tab's
JavaScript hold after a tenth of it, when all is warm, and at the end. 0 leaves a part out.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import psutil
from playwright.sync_api import sync_playwright

from lehr_testing import seeding
from lehr_testing.api import TOKEN, served
from lehr_testing.browser import chromium
from lehr_trainer.contract import records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

    from lehr.store import Store

CHROMIUM = chromium()
API_CALLS = """() => performance.getEntriesByType("resource")
    .filter((one) => one.name.includes("/api/v1/") && one.initiatorType === "fetch")
    .map((one) => [one.name, one.responseEnd - one.requestStart, one.encodedBodySize])"""


def median(values: list[float]) -> float:
    return round(statistics.median(values), 1)


def p95(values: list[float]) -> float:
    return round(sorted(values)[math.ceil(0.95 * len(values)) - 1], 1)


def log_in(page: Page, url: str) -> None:
    page.goto(f"{url}/login")
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{url}/")


def runs_table(page: Page, url: str, newest: str, tries: int) -> dict[str, Any]:
    shown, usable, size = [], [], []
    for _ in range(tries):
        began = time.perf_counter()
        page.goto(f"{url}/", wait_until="commit")
        box = page.get_by_label(f"Select {newest}")
        box.wait_for()
        shown.append(1000 * (time.perf_counter() - began))
        box.check()
        usable.append(1000 * (time.perf_counter() - began))
        size.append(sum(call[2] for call in page.evaluate(API_CALLS)))
    return {
        "first_row_ms": median(shown),
        "interactive_ms": median(usable),
        "api_bytes": max(size),
        "rows_in_page": page.locator("tbody tr:not(.spacer)").count(),
    }


def long_runs(store: Store, count: int, points: int) -> list[str]:
    """Runs with one metric of so many points each."""
    ids = []
    for n in range(count):
        run = store.runs.create(seeding.run_spec(f"long-{n}", steps=points))
        attempt = seeding.start(store, run)
        for step in range(1, points + 1):
            attempt.add_record(
                records.Metrics(
                    time=attempt.at + step,
                    step=step,
                    tokens=step,
                    values={"train/loss": 3 + 9 / math.sqrt(step) + 0.1 * math.sin(step * (n + 1))},
                )
            )
        attempt.flush()
        ids.append(run.id)
    return ids


def chart(page: Page, url: str, ids: list[str], tries: int) -> dict[str, Any]:
    drawn, series, size = [], [], []
    for _ in range(tries):
        began = time.perf_counter()
        page.goto(f"{url}/compare?runs={','.join(ids)}&metric=train/loss", wait_until="commit")
        page.wait_for_function(
            """(count) => {
              const plot = document.querySelector('[data-metric="train/loss"] .plot');
              return plot?.figure?.traces.filter((trace) => trace.run).length === count;
            }""",
            arg=len(ids),
            timeout=120_000,
        )
        drawn.append(1000 * (time.perf_counter() - began))
        calls = [call for call in page.evaluate(API_CALLS) if "/series" in call[0]]
        series += [call[1] for call in calls]
        size.append(sum(call[2] for call in calls))
    return {
        "drawn_ms": median(drawn),
        "series_p95_ms": p95(series),
        "series_bytes": max(size),
        "hover_p95_ms": p95(page.evaluate(HOVER)),
        "hover_processor_ms": hover_processor_ms(page),
    }


def hover_processor_ms(page: Page) -> float:
    """Processor time of the page's thread for a move, which other work on the machine does not change."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> float:
        found = devtools.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in found if one["name"] == "TaskDuration"))

    before = spent()
    moves = len(page.evaluate(HOVER))
    return round(1000 * (spent() - before) / moves, 2)


HOVER = """() => {
  const plot = document.querySelector('[data-metric="train/loss"] .plot');
  plot.scrollIntoView({block: "center"});
  const box = plot.getBoundingClientRect();
  return Array.from({length: 200}, (_, i) => {
    const began = performance.now();
    plot.dispatchEvent(new PointerEvent("pointermove", {
      clientX: box.left + 70 + (i / 200) * (box.width - 100), clientY: box.top + 90, bubbles: true}));
    plot.getBoundingClientRect();
    return performance.now() - began;
  });
}"""


def many_metrics(page: Page, store: Store, url: str, count: int, tries: int) -> dict[str, Any]:
    """A run that logs so many metrics; its page, and a search among its charts."""
    run = store.runs.create(seeding.run_spec("many-metrics", steps=500))
    attempt = seeding.start(store, run)
    for step in range(1, 501):
        values = {f"layer.{n}/norm": n + math.sin(step / 20) for n in range(count)}
        attempt.add_record(
            records.Metrics(time=attempt.at + step, step=step, tokens=step, values=values)
        )
    attempt.flush()
    drawn, found = [], []
    for _ in range(tries):
        began = time.perf_counter()
        page.goto(f"{url}/runs/{run.id}", wait_until="commit")
        page.locator(".chart-svg").first.wait_for()
        drawn.append(1000 * (time.perf_counter() - began))
        began = time.perf_counter()
        page.get_by_role("searchbox", name="Search charts").fill(rf"^layer\.{count - 1}/")
        page.locator(f'[data-metric="layer.{count - 1}/norm"] .chart-svg').wait_for()
        found.append(1000 * (time.perf_counter() - began))
    return {"drawn_ms": median(drawn), "found_ms": median(found)}


def live(page: Page, store: Store, url: str, trials: int, seconds: int = 30) -> dict[str, Any]:
    """The page of a sweep whose trials log a step each second: processor time of the browser."""
    rates = [1e-4 * 1.5**n for n in range(trials)]
    sweep, runs = seeding.create_sweep(store, seeding.lr_sweep("live", rates, steps=100_000))
    attempts = [seeding.start(store, run, gpus=[n]) for n, run in enumerate(runs)]
    for attempt in attempts:
        attempt.train(range(1, 301))
    page.goto(f"{url}/sweeps/{sweep.id}")
    page.locator(".chart-svg").first.wait_for()
    page.wait_for_timeout(3000)
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def spent() -> tuple[float, float]:
        found = {m["name"]: m["value"] for m in devtools.send("Performance.getMetrics")["metrics"]}
        children = psutil.Process().children(recursive=True)
        browser = [one for one in children if "chrom" in one.name() or "headless" in one.name()]
        assert browser
        return found["TaskDuration"], sum(sum(one.cpu_times()[:2]) for one in browser)

    before, began = spent(), time.perf_counter()
    for second in range(seconds):
        for attempt in attempts:
            attempt.train([301 + second])
        page.wait_for_timeout(max(1.0, 1000 * (began + second + 1 - time.perf_counter())))
    after, took = spent(), time.perf_counter() - began
    return {
        "page_thread_share_of_a_core": round((after[0] - before[0]) / took, 3),
        "browser_share_of_a_core": round((after[1] - before[1]) / took, 3),
    }


APART = """
import sys
from pathlib import Path
from lehr_testing.api import served
with served(Path(sys.argv[1])) as (api, url):
    print(url, flush=True)
    sys.stdin.read()
"""


@contextmanager
def served_apart(home: Path) -> Iterator[tuple[str, int]]:
    """A server in a process of its own: its address and process id.

    This process remembers each request for Playwright, which is no growth of the server's.
    """
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(
        [sys.executable, "-c", APART, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip(), server.pid
    finally:
        server.stdin.close()
        server.wait(timeout=60)


def opens(page: Page, url: str, count: int, pid: int) -> dict[str, Any]:
    """Memory in MB after a tenth of the opens and at the end; ``pid`` is the server's."""
    runs = page.request.get(f"{url}/api/v1/runs?limit=4").json()["items"]
    ids = [run["id"] for run in runs]
    first = f"/runs/{ids[0]}"
    paths = ["/", first, f"{first}?tab=config", f"/compare?runs={','.join(ids)}", "/sweeps"]
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable")
    process = psutil.Process(pid)

    def held() -> dict[str, float]:
        devtools.send("HeapProfiler.collectGarbage")
        found = {m["name"]: m["value"] for m in devtools.send("Performance.getMetrics")["metrics"]}
        return {
            "server_rss_mb": round(process.memory_info().rss / 1e6, 1),
            "page_heap_mb": round(found["JSHeapUsedSize"] / 1e6, 1),
            "page_nodes": int(found["Nodes"]),
        }

    result: dict[str, Any] = {}
    for n in range(1, count + 1):
        page.goto(url + paths[n % len(paths)])
        page.locator("#totals strong").first.wait_for()
        if n % max(1, count // 10) == 0:
            page.goto(f"{url}/")
            page.get_by_role("checkbox").nth(1).wait_for()
            now = held()
            print(f"{n} opens: {now}", file=sys.stderr, flush=True)
            if n in {count // 10, count}:
                result[f"after {n}"] = now
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="*", default=[1000, 10000])
    parser.add_argument("--curves", type=int, default=50)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--opens", type=int, default=1000)
    parser.add_argument("--metrics", type=int, default=300)
    parser.add_argument("--live", type=int, default=8)
    args = parser.parse_args()
    result: dict[str, Any] = {"load": [round(one, 1) for one in os.getloadavg()]}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"],
        )
        for count in args.runs:
            with tempfile.TemporaryDirectory() as home:
                with served(Path(home)) as (api, url):
                    with api.store.transaction():
                        for n in range(count):
                            api.store.runs.create(seeding.run_spec(f"bulk-{n:05d}"))
                    for run in api.store.runs.page(limit=100).items:
                        seeding.start(api.store, run).train(range(1, 25), logs=False)
                    page = browser.new_page(viewport={"width": 1400, "height": 900})
                    log_in(page, url)
                    newest = f"bulk-{count - 1:05d}"
                    result[f"runs table, {count}"] = runs_table(page, url, newest, args.tries)
                    page.close()
                if count == min(args.runs) and args.opens:
                    with served_apart(Path(home)) as (url, pid):
                        page = browser.new_page(viewport={"width": 1400, "height": 900})
                        log_in(page, url)
                        result[f"{args.opens} page opens"] = opens(page, url, args.opens, pid)
                        page.close()
        if args.curves:
            with tempfile.TemporaryDirectory() as home, served(Path(home)) as (api, url):
                ids = long_runs(api.store, args.curves, args.points)
                page = browser.new_page(viewport={"width": 1400, "height": 900})
                log_in(page, url)
                name = f"chart, {args.curves} runs x {args.points} points"
                result[name] = chart(page, url, ids, args.tries)
        if args.metrics:
            with tempfile.TemporaryDirectory() as home, served(Path(home)) as (api, url):
                page = browser.new_page(viewport={"width": 1400, "height": 900})
                log_in(page, url)
                name = f"run with {args.metrics} metrics"
                result[name] = many_metrics(page, api.store, url, args.metrics, args.tries)
        if args.live:
            with tempfile.TemporaryDirectory() as home, served(Path(home)) as (api, url):
                page = browser.new_page(viewport={"width": 1400, "height": 900})
                log_in(page, url)
                result[f"live sweep of {args.live}"] = live(page, api.store, url, args.live)
        browser.close()
    result["load_after"] = [round(one, 1) for one in os.getloadavg()]
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
