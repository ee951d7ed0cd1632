"""The pages of the dashboard and the files that they load."""

from __future__ import annotations

import gzip
import os
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from lehr_api.dashboard import assets
from lehr_api.dashboard.assets import STATIC
from lehr_api.dashboard.pages import PAGES, SECTIONS, DashboardPage


def test_modules_of_a_page_are_named_after_one_look_at_all_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []
    real = assets.digest

    def counted() -> str:
        looks.append(real())
        return looks[-1]

    monkeypatch.setattr(assets, "digest", counted)
    urls = assets.modules("js/pages/run.js")
    assert len(urls) > 10
    assert len(looks) == 1
    assert all(url.startswith(f"/static/{looks[0]}/") for url in urls)


def test_digest_is_another_when_a_file_changes_or_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "STATIC", tmp_path)
    monkeypatch.setattr(assets, "FRESH_S", 0.0)
    found = []
    for name, text in [("a.js", "1"), ("js/b.js", "2"), ("a.js", "longer"), ("notes.txt", "x")]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        found.append(assets.digest())
    assert len(set(found[:3])) == 3
    assert found[3] == found[2], "a file that no page uses does not count"


def test_a_module_is_sent_without_comments_and_indentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = '  /** @type {any} */ (let) a = "/** kept */"; // kept\n    // Why.\n'
    (tmp_path / "a.js").write_text(f"/**\n * Why.\n */\n{code}/** Why. */\n")
    monkeypatch.setattr(assets, "STATIC", tmp_path)
    answer = TestClient(assets.static_app()).get("/old/a.js")
    kept = '(let) a = "/** kept */"; // kept\n'
    assert answer.text == f"\n\n\n{kept}\n\n", "lines keep their numbers"


def test_no_text_of_a_module_goes_over_lines_which_lose_their_indentation() -> None:
    quoted = re.compile(
        r"""/\*\*.*?\*/|^ *//[^\n]*|"`"|/[^/\n]*\[\^`\][^\n]*/""", re.DOTALL | re.MULTILINE
    )
    for file in STATIC.rglob("*.js"):
        for line in quoted.sub("", file.read_text()).splitlines():
            assert line.count("`") % 2 == 0, (file, line)


def test_scripts_and_styles_leave_the_policy_to_their_page_and_others_have_it(api) -> None:
    client = api[1]
    policy = "content-security-policy"
    for name in ("js/api.js", "css/base.css"):
        headers = client.get(assets.static_url(name)).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not {policy, "x-frame-options", "referrer-policy"} & set(headers)
    for name in ("icon.svg", "js/service_worker.js"):
        assert client.get(assets.static_url(name)).headers[policy] == assets.POLICY[policy.title()]


def test_a_file_is_compressed_once_and_anew_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.js"
    file.write_text("1")
    monkeypatch.setattr(assets, "STATIC", tmp_path)
    compressed: list[bytes] = []

    def counted(body: bytes, **options: int) -> bytes:
        compressed.append(body)
        return real(body, **options)

    real = gzip.compress
    monkeypatch.setattr(gzip, "compress", counted)
    client = TestClient(assets.static_app())
    for _ in range(3):
        answer = client.get("/old/a.js")
        assert (answer.text, answer.headers["content-encoding"]) == ("1", "gzip")
    plain = client.get("/old/a.js", headers={"Accept-Encoding": "identity"})
    assert (plain.text, plain.headers.get("content-encoding")) == ("1", None)
    assert plain.headers["vary"] == "Accept-Encoding"
    assert compressed == [b"1"]
    file.write_text("22")
    os.utime(file, ns=(0, 1))
    assert client.get("/old/a.js").text == "22"
    file.unlink()
    assert client.get("/old/a.js").status_code == 404


def test_only_files_of_the_dashboard_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    static = tmp_path / "static"
    (static / "js").mkdir(parents=True)
    (static / "js/b.js").write_text("2")
    (static / "secret.txt").write_text("x")
    (tmp_path / "outside.js").write_text("x")
    monkeypatch.setattr(assets, "STATIC", static)
    client = TestClient(assets.static_app())
    answer = client.get("/any/js/b.js")
    assert (answer.status_code, answer.text) == (200, "2")
    assert answer.headers["content-type"].startswith("text/javascript")
    for path in ("/any/secret.txt", "/any/%2e%2e/outside.js", "/any/js/", "/any/none.js"):
        assert client.get(path).status_code == 404, path


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
