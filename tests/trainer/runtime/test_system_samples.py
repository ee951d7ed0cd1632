"""Measurements of the node in the records of a run."""

from __future__ import annotations

import json
import os
import time

import pytest

from lehr_trainer.runtime import system_samples
from lehr_trainer.runtime.system_samples import FRESH_S, VARIABLE, SystemSamples

SAMPLE = {
    "host": {"cpu_utilization": 0.25, "odd": "text", "ram_used_bytes": 16},
    "gpus": {"2": {"utilization": 0.5, "power_watts": None}, "3": {"utilization": 1.0}},
}


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "system.json"
    path.write_text(json.dumps(SAMPLE))
    monkeypatch.setenv(VARIABLE, str(path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    return path


def test_record_gets_the_host_and_the_runs_own_gpus_from_time_to_time(file, monkeypatch):
    samples = SystemSamples()
    assert samples.due() == {
        "system/cpu_utilization": 0.25,
        "system/ram_used_bytes": 16.0,
        "system/gpu0_utilization": 1.0,
    }
    assert samples.due() == {}
    monkeypatch.setattr(system_samples, "EVERY_S", 0.0)
    assert SystemSamples().due() == (again := SystemSamples()).due() == again.due() != {}


@pytest.mark.parametrize("text", ["", "[]", '{"host": 1, "gpus": {}}', "null", None])
def test_file_that_is_missing_or_damaged_costs_no_record(file, text):
    if text is None:
        file.unlink()
    else:
        file.write_text(text)
    assert SystemSamples().due() == {}


def test_outdated_sample_is_left_out_and_so_are_all_outside_of_a_node(file, monkeypatch):
    old = time.time() - FRESH_S - 1
    os.utime(file, (old, old))
    assert SystemSamples().due() == {}
    monkeypatch.delenv(VARIABLE)
    assert SystemSamples().due() == {}
