"""The Prometheus and Grafana files use metrics, labels and values that the server has."""

from __future__ import annotations

import json
import re
from itertools import combinations

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lehr.control.lifecycle import RunState
from lehr.control.liveness import Liveness
from lehr_testing.api import api_client
from lehr_testing.paths import ROOT

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
