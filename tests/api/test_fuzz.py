"""Random requests, generated from the description of the API, limited in number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from lehr import Client
from lehr_testing.api import RUN_SPEC, TOKEN, attempt_token, begin, ingest, metrics, served, started
from lehr_testing.paths import ROOT
from lehr_testing.properties import examples

pytestmark = [pytest.mark.hypothesis, pytest.mark.timeout(600)]

# A stream has no end that a generated request could wait for.
STREAM = "/api/v1/stream"
# Read from the file: the tests are collected in every process, and the app's own takes seconds.
OPERATIONS = [
    f"{method.upper()} {path}"
    for path, methods in json.loads((ROOT / "docs/openapi.json").read_text())["paths"].items()
    for method in methods
    if path != STREAM
]


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with served(tmp_path_factory.mktemp("home")) as (api, address):
        run = Client(address, TOKEN).submit(RUN_SPEC).id
        attempt = begin(api.store, run)
        ingest(api.store, attempt, started() + metrics(1, 5))
        ingest(api.store, attempt, b"hello\n", "rank-0.log")
        yield address, run, attempt


@pytest.fixture(scope="module")
def operations():
    """Every operation that the app describes, by its method and path."""
    import schemathesis

    from lehr_api.app import create_app
    from lehr_api.settings import Settings

    @schemathesis.serializer("application/x-tar")
    def archive(_context, value):
        return value if isinstance(value, bytes) else str(value).encode()

    described = create_app(Settings(home=Path(), token=TOKEN)).openapi()
    schema = schemathesis.openapi.from_dict(described).exclude(path=STREAM)
    found = [result.ok() for result in schema.get_all_operations()]
    return {operation.label: operation for operation in found}


def test_every_operation_of_the_app_is_fuzzed(operations):
    assert sorted(OPERATIONS) == sorted(operations)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_answer_matches_the_openapi_description(operation, operations, api):
    from schemathesis.specs.openapi.checks import (
        content_type_conformance,
        response_schema_conformance,
        status_code_conformance,
    )

    address, run, attempt = api

    @given(case=operations[operation].as_strategy())
    @settings(
        max_examples=examples(6),
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case):
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if "attempt_id" in (case.path_parameters or {}):
            case.path_parameters["attempt_id"] = attempt
            headers |= {"Authorization": f"Bearer {attempt_token(run)}", "Lehr-Protocol": "1"}
        case.headers = {
            name: value
            for name, value in (case.headers or {}).items()
            if name.lower() not in headers
        }
        response = case.call(base_url=address, headers=headers)
        assert response.status_code < 500, response.text
        case.validate_response(
            response,
            checks=[status_code_conformance, content_type_conformance, response_schema_conformance],
        )

    ask()
