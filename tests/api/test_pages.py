"""The pages of the dashboard: each row of the table has its address and module."""

from __future__ import annotations

import pytest

from lehr_api.dashboard.assets import STATIC
from lehr_api.dashboard.pages import PAGES, SECTIONS, DashboardPage

BY_NAME = {page.name: page for page in PAGES}


def shown(client, page: DashboardPage) -> str:
    address = page.address.replace("{", "").replace("}", "")
    answer = client.get(address, headers={"Accept": "text/html"})
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.mark.parametrize("name", BY_NAME)
def test_page_loads_its_module_and_marks_its_section(api, name):
    page, html = BY_NAME[name], shown(api[1], BY_NAME[name])
    assert (STATIC / f"js/pages/{name}.js").is_file()
    assert f"/js/pages/{name}.js" in html
    [current] = [line for line in html.splitlines() if 'aria-current="page"' in line]
    assert page.section in {one.name for one in SECTIONS}
    assert f">{page.section.title()}<" in current


def test_page_without_a_template_of_its_own_has_a_heading_and_a_place_for_its_module(api):
    html = shown(api[1], BY_NAME["cluster"])
    assert "<title>Cluster · Lehr</title>" in html
    assert '<h1 class="unseen">Cluster</h1>' in html
    assert '<div id="cluster">' in html
