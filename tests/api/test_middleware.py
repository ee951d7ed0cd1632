"""A body has a limit for its size, whether it is stated or comes in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from lehr_api.middleware import OPEN_LIMIT
from lehr_testing.api import served


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path) as (_, url):
        yield url


@pytest.mark.parametrize("size", ["stated", "pieces"])
def test_login_has_a_small_limit(url: str, size: str) -> None:
    body = b"x" * (OPEN_LIMIT + 1)
    content = body if size == "stated" else iter([body[:100], body[100:]])
    answer = httpx.post(f"{url}/login", content=content)
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
