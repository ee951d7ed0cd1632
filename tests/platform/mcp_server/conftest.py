from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lehr.client import Client
from lehr_testing.api import TOKEN, Api, served


@pytest.fixture
def lehr(tmp_path: Path) -> Iterator[tuple[Api, Client]]:
    with served(tmp_path / "home") as (api, address), Client(address, TOKEN) as client:
        yield api, client
