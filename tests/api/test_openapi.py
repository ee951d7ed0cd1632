"""The description of the API: complete, with valid examples, without URLs of other hosts."""

import json
import re

import pytest
from jsonschema import Draft202012Validator

from lehr_testing.api import api_client
from lehr_testing.paths import ROOT

OPEN = "/api/v1/health"


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    with api_client(tmp_path_factory.mktemp("home")) as (_, client):
        return client.get("/api/v1/openapi.json").json()


@pytest.fixture(scope="module")
def documented():
    """The published description: the same, and examples (tests/repository/test_docs.py)."""
    return json.loads((ROOT / "docs/openapi.json").read_text())


def operations(schema):
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", path, operation


def check(schema, part, value):
    components = {name: closed(one) for name, one in schema["components"]["schemas"].items()}
    document = {**part, "components": {"schemas": components}}
    Draft202012Validator(document).validate(value)


def closed(schema):
    """Return the schema with other fields forbidden, such as removed ones."""
    return schema if "properties" not in schema else {**schema, "additionalProperties": False}


def test_every_operation_has_a_summary_tags_and_an_example_of_its_answer(documented):
    found = list(operations(documented))
    assert len(found) >= 25
    for name, _, operation in found:
        assert operation["summary"], name
        assert operation["tags"], name
        [good] = [code for code in operation["responses"] if code.startswith("2")]
        content = operation["responses"][good]["content"]
        assert content, name
        for media in content.values():
            assert "example" in media, name


def test_every_example_is_valid_by_its_schema(documented):
    checked = 0
    for _, _, operation in operations(documented):
        for answer in operation["responses"].values():
            for media in answer.get("content", {}).values():
                if "example" in media:
                    check(documented, media["schema"], media["example"])
                    checked += 1
    assert checked > 60


def test_every_body_and_required_parameter_has_an_example(documented):
    for name, _, operation in operations(documented):
        for parameter in operation.get("parameters", []):
            if parameter["required"]:
                assert (
                    "example" in parameter
                    or "examples" in parameter
                    or parameter["schema"].get("examples")
                ), f"{name}: {parameter['name']}"
        for media, content in operation.get("requestBody", {}).get("content", {}).items():
            if media == "application/json":
                reference = content["schema"]["$ref"].rpartition("/")[2]
                body = documented["components"]["schemas"][reference]
                whole = content["schema"].get("examples", [{}])[0]
                for field in body.get("required", []):
                    example = body["properties"][field].get("examples")
                    assert example or field in whole, f"{name}: {field}"


def test_errors_are_described_as_problems(schema):
    for name, path, operation in operations(schema):
        if path == OPEN:
            continue
        codes = operation["responses"]
        assert "401" in codes, name
        for code, answer in codes.items():
            if code.startswith("4"):
                assert list(answer["content"]) == ["application/problem+json"], f"{name} {code}"


def test_every_operation_except_health_needs_a_token(schema):
    for name, path, operation in operations(schema):
        if path == OPEN:
            assert operation["security"] == []
        else:
            [need] = operation["security"]
            assert list(need) == ["attempt" if "/attempts/" in path else "token"], name


def test_operation_names_are_unique(schema):
    names = [operation["operationId"] for _, _, operation in operations(schema)]
    assert len(names) == len(set(names))


def test_description_has_no_urls_of_other_hosts(schema):
    # example.com is nobody's (RFC 2606).
    assert not re.findall(r"https?://(?!hooks\.example\.com/)[^\s\"]*", json.dumps(schema))
