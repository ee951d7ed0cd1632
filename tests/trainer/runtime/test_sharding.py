"""A sharded model is built, restored and saved without ever being whole on a rank."""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lehr_trainer.assemble import StepParts, build_parts
from lehr_trainer.checkpointing import checkpoint, optimizer_state, state
from lehr_trainer.checkpointing.saved_tensors import RankPart, SavedTensors
from lehr_trainer.checkpointing.staging import HostCopy
from lehr_trainer.configs.optimizer import EightBitAdamWConfig
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.diagnostics.memory_trace import _ranks
from lehr_trainer.diagnostics.phase_memory import PhaseMemory
from lehr_trainer.errors import BadConfig
from lehr_trainer.optim.adamw import build_eight_bit
from lehr_trainer.planning.counts import parameter_counts
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.runtime.sharding import (
    gathered_in_fp32,
    give_up_whole,
    own_parameters,
    rows_of_state,
    shards_of,
)

CPU = torch.device("cpu")
LLAMA = {"kind": "llama", "num_attention_heads": 32, "num_key_value_heads": 8}
LLAMA_8B = {
    **LLAMA, "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "max_sequence_length": 8192, "tie_embeddings": False,
}  # fmt: skip
LLAMA_25M = {
    **LLAMA, "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 2048,
    "num_hidden_layers": 5, "max_sequence_length": 64,
}  # fmt: skip


def build(model: dict[str, Any], world_size: int, **changes: Any) -> StepParts:
    with build_on(world_size, model, **changes) as parts:
        return parts


@contextmanager
def build_on(
    world_size: int, model: dict[str, Any], *, rank: int = 0, **changes: Any
) -> Iterator[StepParts]:
    """Build what a rank of so many has, while they exist; one rank has all."""
    batch = {"sequences": 64, "sequence_length": 64}
    parallel = {"shard": "all" if world_size > 1 else "none"}
    data = {"corpus": {"kind": "stdlib"}}
    values = {"device": "cpu", "steps": 4, "batch": batch, "parallel": parallel, "data": data}
    config = TrainConfig.model_validate({**values, "model": model, **changes}).on("cpu")
    with _ranks(world_size, CPU, rank) as ranks:
        yield build_parts(config, ranks, Precision.choose(config.precision, CPU))


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ({"preset": "tiny", "tie_embeddings": False}, {}),
        ({"preset": "tiny", "stable_embedding": True}, {}),
        ({"kind": "gpt2", "preset": "gpt2-tiny"}, {}),
        ({"preset": "tiny"}, {"precision": {"fp8": {"recipe": "tensorwise", "emulate": True}}}),
    ],
)
def test_first_weights_are_rows_of_an_unsharded_models(
    model: dict[str, Any], changes: dict[str, Any]
) -> None:
    whole, part = (build(model, ranks, **changes).model for ranks in (1, 8))
    shards, weights = shards_of(part), dict(whole.named_parameters())
    assert shards is not None
    assert shards.own.keys() == weights.keys()
    for name, own in shards.own.items():
        rows = shards.rows.get(name)  # None of a vector, which is whole.
        first, last = (0, None) if rows is None else (rows.first, rows.last)
        assert torch.equal(own, weights[name][first:last]), name
    buffers = dict(part.named_buffers())
    assert all(torch.equal(buffers[name], each) for name, each in whole.named_buffers())


class Sent(TorchDispatchMode):
    """Counts the bytes that this rank gives to gathers."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.c10d._allgather_base_.default:
            self.bytes += args[1].nbytes
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("shard", ["all", "optimizer"])
@pytest.mark.parametrize(("recipe", "width"), [("tensorwise", 1), ("rowwise", 4)])
def test_tensorwise_weights_of_a_pass_that_trains_are_gathered_in_a_byte(
    shard: Literal["all", "optimizer"], recipe: str, width: int
) -> None:
    def sent() -> int:
        with Sent() as gathers:
            model(torch.zeros(1, 16, dtype=torch.int64))
        return gathers.bytes

    values: dict[str, Any] = {
        "precision": {"fp8": {"recipe": recipe, "emulate": True}},
        "parallel": {"shard": shard},
    }
    with build_on(8, {"preset": "tiny"}, **values) as parts:
        model: Any = parts.model
        outer = parameter_counts(model.config).embedding // 8
        matrices = sum(own.numel() for own in own_parameters(model).values() if own.ndim > 1)
        for trains, bytes_of_a_weight in ((True, width), (False, 4), (True, width)):
            model.train(trains)
            if width == 4:  # What is whole in FP8 is given up when the mode changes.
                give_up_whole(model)
            assert sent() == 4 * outer + bytes_of_a_weight * (matrices - outer)


@pytest.mark.parametrize(
    ("changes", "gathered"),
    [
        ({"compute": "fp32"}, torch.float32),
        ({"compute": "bf16"}, torch.bfloat16),
        ({"compute": "fp16"}, torch.float16),
        ({"compute": "bf16", "fp8": {"recipe": "tensorwise", "emulate": True}}, torch.float32),
    ],
)
def test_blocks_are_gathered_as_autocast_rounds_them(
    changes: dict[str, Any], gathered: torch.dtype
) -> None:
    def gathers() -> list[torch.dtype]:
        model.layers[0].unshard()
        weights = model.layers[0].mlp.up_proj.weight, model.layers[0].input_layernorm.weight
        model.layers[0].reshard()
        model.unshard()
        dtypes = [weight.dtype for weight in (*weights, model.head_weight)]
        model.reshard()
        return dtypes

    with build_on(8, {"preset": "tiny"}, precision=changes) as parts:
        model: Any = parts.model
        assert gathers() == [gathered, torch.float32, torch.float32]
        with gathered_in_fp32(model):
            assert gathers() == [torch.float32] * 3
        assert gathers() == [gathered, torch.float32, torch.float32]


EIGHT_BITS = {"name": "adamw8bit"}


@pytest.mark.parametrize(
    ("size", "value"), [("hidden_size", 320), ("intermediate_size", 344), ("head_dim", 72)]
)
def test_rows_that_blocks_of_8_bits_would_cross_are_refused(size: str, value: int) -> None:
    name = "all heads of the model" if size == "head_dim" else f"model.{size}"
    length = 4 * value if size == "head_dim" else value
    model = {"preset": "tiny", "hidden_size": 256, "intermediate_size": 512, size: value}
    with pytest.raises(ValidationError, match=rf"but {name} has rows of {length}; use a multiple"):
        build(model, 2, optimizer=EIGHT_BITS)
    build(model, 1, optimizer=EIGHT_BITS)  # Alone it may.


def test_a_projects_matrix_with_such_rows_is_refused_by_its_name() -> None:
    with (
        build_on(2, {"preset": "tiny"}) as parts,
        pytest.raises(
            BadConfig,
            match=r"but layers\.0\.\S+ has rows of 128; use a multiple of 256, optimizer.name",
        ),
    ):
        build_eight_bit(parts.model, EightBitAdamWConfig())


@pytest.mark.parametrize(("rank", "world_size"), [(63, 64), (299, 300)])
@pytest.mark.parametrize("library", ["bitsandbytes", "torchao"])
def test_parts_have_the_8_bit_moments_of_the_whole(
    library: Literal["bitsandbytes", "torchao"], rank: int, world_size: int, tmp_path: Path
) -> None:
    """Of 64, each has too few values for 8 bits of its own; of 300 the last has none at all."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 1}
    model = {"preset": "tiny", **sizes}
    values = {"optimizer": {**EIGHT_BITS, "library": library}}

    def update(parts: StepParts) -> dict[str, Tensor]:
        for own in own_parameters(parts.model).values():
            own.grad = own.detach().clone()
        parts.optimizer.step()
        return optimizer_state.capture(parts.model, parts.optimizer)[1]

    def has_rows_of(whole: dict[str, Tensor], tensors: dict[str, Tensor]) -> None:
        rows, saved = rows_of_state(part.model, tensors), SavedTensors.of(whole)
        for name, own in rows.items():
            if own.first < own.last:
                assert torch.equal(tensors[name], saved.rows(name, own)), name

    with torch.compiler.set_stance("force_eager"):
        whole = build(model, 1, **values)
        first = {name: tensor.clone() for name, tensor in update(whole).items()}
        document, _ = optimizer_state.capture(whole.model, whole.optimizer)
        with build_on(world_size, model, rank=rank, **values) as part:
            has_rows_of(first, update(part))
            codes = sum(each.dtype == torch.uint8 for each in first.values())
            assert codes == 2 * 7
            again = build_eight_bit(part.model, EightBitAdamWConfig(library=library))
            optimizer_state.restore(tmp_path, part.model, again, document, SavedTensors.of(first))
            has_rows_of(update(whole), update(replace(part, optimizer=again)))
            has_rows_of(dict(whole.model.named_parameters()), own_parameters(part.model))


@pytest.mark.parametrize("ranks", [8, 64])
def test_build_takes_the_memory_of_a_ranks_part_and_one_weight(ranks: int) -> None:
    memory = PhaseMemory(CPU)
    with FakeTensorMode(), memory, memory.phase("build"):
        parts = build(LLAMA_8B, ranks)
    part = sum(4 * own.numel() for own in own_parameters(parts.model).values())
    tables = sum(buffer.nbytes for buffer in parts.model.buffers())
    largest = 4 * 128256 * 4096
    assert memory.readings()["build"].total == pytest.approx(part + largest + tables, rel=0.01)


def test_restore_and_save_take_the_host_memory_of_a_ranks_part(tmp_path: Path) -> None:
    """Each in a process of its own, as its greatest resident memory (VmHWM), of 25 M parameters."""
    context = multiprocessing.get_context("spawn")
    for act in (_save_whole, _restore_and_save_a_part):
        process = context.Process(target=act, args=(tmp_path,))
        process.start()
        process.join()
        assert process.exitcode == 0
    part, restored, saved = json.loads((tmp_path / "bytes.json").read_text())
    assert restored < 1.2 * part
    assert saved < 1.2 * part


def _write(directory: Path, parts: StepParts, part: RankPart | None = None, **tensors: Any) -> None:
    document = {
        "step": 1, "tokens": 1, "best_val_loss": None,
        "optimizer": optimizer_state.capture(parts.model, parts.optimizer)[0],
        "generators": [json.loads(state.save_generators())],
    }  # fmt: skip
    manifest = checkpoint.Manifest(step=1, tokens=1, val_loss=None, reason="order", code="")
    checkpoint.write_checkpoint(
        directory, tensors=tensors, documents={"state": document}, manifest=manifest, part=part
    )


def _update(parts: StepParts) -> None:
    for own in own_parameters(parts.model).values():
        own.grad = torch.ones_like(own)
    parts.optimizer.step()
    parts.optimizer.zero_grad()


def _save_whole(folder: Path) -> None:
    parts = build(LLAMA_25M, 1)
    _update(parts)
    tensors = state.all_tensors(parts.model, parts.optimizer, parts.update_step)
    _write(folder / "step-1", parts, **tensors)


def _restore_and_save_a_part(folder: Path) -> None:
    parts = build(LLAMA_25M, 4)
    before = _resident("VmRSS", reset=True)
    state.restore(folder / "step-1", model=parts.model, optimizer=parts.optimizer, rank=0)
    restored = _resident("VmHWM") - before
    _update(parts)
    tensors = state.all_tensors(parts.model, parts.optimizer, parts.update_step)
    rows = {n: r for t in tensors.values() for n, r in rows_of_state(parts.model, t).items()}
    before = _resident("VmRSS", reset=True)
    copied = HostCopy(CPU).take(tensors)
    _write(folder / "step-2", parts, RankPart(0, rows, True, lambda text: [text]), **copied)
    saved = _resident("VmHWM") - before
    part = sum(tensor.nbytes for named in tensors.values() for tensor in named.values())
    (folder / "bytes.json").write_text(json.dumps([part, restored, saved]))


def _resident(figure: str, *, reset: bool = False) -> int:
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(rf"{figure}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])
