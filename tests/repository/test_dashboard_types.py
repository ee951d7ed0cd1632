"""The types of the dashboard's JavaScript are written from the schemas of the API."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Literal

import pytest
from pydantic import computed_field

from lehr.schemas.base import Measured, View
from lehr_testing.paths import ROOT


@pytest.fixture(scope="module")
def js_types():
    sys.path.insert(0, str(ROOT / "docs" / "generate"))
    try:
        yield importlib.import_module("js_types")
    finally:
        sys.path.pop(0)


class Gpu(View):
    node: str


class Example(View):
    kind: Literal["a", "b"]
    gpus: list[Gpu] = []
    loss: Measured | None = None
    losses: list[Measured | None] = []
    spec: dict[str, Any]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def first(self) -> Gpu | None:
        return next(iter(self.gpus), None)


def test_each_field_of_a_schema_has_its_type(js_types):
    assert js_types.declaration(Example) == (
        "\nexport interface Example {\n"
        '  kind: "a" | "b";\n'
        "  gpus: Gpu[];\n"
        "  loss: WireNumber | null;\n"
        "  losses: (WireNumber | null)[];\n"
        "  spec: Record<string, any>;\n"
        "  first: Gpu | null;\n"
        "}\n"
    )


def test_type_without_a_counterpart_is_an_error(js_types):
    with pytest.raises(TypeError, match=r"no JavaScript type for .*bytes"):
        js_types.typed(bytes)


def test_types_that_the_dashboard_names_are_written_with_their_parts(js_types):
    page = js_types.page()
    for name in ("RunView", "SweepView", "RolloutView", "GpuRef", "WireNumber"):
        assert f" {name} " in page
    assert " SystemInfo " not in page
