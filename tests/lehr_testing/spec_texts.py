"""A small run and sweep as YAML, and the errors of texts like them."""

from pathlib import Path

import pytest

from lehr.errors import SpecError
from lehr.specs import load_spec
from lehr_testing.paths import DATA

RUN = (DATA / "run.yaml").read_text()
SWEEP = (DATA / "sweep.yaml").read_text()
PARAMETERS = "parameters:\n  train.optimizer.lr:\n    values: [1e-4, 1e-3]\n"
RANDOM = SWEEP.replace("method: grid", "method: random\ntrials: 2")
LIST = SWEEP.replace("method: grid", "method: list").replace(
    PARAMETERS, "points:\n  - {train.optimizer.lr: 1e-2}\n  - {train.optimizer.lr: 1e-3}\n"
)


def fields(model) -> str:
    """The part of an error that lists the fields of a model."""
    return f"Fields here: {', '.join(model.model_fields)}"


def message(tmp_path: Path, text: str, overrides=(), name="run.yaml") -> str:
    """The error's text with the file's folder left out."""
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(SpecError) as caught:
        load_spec(file, overrides)
    return str(caught.value).replace(f"{tmp_path}/", "")
