"""The measurement of a row, in processes of its own: one for each rank.

A process trains by the trainer's ``TrainStep`` on random tokens, without a run around it: no
loggers, no checkpoints, no validation. Rank 0, or the rank that fails, writes the row's outcome.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, multiprocessing
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # It is documented.

from lehr_trainer.assemble import build_parts, prepare_model
from lehr_trainer.configs.train import TrainConfig
from lehr_trainer.course import accumulates
from lehr_trainer.diagnostics.diagnostics_logger import Batch
from lehr_trainer.diagnostics.profiling import Profiler
from lehr_trainer.errors import TrainerError
from lehr_trainer.experiments.rows import BenchRow
from lehr_trainer.models.attention import attention_backend
from lehr_trainer.models.documents import make_input_fn
from lehr_trainer.runtime.distributed import Ranks
from lehr_trainer.runtime.precision import Precision
from lehr_trainer.train import TrainStep

WARM_UP_STEPS = 2
NO_ANSWER = "no answer within"
_EOS = 0
"""The token that ends a document, where documents are masked."""
_DOCUMENT = 512
"""Mean length of these documents."""
# Processes are forked from one that has only imported these: an import takes seconds of a core. The
# first optimizer step imports the compiler, which takes as long as torch itself.
_PRELOADED = ["torch._dynamo", "lehr_trainer.experiments.measure"]


@dataclass(frozen=True)
class RowOutcome:
    """What was measured of a row; ``error`` is the reason why there are no figures."""

    error: str = ""
    failed: bool = False
    """Whether the error is none that the machine explains: a program that is wrong, or a hang."""
    setup_s: float = 0.0
    """Building the model and its first steps, compilation included."""
    step_s: float = 0.0
    """Seconds a step by the clock, the median of all turns."""
    cpu_s: float = 0.0
    """The same of processor time, over all threads."""
    loss: float = 0.0
    """Of the last step, in nats."""
    peak_bytes: float | None = None
    """Most that the allocator counted since the first steps; None on a CPU."""
    reserved_bytes: float | None = None


def measure(row: BenchRow, *, turns: int, steps: int, timeout_s: float) -> RowOutcome:
    """Measure a row: set up, then ``turns`` times ``steps`` steps, within ``timeout_s`` in all."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(_PRELOADED)
    # Held by this process, as torchrun does: a port that is only looked up can be taken before
    # rank 0 listens.
    store = TCPStore("127.0.0.1", 0, is_master=True) if row.ranks > 1 else None
    end = time.monotonic() + timeout_s
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "outcome.json")
        ranks = multiprocessing.start_processes(  # type: ignore[attr-defined,no-untyped-call]
            _train_and_write,
            (row, turns, steps, None if store is None else store.port, path),
            nprocs=row.ranks,
            join=False,
            start_method="forkserver",
        )
        reason = f"{NO_ANSWER} {timeout_s:.0f} s"
        try:
            while (left := end - time.monotonic()) > 0 and not ranks.join(left):
                pass
        except multiprocessing.ProcessExitedException as error:  # type: ignore[attr-defined]
            reason = f"its process ended with code {error.exit_code}"
        finally:
            for process in ranks.processes:
                process.kill()
                process.join()
        if not path.exists():
            return RowOutcome(error=reason, failed=True)
        return RowOutcome(**json.loads(path.read_text()))


def _train_and_write(
    rank: int, row: BenchRow, turns: int, steps: int, port: int | None, path: Path
) -> None:
    """Train as one rank of a row; ``port`` is where several meet on this machine."""
    if port is not None:
        # What torchrun would set; the store is the parent's, so rank 0 makes none.
        os.environ |= {
            **dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)),
            **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(row.ranks)),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
    # Output of libraries must not mix with the table.
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    try:
        outcome = _train(row, turns, steps)
    except Exception as error:  # noqa: BLE001 - a row that fails has its error; the others go on
        expected = isinstance(error, TrainerError | torch.OutOfMemoryError)
        outcome = RowOutcome(error=_named(error), failed=not expected)
    if rank == 0 or outcome.error:
        with suppress(FileExistsError), path.open("x") as file:  # The first error is the reason.
            json.dump(asdict(outcome), file)
    if outcome.error:
        os._exit(1)  # Other ranks may wait for this one; they are ended, too.
    if dist.is_initialized():
        dist.destroy_process_group()


def _train(row: BenchRow, turns: int, steps: int) -> RowOutcome:
    began = time.perf_counter()
    training = BenchTraining(row.config)
    setup_s = time.perf_counter() - began
    seconds, cpu_seconds = [], []
    for _ in range(turns):
        clock, processor = time.perf_counter(), time.process_time()
        loss = training.take(steps)
        seconds.append((time.perf_counter() - clock) / steps)
        cpu_seconds.append((time.process_time() - processor) / steps)
    outcome = RowOutcome(
        setup_s=setup_s,
        step_s=statistics.median(seconds),
        cpu_s=statistics.median(cpu_seconds),
        loss=loss,
    )
    if training.device.type == "cpu":
        return outcome
    reserved = float(torch.cuda.max_memory_reserved(training.device))
    # The allocator does not see what a replay of CUDA graphs uses.
    graphs = training.step.config.compile.cuda_graphs
    peak = reserved if graphs else float(torch.cuda.max_memory_allocated(training.device))
    return RowOutcome(**{**asdict(outcome), "peak_bytes": peak, "reserved_bytes": reserved})


class RandomBatches:
    """Random tokens of a rank, drawn on its device: the same for every row of a batch's shape.

    The micro-batches of a step are drawn together, so accumulation does not change the tokens.
    """

    counted = None

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        batch = config.batch
        sequences = batch.sequences // ranks.world_size
        self._shape = (sequences, batch.sequence_length)
        self._micro_batch = batch.micro_batch or sequences
        self._vocab_size = config.model.vocab_size
        self._masked = config.attention.document_masking
        self._generator = torch.Generator(ranks.device).manual_seed(config.seed + ranks.rank)
        self._step: list[Batch] = []

    def micro_steps(self, _step: int) -> int:
        return self._shape[0] // self._micro_batch

    def batch(self, _step: int, micro_step: int) -> Batch:
        if micro_step == 0:
            parts = torch.split(self._draw(), self._micro_batch)
            self._step = [(part, part) for part in parts]
        return self._step[micro_step]

    def _draw(self) -> Tensor:
        where: dict[str, Any] = {"generator": self._generator, "device": self._generator.device}
        tokens = torch.randint(0, self._vocab_size, self._shape, **where)
        if self._masked:
            tokens.masked_fill_(torch.rand(self._shape, **where) < 1 / _DOCUMENT, _EOS)
        return tokens


class BenchTraining:
    """A ``TrainStep`` over random tokens, after its first steps."""

    def __init__(self, values: dict[str, Any]) -> None:
        config = TrainConfig.model_validate(values)
        ranks = Ranks.join(config.device)
        config = config.on(ranks.device.type)
        self.device = ranks.device
        precision = Precision.choose(config.precision, self.device)
        self._batches = RandomBatches(config, ranks)
        parts = build_parts(config, ranks, precision)
        model = parts.model
        accumulation = prepare_model(model, config, ranks, accumulates=accumulates(config, ranks))
        self.step = TrainStep(
            config=config,
            ranks=ranks,
            precision=precision,
            model=model,
            wrapped=ranks.wrap(model, config.parallel, already_scaled=precision.scales_loss),
            make_input=make_input_fn(_EOS if config.attention.document_masking else None),
            loss=parts.loss,
            optimizer=parts.optimizer,
            update_step=parts.update_step,
            accumulation=accumulation,
            profiler=Profiler(config.profile, Path(), rank=0, device=self.device, log=print),
        )
        model.train()
        # These compile, allocate and fill caches.
        self.take(WARM_UP_STEPS)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def take(self, count: int) -> float:
        """Take ``count`` steps; return the loss of the last one once the device has done it."""
        with attention_backend(self.step.config.attention, self.device):
            for _ in range(count):
                loss = self.step.backward(0, self._batches).mean
                self.step.update(loss)
        return float(loss)


def _named(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    first = (str(error).strip().splitlines() or ["no message"])[0]
    return first if isinstance(error, TrainerError) else f"{type(error).__name__}: {first}"
