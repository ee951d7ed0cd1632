"""A config that cannot train is refused before a corpus is prepared, which may take hours."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from lehr_testing.assembled import assembled
from lehr_testing.specs import text_corpus
from lehr_testing.specs import train as train_values
from lehr_trainer.errors import BadConfig

HERE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"precision": {"fp8": {"recipe": "rowwise"}}}, "rowwise needs a GPU with FP8"),
        ({"attention": {"backend": "fa3"}}, "attention.backend: fa3"),
        ({"loss": {"name": "cce"}, "precision": {"compute": "bf16"}}, "loss.name: cce"),
        (
            {"parallel": {"static_graph": True}, "batch": {"sequences": 4, "sequence_length": 64, "micro_batch": 1}},
            "parallel.static_graph cannot be combined with gradient accumulation",
        ),
        (
            {"optimizer": {"name": "adamw8bit", "library": "bitsandbytes"}},
            "bitsandbytes",
        ),
    ],
    ids=["fp8", "fa3", "cce", "static-graph", "bitsandbytes"],
)  # fmt: skip
def test_config_that_cannot_train_is_refused_before_data_is_prepared(
    changes: dict[str, Any],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if HERE == "cuda" and not {"parallel", "batch", "optimizer"} & changes.keys():
        pytest.skip("this machine has what is asked for")
    whole = importlib.import_module

    def without_bitsandbytes(name: str, package: str | None = None) -> Any:
        if name.startswith("bitsandbytes"):
            raise ImportError("No module named 'bitsandbytes'")
        return whole(name, package)

    monkeypatch.setattr(importlib, "import_module", without_bitsandbytes)
    monkeypatch.setattr(
        "lehr_trainer.assemble.prepare_dataset",
        lambda *_, **__: pytest.fail("it prepared the corpus"),
    )
    values = train_values(text_corpus(tmp_path / "texts"), device=HERE, **changes)
    (tmp_path / "run").mkdir()
    with pytest.raises(BadConfig, match=says):
        assembled(tmp_path / "run", values)
