"""Maintenance windows on the cluster's page: declared, listed, open and removed."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from .conftest import Lehr, Visit

pytestmark = pytest.mark.browser


def test_window_is_declared_from_the_page_and_removed(visit: Visit, lehr: Lehr):
    page = visit.open("/cluster")
    expect(page.get_by_text("No maintenance is declared.")).to_be_visible()
    page.get_by_role("button", name="Declare maintenance").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("combobox", name="nodes").select_option("n1")
    in_a_week = time.localtime(time.time() + 7 * 86_400)
    dialog.get_by_label("from in the time zone").fill(time.strftime("%Y-%m-%dT02:00", in_a_week))
    dialog.get_by_role("spinbutton", name="hours").fill("2.5")
    dialog.get_by_role("combobox", name="repeat").select_option("weekly")
    dialog.get_by_role("textbox", name="note").fill("new <b>drivers</b>")
    dialog.get_by_role("button", name="Declare").click()
    row = page.get_by_role("table", name="Maintenance").locator("tbody tr")
    expect(row).to_have_count(1)
    expect(row).to_contain_text(re.compile(r"n1coming.*02:00.*04:30weeklynew <b>drivers</b>user"))
    (stored,) = lehr.store.maintenance.all()
    assert (stored.node, stored.duration_s, stored.repeat) == ("n1", 9000.0, "weekly")

    page.get_by_role("button", name=f"Remove maintenance {stored.id}").click()
    page.get_by_role("dialog").get_by_role("button", name="Back").click()
    expect(row).to_have_count(1)
    page.get_by_role("button", name=f"Remove maintenance {stored.id}").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No maintenance is declared.")).to_be_visible()
    assert lehr.store.maintenance.all() == []


def test_refused_window_keeps_its_dialog_with_the_reason(visit: Visit, lehr: Lehr):
    page = visit.open("/cluster")
    page.get_by_role("button", name="Declare maintenance").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("from in the time zone").fill("2020-01-01T00:00")
    dialog.get_by_role("button", name="Declare").click()
    expect(dialog.get_by_role("alert")).to_contain_text("it must be within two years of now")
    expect(dialog.get_by_label("from in the time zone")).to_have_value("2020-01-01T00:00")
    assert lehr.store.maintenance.all() == []
    visit.watch.console = [line for line in visit.watch.console if "422" not in line]


def test_free_gpus_of_a_node_in_maintenance_are_not_given_out(visit: Visit, lehr: Lehr):
    page = visit.open("/cluster")
    node = page.get_by_role("region", name="Node n1")
    expect(node.locator(".gpu.free")).to_have_count(8)
    lehr.store.maintenance.add(
        node="n1",
        starts_at=lehr.store.clock() - 60,
        duration_s=7200,
        repeat=None,
        note="new drivers",
        actor="user",
    )
    expect(node).to_contain_text(re.compile(r"in maintenance until .*: new drivers"))
    expect(node.locator(".gpu.free")).to_have_count(0)
    expect(node.locator(".gpu.gone").first).to_contain_text("not given out")
    expect(page.get_by_role("table", name="Maintenance")).to_contain_text("open")
