"""Skip a test whose kernel this machine lacks: the trainer's own message names what is missing."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from lehr_trainer.errors import BadConfig

MISSING = ("needs", "is not installed", "cannot be imported", "cannot be switched on")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    try:
        return (yield)
    except BadConfig as error:
        if any(words in str(error) for words in MISSING):
            pytest.skip(str(error))
        raise
