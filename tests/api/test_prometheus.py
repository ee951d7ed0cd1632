"""Prometheus metrics of the control plane; they need the token."""

from __future__ import annotations

import re

from prometheus_client.parser import text_string_to_metric_families

from lehr_testing.api import RUN_SPEC, api_client, begin, ingest, started


def test_prometheus_metrics_describe_the_control_plane(tmp_path):
    with api_client(tmp_path) as (api, client):
        ids = [client.post("/api/v1/runs", json={"spec": RUN_SPEC}).json()["id"] for _ in range(3)]
        ingest(api.store, begin(api.store, ids[0]), started())
        answer = client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        found = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(answer.text)
            for sample in family.samples
        }
        assert found["lehr_runs", "queued"] == 2
        assert found["lehr_runs", "running"] == 1
        assert found["lehr_runs", "failed"] == 0
        assert (found[("lehr_gpus",)], found[("lehr_gpus_busy",)]) == (8, 0)
        assert found[("lehr_attempts_open",)] == 1
        assert found["lehr_file_bytes", "lehr.db"] > 0
        assert found[("lehr_since_tick_seconds",)] == 2.5
        assert found["lehr_disk_free_bytes", "home"] > 0
        assert found[("process_resident_memory_bytes",)] > 0
        assert not re.search(ids[0], answer.text)
        bare = client.get("/metrics", headers={"Authorization": "Bearer wrong"})
        assert bare.status_code == 401
        assert "lehr_runs" not in bare.text
