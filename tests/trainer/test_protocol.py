"""What a trainer in an old capsule reads and writes stays as it is, or has another version."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any, get_args

from lehr_testing import goldens
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.contract import layout, protocol
from lehr_trainer.contract.manifest import FileEntry, Manifest
from lehr_trainer.contract.orders import LaunchNote, Orders
from lehr_trainer.contract.records import AnyRecord

GOLDEN = "protocol.json"
CONFIGS = [
    {"model": "tiny", "optimizer": {"name": "adamw"}},
    {"model": "gpt2", "optimizer": {"name": "muon"}},
]
ADVICE = (
    "Capsules of this version would not understand it. Leave a new field out at its default "
    "(exclude_if), or raise VERSION in lehr_trainer/contract/protocol.py. Then renew the golden: "
    f"{goldens.RENEW}=1 python -m pytest tests/trainer/test_protocol.py"
)


def paths(value: Any, above: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from paths(one, f"{above}{key}.")
    else:
        yield above.rstrip(".")


def now() -> dict[str, Any]:
    rest = {
        "steps": 100,
        "batch": {"sequences": 4, "sequence_length": 64},
        "data": {"corpus": {"kind": "stdlib"}, "tokenizer": "byte"},
    }
    dumped = [
        TrainConfig.model_validate({**one, **rest}).model_dump(mode="json") for one in CONFIGS
    ]
    models = (LaunchNote, Orders, Manifest, FileEntry, *get_args(get_args(AnyRecord)[0]))
    names = ("CONFIG", "EVENTS", "ORDERS", "LAUNCH", "CHECKPOINTS", "MANIFEST")
    return {
        "version": protocol.VERSION,
        "config": sorted({path for one in dumped for path in paths(one)}),
        "fields": {model.__name__: sorted(model.model_fields) for model in models},
        "names": {name: getattr(layout, name) for name in names},
    }


def test_exchange_with_older_trainers_is_unchanged_in_this_version() -> None:
    found = now()
    if os.environ.get(goldens.RENEW):
        goldens.check_json(GOLDEN, found)
    kept = json.loads((goldens.FOLDER / GOLDEN).read_text())
    assert found["version"] == kept["version"], ADVICE
    assert found["names"] == kept["names"], ADVICE
    added = set(found["config"]) - set(kept["config"])
    assert not added, f"config.yaml has new fields: {sorted(added)}. {ADVICE}"
    gone = {
        f"{model}.{field}"
        for model, fields in kept["fields"].items()
        for field in set(fields) - set(found["fields"].get(model, []))
    }
    assert not gone, f"these fields are gone: {sorted(gone)}. {ADVICE}"


def test_oldest_trainer_that_is_driven_is_not_newer_than_this_one() -> None:
    assert 1 <= protocol.OLDEST <= protocol.VERSION
