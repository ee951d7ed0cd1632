"""Requests that nobody thought of: generated from the API's own description, bounded in number."""

from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lehr import Client
from lehr_api.app import create_app
from lehr_api.settings import Settings
from lehr_testing.api import RUN_SPEC, TOKEN, attempt_token, begin, metrics, say, served, started

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def api(tmp_path_factory):
    with served(tmp_path_factory.mktemp("home")) as (api, address):
        run = Client(address, TOKEN).submit(RUN_SPEC).id
        attempt = begin(api.store, run)
        say(api.store, attempt, started() + metrics(1, 5))
        say(api.store, attempt, b"hello\n", "rank-0.log")
        yield address, run, attempt


schema = schemathesis.openapi.from_dict(
    create_app(Settings(home=Path(), token=TOKEN)).openapi()
).exclude(path="/api/v1/stream")


@schema.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_whatever_is_asked_the_answer_is_one_that_is_described(case, api):
    address, run, attempt = api
    headers = {"Authorization": f"Bearer {TOKEN}"}
    if "attempt_id" in (case.path_parameters or {}):
        case.path_parameters["attempt_id"] = attempt
        headers |= {"Authorization": f"Bearer {attempt_token(run)}", "Lehr-Protocol": "1"}
    case.headers = {
        name: value for name, value in (case.headers or {}).items() if name.lower() not in headers
    }
    response = case.call(base_url=address, headers=headers)
    assert response.status_code < 500, response.text
    case.validate_response(
        response,
        checks=[
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
        ],
    )
