"""The comparison page and the cluster page."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from lehr.analysis.idle_gpus import UNUSED
from lehr.control.lifecycle import RunState
from lehr.store.records.cluster import MACHINE
from lehr_testing import seeding
from lehr_testing.stores import begin

from .conftest import Lehr, Visit, World

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.browser


def test_runs_are_compared_at_a_step_that_all_have(look: Visit, world: World):
    ids = [world.runs[f"lr-grid-{n}"].id for n in (1, 3)]
    page = look.open(f"/compare?runs={','.join(ids)}")
    results = page.get_by_role("table", name="Results")
    expect(results).to_contain_text("val/loss at step 200")
    expect(results.locator("tbody tr").first).to_contain_text("baseline")
    expect(results.locator("tbody tr").nth(1)).to_contain_text("\u22122.")
    page.get_by_role("button", name="FLOPs").click()
    expect(results).to_contain_text("val/loss at FLOPs")
    expect(results.locator("tbody tr").nth(1)).to_contain_text("\u22122.")
    differences = page.get_by_role("table", name="Config differences")
    expect(differences).to_contain_text("train.optimizer.lr")

    # The whole table is in sight: tiny differences of speeds and repeated units take no room.
    room = page.locator(".results .scroll-x").last
    assert room.evaluate("(box) => box.scrollWidth - box.clientWidth") <= 0

    page.get_by_role("button", name="Make lr-grid-3 the baseline").click()
    expect(results.locator("tbody tr").first).to_contain_text("lr-grid-3")
    expect(results.locator("tbody tr").nth(1)).to_contain_text("+2.")


def test_groups_of_seeds_have_the_sentence_of_the_api(visit: Visit, lehr: Lehr):
    ids = []
    for name, rate, losses in (
        ("slow", 3e-4, (3.0, 3.01, 3.02)),
        ("fast", 9e-4, (2.9, 2.91, 2.92)),
    ):
        for seed, loss in enumerate(losses):
            run = lehr.store.runs.create(seeding.run_spec(f"{name}-{seed}", lr=rate, seed=seed))
            attempt = seeding.start(lehr.store, run)
            attempt.evaluate(100, loss)
            attempt.end(RunState.COMPLETED, 100)
            ids.append(run.id)
    page = visit.open(f"/compare?runs={','.join(ids)}")
    sentence = "fast-0 is better than slow-0 by 0.100 ± 0.023 (means of 3 seeds each)."
    expect(page.locator(".gap")).to_have_text(sentence)
    expect(page.get_by_text("slow-0: val/loss 3.010 ± 0.025 (mean of 3 seeds).")).to_be_visible()
    expect(page.get_by_text("± is half of the 95 % interval")).to_be_visible()
    page.get_by_role("button", name="Repeat fast-0 with other seeds").click()
    expect(page.get_by_role("dialog")).to_contain_text("The same spec, as a sweep over its seed")


def test_several_are_ranked_with_intervals_and_grouped_by_what_explains_them(
    visit: Visit, lehr: Lehr
):
    ids = []
    for n, (rate, decay) in enumerate(
        [(1e-4, 0.1), (1e-4, 0.1), (1e-3, 0.1), (1e-3, 0.2), (1e-2, 0.1)]
    ):
        optimizer = {"lr": rate, "weight_decay": decay}
        spec = seeding.run_spec(f"run-{n}", lr=rate, optimizer=optimizer, seed=n)
        run = lehr.store.runs.create(spec)
        attempt = seeding.start(lehr.store, run)
        attempt.train(range(1, 101), lr=rate, logs=False)
        attempt.end(RunState.COMPLETED, 100)
        ids.append(run.id)
    page = visit.open(f"/compare?runs={','.join(ids)}")
    expect(page.locator(".gap")).to_have_text(
        re.compile(r"run-\d is best by [\d.]+; 3 others; noise between seeds [\d.]+")
    )
    rows = page.get_by_role("table", name="Results").locator("tbody tr")
    losses = [float(text) for text in rows.locator("td b").all_inner_texts()]
    assert losses == sorted(losses)
    expect(rows.first.locator(".is-best")).to_have_text(f"{losses[0]:.3f}")
    expect(page.locator(".is-best")).to_have_count(1)
    page.get_by_role("combobox", name="colour").fill("weight_decay")
    page.keyboard.press("Enter")
    expect(page.locator(".colours .scale")).to_have_text("weight_decay0.10.2")
    page.wait_for_function(
        "() => new Set([...document.querySelectorAll('.results .dots circle')]"
        ".map((dot) => dot.getAttribute('fill'))).size === 2"
    )
    page.wait_for_function(
        """() => new Set(document.querySelector('[data-metric="train/loss"] .plot')?.figure?.traces
            .filter((t) => t.kind === "line").map((t) => t.colour)).size === 2"""
    )
    expect(page).to_have_url(re.compile("colour=weight_decay"))
    # One line for the baseline, and an interval for each run of another variant with a finite value.
    expect(rows.locator(".base")).to_have_count(5)
    expect(rows.locator(".bar")).to_have_count(3)
    both = rows.filter(has_text="run-3")
    both.get_by_role("button", name="Caution: run-0 and run-3 differ in 2 factors").focus()
    expect(page.locator(".said")).to_contain_text("cannot be attributed to one")
    expect(both).to_have_class(re.compile("lit"))
    rows.last.hover()  # What is said of it has another height, and moves no row.
    differs = page.get_by_role("table", name="Config differences").locator("tbody tr")
    expect(differs.first).to_contain_text("train.optimizer.lr")
    differs.first.get_by_role("button").press("Enter")
    groups = page.get_by_role("table", name="Groups")
    expect(groups.locator("tbody tr b")).to_have_text(["lr 1.0e-4", "lr 1.0e-3", "lr 0.01"])
    expect(page).to_have_url(re.compile("by=train.optimizer.lr"))
    page.get_by_role("button", name="each run").click()
    expect(groups).to_have_count(0)
    visit.open(f"/compare?runs={','.join(ids)}&by=tag")
    expect(groups.locator("tbody tr b")).to_have_text(["no tag"])


def test_of_many_the_first_have_rows_and_columns_that_fit_and_the_view_is_saved(
    visit: Visit, lehr: Lehr
):
    ids = []
    for n in range(34):
        changes = {"lr": 1e-4 * 1.1**n, "grad_clip": 1.0 + n % 2, "seed": n % 3}
        run = lehr.store.runs.create(seeding.run_spec(f"wide-{n}-of-a-long-name", **changes))
        attempt = seeding.start(lehr.store, run)
        attempt.evaluate(100, 3 + n / 100 if n else math.nan)
        attempt.end(RunState.COMPLETED, 100)
        ids.append(run.id)
    visit.page.set_viewport_size({"width": 390, "height": 844})
    page = visit.open(f"/compare?runs={','.join(ids)}")
    expect(page.locator(".gap")).to_contain_text(
        "wide-1-of-a-long-name is best by 0.01000; 32 others, 1 without a value"
    )
    results = page.get_by_role("table", name="Results")
    expect(results.locator("tbody tr")).to_have_count(31)
    expect(results.locator("tbody tr").last).to_contain_text("baseline")
    heads, room = results.locator("th"), page.locator(".results .scroll-x").last
    assert room.evaluate("(box) => box.scrollWidth - box.clientWidth") <= 0
    count = heads.count()
    page.get_by_role("button", name=re.compile("more columns")).click()
    expect(page.get_by_role("button", name="Fewer columns")).to_be_visible()
    assert heads.count() > count
    page.get_by_role("button", name="Show all 34").click()
    expect(results.locator("tbody tr")).to_have_count(34)
    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_text("View", exact=True).click()
    page.get_by_label("Save this view").fill("wide ones")
    page.keyboard.press("Enter")
    visit.open("/").locator("#runs-options").get_by_text("View", exact=True).click()
    page.get_by_role("link", name="wide ones").click()
    expect(page.get_by_role("heading", name="34 runs compared")).to_be_visible()


def test_a_run_is_added_by_name_while_the_others_still_load(look: Visit, world: World):
    held: list[Route] = []

    def hold(route: Route) -> None:
        if not held:
            held.append(route)
        else:
            route.continue_()

    look.page.route("**/api/v1/metrics?*", hold)
    page = look.open(f"/compare?runs={world.runs['lr-grid-1'].id},{world.runs['lr-grid-2'].id}")
    box = page.get_by_role("searchbox", name="Add a run")
    box.fill("lr-grid-3")
    while not held:
        page.wait_for_timeout(50)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="3 runs compared")).to_be_visible()
    expect(page.get_by_role("table", name="Results").locator("tbody tr")).to_have_count(3)

    # The response for two runs arrives last, and must not undo the selection.
    box.fill("lr-grid-1")
    for route in held:
        with page.expect_response(route.request.url):
            route.continue_()
    expect(page.get_by_role("table", name="Results").locator("tbody tr")).to_have_count(3)
    expect(page.get_by_role("heading", name="3 runs compared")).to_be_visible()
    expect(box).to_have_value("lr-grid-1")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("lr-grid-1 is already in the comparison.")


def test_the_cluster_page_shows_gpu_holders_and_pending_reasons(visit: Visit, lehr: Lehr):
    page = visit.open("/cluster")
    node = page.get_by_role("region", name="Node n1")
    expect(node).to_contain_text("8 \u00d7 NVIDIA A100-SXM4-80GB, 80 GB each; 64 CPUs")
    node.get_by_role("button", name="n1", expanded=False).click()
    expect(node).to_contain_text("Nothing is recorded yet")
    gpus = node.get_by_role("table", name="GPUs of n1").locator("tbody tr")
    expect(gpus.filter(has_text="free")).to_have_count(8)
    expect(page.get_by_text("Nothing waits.")).to_be_visible()

    run = lehr.store.runs.create(seeding.run_spec("big", gpus=2))
    lehr.store.runs.set_pending_reasons({run.id: "waits for 2 GPUs; next in line"})
    queue = page.get_by_role("table", name="Queue")
    expect(queue).to_contain_text("waits for 2 GPUs; next in line")
    seeding.start(lehr.store, run, gpus=[3, 4])
    expect(gpus.filter(has=page.get_by_role("link", name="big"))).to_have_count(2)
    for figure in ("97 %", "61.3 GB of 80 GB", "64 °C"):
        expect(gpus.nth(3)).to_contain_text(figure)
    # Nothing is known of the free ones here, which is not the same as idle.
    expect(gpus.nth(0)).to_contain_text("free———")
    expect(page.get_by_text("Nothing waits.")).to_be_visible()


def test_strip_of_a_node_says_what_each_gpu_did_and_opens_the_run(visit: Visit, lehr: Lehr):
    store = lehr.store
    store.cluster_spans.see({"n1": {"kind": "in use", "gpus": 8}, "": {"kind": "nothing queued"}})
    run = store.runs.create(seeding.run_spec("big", gpus=2))
    seeding.start(store, run, gpus=[3, 4])
    waits = store.runs.create(seeding.run_spec("waits"))
    page = visit.open("/cluster")
    strip = page.get_by_role("img", name="n1 over time")
    expect(strip.locator("path.held")).to_have_attribute(
        "d", re.compile(r"M[\d.]+ 18h[\d.]+v11.5h")
    )
    expect(page.get_by_role("img", name="queue over time")).to_have_text(waits.name)
    figures = page.locator("dl.figures")
    expect(figures).to_contain_text("busy GPUs2 of 8queue1 run, 1 GPUidle GPU-hours— nothing is")
    said = page.get_by_role("status").filter(has_text="n1, GPU")
    box = strip.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 5)
    expect(said).to_contain_text("not recorded: no server ran")
    page.get_by_text("Idle GPU-hours by").click()
    expect(page.get_by_role("table", name="Idle GPU-hours")).to_be_visible()
    page.mouse.move(1, 1)
    page.reload()
    strip.focus()
    expect(said).to_contain_text("GPU 0")
    for _ in range(3):
        page.keyboard.press("ArrowDown")
    expect(said).to_contain_text("GPU 3")
    expect(said).to_contain_text("big (default, user)")
    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{visit.url}/runs/{run.id}")


def test_curves_of_a_node_are_on_the_axis_of_its_strip_and_share_its_cursor(
    visit: Visit, lehr: Lehr
):
    store = lehr.store
    store.cluster_spans.see({"n1": {"kind": "in use", "gpus": 8}}, for_s=7200.0)
    low = {"kind": UNUSED, "node": "n1", "gpu": 0}
    store.cluster_spans.see({"n1 0": low}, for_s=3600.0)
    known = {"memory_used_bytes": 61e9, "temperature_celsius": 60.0, "power_watts": 90.0}
    use = {MACHINE: 0.25, 0: 0.02, 1: 0.9}
    store.node_minutes.add(
        [{"node": "n1", "gpu": gpu, "utilization": one, **known} for gpu, one in use.items()]
    )
    for number in range(40):
        run = store.runs.create(seeding.run_spec(f"short-{number}"))
        attempt = begin(store, run.id)
        store.attempts.update(attempt.id, exited_at=store.clock() + 90)
    broad = seeding.start(
        store, store.runs.create(seeding.run_spec("broad", gpus=8)), gpus=range(8)
    )
    store.attempts.update(broad.id, exited_at=store.clock() + 1200)
    page = visit.open("/cluster")
    strip = page.get_by_role("img", name="n1 over time")
    expect(strip.locator("text.none")).to_have_text(["broad"])
    expect(strip.locator(".unused")).to_have_attribute("height", "6")
    # An element for each colour, not for each of the 40 runs.
    assert 0 < strip.locator("path").count() <= 20
    page.get_by_role("button", name="n1", expanded=False).click()
    charts = page.locator(".node-curves .chart")
    names = ("gpu_utilization", "gpu_memory_used_bytes", "cpu_utilization", "ram_used_bytes")
    expect(charts.locator("h3")).to_have_text([f"system/{name}" for name in names])
    expect(charts.first.locator(".ytick")).to_have_text(["0%", "20%", "40%", "60%", "80%", "100%"])
    hours = page.locator(".strip-axis text:not(.strong)").all_text_contents()
    expect(charts.first.locator(".xtick")).to_have_text(hours)
    charts.first.locator(".plot").press("ArrowRight")
    said = page.get_by_role("status").filter(has_text="n1, ")
    expect(said).to_contain_text("GPU 0 2.0 %, GPU 1 90 %")
    place = strip.bounding_box()
    assert place is not None
    page.mouse.move(place["x"] + 0.1 * place["width"], place["y"] + 5)
    expect(charts.nth(2).locator(".read")).to_contain_text("—")
    # The strip and all curves show that time, at the same place of the page.
    lines = page.evaluate("""() => [
      ...[...document.querySelectorAll(".node-curves .cursor.on")].map((one) => one.getBoundingClientRect().x),
      (({ x, width }) => x + width * Number(document.querySelector("#cluster").style.getPropertyValue("--at")))(
        document.querySelector(".strip").getBoundingClientRect()),
    ]""")
    assert len(lines) == 5
    assert max(lines) - min(lines) <= 1.5
    page.get_by_role("button", name="n1", expanded=True).click()
    expect(charts.first).to_be_hidden()


def test_queue_has_expected_starts_and_its_priorities_can_be_changed(visit: Visit, lehr: Lehr):
    store = lehr.store
    first, second = (store.runs.create(seeding.run_spec(name)) for name in ("first", "second"))
    page = visit.open("/cluster")
    row = page.get_by_role("table", name="Queue").locator(f'tr[data-run="{second.id}"]')
    expect(row).to_contain_text(re.compile(r"in about (59 m|1 h) big-run ends: 600 steps left"))
    row.get_by_role("button", name="Change the priority of second").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("priority").fill("7")
    dialog.get_by_role("button", name="Change").click()
    expect(row.get_by_role("button", name="Change the priority of second")).to_have_text("7")
    assert store.runs.get(second.id).priority == 7
    assert store.runs.get(first.id).priority == 0
    page = visit.open(f"/runs/{second.id}")
    expect(page.locator("#run-head")).to_contain_text(
        re.compile(r"expected to start in about (59 m|1 h), when big-run ends: 600 steps left")
    )
