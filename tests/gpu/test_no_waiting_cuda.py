"""An ordinary step of the whole loop never waits for the device (A22)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from lehr_trainer import launch, layout, machine
from lehr_trainer.assemble import assemble
from lehr_trainer.boundary import StopSignal
from lehr_trainer.config import TrainConfig
from lehr_trainer.distributed import Ranks
from lehr_trainer.session import Session
from lehr_trainer.streams import EventStream
from lehr_trainer.train import Training
from support.specs import text_corpus
from support.specs import train as train_values

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
]


def assembled(folder: Path, device: str, **changes: object) -> Training:
    values = train_values(text_corpus(folder / "texts"), steps=100, device=device, **changes)
    config = TrainConfig.model_validate(values)
    (folder / layout.CONFIG).write_text(yaml.safe_dump(config.model_dump(mode="json")))
    place = launch.find_place(folder, make_attempt=True)
    assert place is not None
    return assemble(
        Session(
            config=config,
            place=place,
            ranks=Ranks.join(config.device),
            events=EventStream(place.attempt_dir / layout.EVENTS),
            signals=StopSignal(),
            timeline=machine.Timeline(),
            say=lambda _line: None,
        )
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": {"compute": "bf16"}},
        {"precision": {"compute": "fp16"}},
        {"precision": {"compute": "bf16"}, "optimizer": {"name": "muon"}},
        {"precision": {"compute": "bf16"}, "skip_step": {"enabled": True}},
    ],
    ids=["bf16", "fp16", "muon", "skip-step"],
)
def test_steps_with_all_their_metrics_never_wait_for_the_device(
    changes: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEHR_DATA", str(tmp_path / "data"))
    diagnostics = {"parts_every": 1, "quality_every": 0, "sample": {"every": 0}}
    training = assembled(tmp_path, "cuda", diagnostics=diagnostics, **changes)
    with training.loader:
        training.wrapped.train()
        training.steplog.start_at(0)
        for _ in range(4):  # kernels and lazy state stand by then
            training.take_step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(6):
                training.take_step()
                assert training.boundary.agree(training.ranks).stop is None
        finally:
            torch.cuda.set_sync_debug_mode("default")
