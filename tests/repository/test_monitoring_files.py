"""The Prometheus and Grafana files use metrics, labels and values that the server has."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import combinations

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lehr.control.lifecycle import RunState
from lehr.control.liveness import Liveness
from lehr_testing.api import TOKEN, api_client, served
from lehr_testing.paths import ROOT
from lehr_testing.server import free_port
from lehr_testing.waiting import until

DEPLOY = ROOT / "deploy"
VALUES = {
    "state": {*RunState},
    "liveness": {*Liveness},
    "job": {"lehr"},
    "node": {"$node"},
    "folder": {"home", "runs"},
}
"""The values that a selector may name, by label."""
OF_PROMETHEUS = {"up"}


def dashboard():
    return json.loads((DEPLOY / "grafana" / "lehr.json").read_text())


def alerts():
    [group] = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"]
    return group["rules"]


def expressions():
    yield from (target["expr"] for panel in dashboard()["panels"] for target in panel["targets"])
    yield from (rule["expr"] for rule in alerts())


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """The names of all samples that the server can have."""
    with api_client(tmp_path_factory.mktemp("metrics")) as (_, client):
        families = text_string_to_metric_families(client.get("/metrics").text)
        return {
            family.name + suffix
            for family in families
            for suffix in (["_total"] if family.type == "counter" else [""])
        }


@pytest.mark.parametrize("expression", sorted(set(expressions())))
def test_expression_selects_what_the_server_has(expression, names):
    selectors = re.findall(r"\b([a-z_]+)\{(.*?)\}", expression)
    assert selectors
    for metric, labels in selectors:
        assert metric in names | OF_PROMETHEUS
        for label, _, values in re.findall(r'(\w+)(=~|!~|!=|=)"(.*?)"', labels):
            assert set(values.split("|")) <= VALUES[label], (label, values)
        assert 'job="lehr"' in labels


def test_panels_have_numbers_of_their_own_and_do_not_overlap():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart, (one, other)


def test_prometheus_reads_the_route_with_a_token_under_the_name_that_the_panels_select():
    [job] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    assert job["job_name"] == "lehr"
    assert job["metrics_path"] == "/metrics"
    assert job["authorization"]["type"] == "Bearer"


def program(name):
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture
def configured(tmp_path):
    """Copies of the files of Prometheus, whose token is at hand."""
    token = tmp_path / "lehr-token"
    token.write_text(TOKEN)
    text = (DEPLOY / "prometheus/prometheus.yml").read_text()
    assert "/etc/prometheus/lehr-token" in text
    path = tmp_path / "prometheus.yml"
    path.write_text(text.replace("/etc/prometheus/lehr-token", str(token)))
    shutil.copy(DEPLOY / "prometheus/alerts.yml", tmp_path)
    return path


def test_promtool_accepts_the_configuration_and_the_rules(configured):
    done = subprocess.run(
        [program("promtool"), "check", "config", str(configured)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(alerts())} rules found" in done.stdout


def test_promtool_accepts_what_the_server_answers(tmp_path):
    promtool = program("promtool")
    with api_client(tmp_path / "home") as (_, client):
        text = client.get("/metrics").text
    done = subprocess.run(
        [promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly  # test_expression_selects_what_the_server_has reads the same files.
def test_prometheus_scrapes_a_server_and_answers_every_panel(configured, tmp_path):
    prometheus, port = program("prometheus"), free_port()
    with served(tmp_path / "home") as (_, url):
        target = url.removeprefix("http://")
        text = configured.read_text().replace("127.0.0.1:5347", target)
        configured.write_text(text.replace("scrape_interval: 15s", "scrape_interval: 1s"))
        process = subprocess.Popen(
            [
                prometheus,
                f"--config.file={configured}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=30) as client:

                def query(expression):
                    found = client.get("/query", params={"query": expression}).json()
                    assert found["status"] == "success", (expression, found)
                    return found["data"]["result"]

                def is_up():
                    try:
                        return [one["value"][1] for one in query('up{job="lehr"}')] == ["1"]
                    except httpx.TransportError:
                        return False

                until(is_up, within_s=120, what="Prometheus to scrape the server")
                for expression in expressions():
                    query(expression.replace("$node", "n1").replace("$__rate_interval", "1m"))
                assert [one["value"][1] for one in query('lehr_gpus{job="lehr"}')] == ["8"]
                loaded = client.get("/rules").json()["data"]["groups"][0]["rules"]
                assert [rule["name"] for rule in loaded] == [rule["alert"] for rule in alerts()]
        finally:
            process.kill()
            process.wait(timeout=30)


def test_grafanas_own_library_keeps_all_of_the_dashboard():
    """Its reader drops what it does not know."""
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    plugins = pytest.importorskip("grafana_foundation_sdk.cog.plugins")
    encoder = pytest.importorskip("grafana_foundation_sdk.cog.encoder")
    plugins.register_default_plugins()
    read = models.Dashboard.from_json(dashboard())
    kept = json.loads(encoder.JSONEncoder().encode(read))
    assert missing(dashboard(), kept) == []


def missing(given, kept, path=""):
    """Return the paths of what is in ``given`` and not the same in ``kept``."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return [one for key in given for one in missing(given[key], kept.get(key), f"{path}.{key}")]
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        pairs = enumerate(zip(given, kept, strict=True))
        return [one for n, (a, b) in pairs for one in missing(a, b, f"{path}.{n}")]
    return [] if given == kept else [path]
