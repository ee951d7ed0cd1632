"""The types that the dashboard's JavaScript gives to answers of the API name fields that exist."""

from __future__ import annotations

import json
import re

import pytest

from lehr_testing.paths import ROOT

SCHEMAS = json.loads((ROOT / "docs/openapi.json").read_text())["components"]["schemas"]
TYPES = (ROOT / "api/lehr_api/dashboard/static/js/types.js").read_text()
TYPEDEFS = {
    name: re.findall(r"@property \{.+?\} \[?(\w+)", body)
    for name, body in re.findall(
        r"@typedef \{object\} (\w+)\n(.*?)(?=@typedef|\*/)", TYPES, re.DOTALL
    )
    if name in SCHEMAS
}


def test_types_of_runs_and_sweeps_are_generated() -> None:
    assert {"RunView", "SweepView", "RolloutView"} <= TYPEDEFS.keys()
    assert all(TYPEDEFS.values())


@pytest.mark.parametrize("name", TYPEDEFS)
def test_each_field_of_the_types_is_in_the_api(name: str) -> None:
    assert set(TYPEDEFS[name]) <= SCHEMAS[name]["properties"].keys()
