"""Trace the memory of a config's training step without using that memory.

The real step runs on fake tensors.

A fake tensor has a shape, a type and a device, but no values (``FakeTensorMode``). The step is the
trainer's own ``TrainStep``; ``PhaseMemory`` reads what exists in each phase. With several ranks the
model is wrapped in DDP over a process group that sends nothing.

The device is CUDA if the run is for CUDA, torch can use a GPU and nothing is compiled; else a CPU.
A fake CUDA tensor without a GPU is of no use: torch turns autocast off, and a build without CUDA
aborts in the first backward pass. Compiled code runs as Inductor's program for a CPU
(phase_memory.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._prims import rng_prims
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from lehr_trainer.assemble import build_parts, prepare_model
from lehr_trainer.checkpointing.staging import layout_of
from lehr_trainer.checkpointing.state import all_tensors
from lehr_trainer.configs.optimizer import EightBitAdamWConfig
from lehr_trainer.configs.stages import as_built, sharing_problem
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.course import accumulates
from lehr_trainer.diagnostics.diagnostics_logger import Batch
from lehr_trainer.diagnostics.phase_memory import (
    PhaseMemory,
    compiled_on_fake_tensors,
    storage_bytes,
)
from lehr_trainer.errors import BadConfig
from lehr_trainer.evaluate import held_out_losses
from lehr_trainer.losses.chunked import LossSum
from lehr_trainer.models.attention import attention_backend, require_operands
from lehr_trainer.models.documents import make_input_fn
from lehr_trainer.models.fp8 import require_fp8
from lehr_trainer.planning.layers import GPUS_OF_A_NODE
from lehr_trainer.planning.memory import PHASES, MemoryMoment
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.train import TrainStep
from lehr_trainer.weight_average import weights_kept

_MOST_MICRO_STEPS = 2
"""The second micro-batch meets the gradients of the first; each further one is like the second."""

Shape = tuple[int, int]


@dataclass(frozen=True)
class StageTrace:
    """The memory that a step with micro-batches of one shape [B, T] takes on a rank."""

    stage: str
    """Its name; empty in a run without stages."""
    shape: Shape
    phases: dict[str, MemoryMoment]
    """resting, forward (what is kept for backward), loss, backward, optimizer, evaluation."""

    @property
    def peak(self) -> MemoryMoment:
        return max(self.phases.values(), key=lambda reading: reading.total)


@dataclass(frozen=True)
class MemoryTrace:
    device: str
    """cuda or cpu; fake."""
    config: TrainConfig
    """What was traced, complete; the plan's formula for it is comparable."""
    world_size: int
    checkpoint_copy: int
    """Bytes of host memory for the copy that asynchronous saves write from; 0 if saves block."""
    stages: tuple[StageTrace, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def peak(self) -> int:
        return max(stage.peak.total for stage in self.stages)


def trace_memory(config: TrainConfig, world_size: int = 1) -> MemoryTrace:
    """Trace the steps of one of ``world_size`` ranks: of each stage one for each shape of a
    micro-batch.

    Raises:
        BadConfig: the ranks cannot share a batch, or this machine cannot trace the config.
    """
    if problem := sharing_problem(config.spans, world_size):
        raise BadConfig(problem)
    # In this order, CUDA is not initialized for a run on the CPU.
    on_gpu = config.device != "cpu" and not _compiles(config) and torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    config, notes = traceable(config, device.type)
    precision = Precision.choose(config.precision, device)
    windows = any(config.model.windows)
    require_operands(config.attention, precision.operands, device, windows=windows)
    traces = []
    with _ranks(world_size, device) as ranks, attention_backend(config.attention, device):
        for span, own in as_built(config):
            traces.append(_Tracer(own, ranks, precision, span.name).trace())
    shapes = tuple(stage for trace in traces for stage in trace.stages)
    return replace(traces[0], config=config, stages=shapes, notes=notes)


def _compiles(config: TrainConfig) -> bool:
    """Return whether a step of the run has anything that Inductor compiles."""
    resolved = config.on("cpu" if config.device == "cpu" else "cuda")
    optimizer = config.optimizer
    return (
        resolved.compile.compiles
        or any(stage.config.loss.pointwise == "compiled" for stage in resolved.course)
        or (isinstance(optimizer, EightBitAdamWConfig) and optimizer.library == "torchao")
    )


def traceable(config: TrainConfig, device: str) -> tuple[TrainConfig, tuple[str, ...]]:
    """Return the config as this device traces it, and what differs from the run.

    Raises:
        BadConfig: no trace can show it.
    """
    target = "cpu" if config.device == "cpu" else "cuda"
    fp8 = config.precision.fp8
    if fp8.recipe == "te_delayed":
        raise BadConfig(
            "precision.fp8.recipe: te_delayed cannot be traced, since Transformer Engine's kernels "
            "have no fake form; trace with tensorwise, rowwise or none"
        )
    if fp8.recipe != "none" and target == "cpu":
        require_fp8(fp8, torch.device("cpu"))
    notes = []
    resolved = config.on(target)
    if resolved.compile.mode != "default":
        notes.append(f"compile.mode {config.compile.mode} is traced as default")
    if config.parallel.compression != "none":
        notes.append("gradients are not compressed in the trace")
    if config.precision.compute != "auto":
        compute: Any = config.precision.compute
    else:
        compute = "bf16" if target == "cuda" else "fp32"
    changes = {
        "device": device,
        "compile": resolved.compile.model_copy(update={"mode": "default"}),
        "precision": config.precision.model_copy(update={"compute": compute}),
        "parallel": config.parallel.model_copy(update={"compression": "none"}),
        "loss": resolved.loss,
    }
    if device != "cpu":
        return config.model_copy(update=changes), tuple(notes)
    if target == "cuda":
        notes.append("a CPU's kernels, not a GPU's")
    if not config.attention.chosen.on_cpu:
        notes.append(f"attention.backend {config.attention.backend} is traced as auto")
        changes["attention"] = config.attention.model_copy(update={"backend": "auto"})
    return config.model_copy(update=changes), tuple(notes)


class _Tracer:
    def __init__(self, config: TrainConfig, ranks: Ranks, precision: Precision, stage: str) -> None:
        self._config, self._ranks, self._precision = config, ranks, precision
        self._stage = stage
        self._memory = PhaseMemory(ranks.device)

    def trace(self) -> MemoryTrace:
        config, ranks, memory = self._config, self._ranks, self._memory
        as_without = _AsWithoutTrace()  # type: ignore[no-untyped-call]
        with compiled_on_fake_tensors(), FakeTensorMode(), memory, as_without:
            parts = build_parts(config, ranks, self._precision)
            memory.follow(
                parts.model, lambda: storage_bytes(_tensors(parts.optimizer.state.values()))
            )
            accumulation = prepare_model(
                parts.model, config, ranks, accumulates=accumulates(config, ranks)
            )
            wrapped = ranks.wrap(
                parts.model, config.parallel, already_scaled=self._precision.scales_loss
            )
            if isinstance(wrapped, DistributedDataParallel):
                _keep_to_itself(wrapped, memory)
            loss = parts.loss

            def watched_loss(
                hidden: Tensor, weight: Tensor, targets: Tensor, _weights: Tensor | None = None, /
            ) -> LossSum:
                memory.end_of_forward()
                with memory.phase("loss"):
                    return loss(hidden, weight, targets)

            step = TrainStep(
                config=config,
                ranks=ranks,
                precision=self._precision,
                model=parts.model,
                wrapped=wrapped,
                make_input=make_input_fn(0 if config.attention.document_masking else None),
                loss=watched_loss,
                optimizer=parts.optimizer,
                update_step=parts.update_step,
                accumulation=accumulation,
                profiler=memory,
            )
            wrapped.train()
            stages = self._stages(step)
            copied = layout_of(all_tensors(parts.model, parts.optimizer, parts.update_step))
            saved = sum(each[-1] for each in copied)
            if config.average is not None:
                parameters = sum(each.numel() for each in parts.model.parameters())
                saved += config.average.checkpoint_bytes(parameters)
        return MemoryTrace(
            device=ranks.device.type,
            config=config,
            world_size=ranks.world_size,
            checkpoint_copy=saved if config.checkpoint.asynchronous else 0,
            stages=stages,
        )

    def _stages(self, step: TrainStep) -> tuple[StageTrace, ...]:
        config, ranks = self._config, self._ranks
        shapes = config.batch.shapes_ahead(config.steps, ranks.world_size)
        # The first step makes the optimizer's state, and DDP moves gradients to its buckets.
        self._take_step(step, shapes[0])
        stages = []
        for shape in shapes:
            self._memory.forget()
            self._take_step(step, shape)
            with self._memory.phase("resting"):
                pass
            self._evaluate(step)
            readings = self._memory.readings()
            phases = {name: readings[name] for name in PHASES}
            stages.append(StageTrace(self._stage, shape, phases))
        return tuple(stages)

    def _take_step(self, step: TrainStep, shape: Shape) -> None:
        share = self._config.batch.tokens_per_step // self._ranks.world_size
        micro_steps = min(_MOST_MICRO_STEPS, share // (shape[0] * shape[1]))
        loss = step.backward(0, _MockBatches(shape, micro_steps, self._ranks.device))
        with self._memory.phase("optimizer"):
            step.update(loss.mean)

    def _evaluate(self, step: TrainStep) -> None:
        config = self._config
        share = config.batch.sequences // self._ranks.world_size
        sequences = config.validation.micro_batch or config.batch.micro_batch or share
        batches = _MockBatches((sequences, config.batch.sequence_length), 1, self._ranks.device)
        weights = () if config.average is None else step.model.parameters()
        with self._memory.phase("evaluation"), weights_kept(weights):
            held_out_losses(
                step.model,
                iter([batches.batch(0, 0)]),
                make_input=step.make_input,
                precision=self._precision,
            )


class _MockBatches:
    """Batches of one shape, as the loader gives them: on the device, int64."""

    counted = None

    def __init__(self, shape: Shape, micro_steps: int, device: torch.device) -> None:
        self._shape, self._micro_steps, self._device = shape, micro_steps, device

    def micro_steps(self, _step: int) -> int:
        return self._micro_steps

    def batch(self, _step: int, _micro_step: int) -> Batch:
        def tokens() -> Tensor:
            return torch.zeros(self._shape, dtype=torch.int64, device=self._device)

        return tokens(), tokens()


class _AsWithoutTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes a tracked step on fake tensors take the same path as one on real tensors.

    A value that the host reads from a tensor is False or 1. So no update is skipped, and AdamW
    without a fused kernel is at its first step.

    If a tensor has two gradients, autograd adds the second to the first in place, unless something
    else refers to the first. Under a tracker it never does (``input_buffer.cpp``:
    ``isTensorSubclassLike``), so this mode does. The gradients of tied weights are 1 GB.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let Dynamo compile while this mode is on."""
        return True

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:  # noqa: SLF001 - torch's name for it
            kind = args[0].dtype
            return False if kind == torch.bool else 1.0 if kind.is_floating_point else 1
        if func in _WITH_RNG_STATE:
            # Around recomputed attention. It draws no numbers, and the state is no fake tensor.
            return _WITH_RNG_STATE[func](*args)
        if func is torch.ops.aten.add.Tensor and _sums_gradients(*args):
            return args[0].add_(args[1])
        return func(*args, **(kwargs or {}))


_WITH_RNG_STATE: dict[Any, Callable[..., Any]] = {
    rng_prims.run_and_save_rng_state: lambda op, *args: (torch.empty(0), op(*args)),
    rng_prims.run_with_rng_state: lambda _state, op, *args: op(*args),
}


def _sums_gradients(first: object, second: object) -> bool:
    """Return whether autograd's engine is adding up; what is recomputed has gradients enabled."""
    return (
        torch._C._current_graph_task_id() != -1  # noqa: SLF001 - torch has no public name for it
        and not torch.is_grad_enabled()
        and isinstance(first, Tensor)
        and isinstance(second, Tensor)
        and (first.shape, first.dtype) == (second.shape, second.dtype)
    )


@contextmanager
def _ranks(world_size: int, device: torch.device, rank: int = 0) -> Iterator[Ranks]:
    """Act as one of ``world_size`` ranks; nothing is sent to the others."""
    if world_size == 1:
        yield Ranks(0, 1, device)
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        local = min(world_size, GPUS_OF_A_NODE)
        group = dist.group.WORLD
        yield Ranks(rank, world_size, device, group, agree_at_start=False, local_size=local)
    finally:
        dist.destroy_process_group()


def _keep_to_itself(wrapped: DistributedDataParallel, memory: PhaseMemory) -> None:
    """Let DDP send nothing, and keep its first buckets: new ones need an answer of other ranks."""

    def already_mean(bucket: Any) -> torch.futures.Future[Tensor]:
        memory.count_as_gradient(bucket.buffer())
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    # DDP compares annotations as objects, which a lambda has none of.
    wrapped.register_comm_hook(None, lambda _state, bucket: already_mean(bucket))
    wrapped.reducer = _FixedBuckets(wrapped.reducer)  # type: ignore[assignment]


class _FixedBuckets:
    """DDP's reducer, without the second layout of its buckets: other places, the same bytes."""

    def __init__(self, reducer: Any) -> None:
        self._reducer = reducer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reducer, name)

    def _rebuild_buckets(self) -> bool:
        return False


def _tensors(states: Any) -> Iterator[Tensor]:
    for state in states:
        yield from (value for value in state.values() if isinstance(value, Tensor))
