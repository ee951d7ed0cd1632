"""What the tests of the trainer's processes share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of prepared data, shared by the runs of a file."""
    return tmp_path_factory.mktemp("prepared")
