"""What the tests of the trainer's processes share."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run them in one worker: the process that imports torch, and is forked, is one a worker."""
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker(pytest.mark.xdist_group("forks"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of prepared data, shared by the runs of a file."""
    return tmp_path_factory.mktemp("prepared")
