"""Types of the asynchronous client, made by ``python docs/generate``."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import pandas as pd

from lehr.client.client import Overrides
from lehr.client.comparisons import Comparison, Identified
from lehr.client.transport import StreamEvent
from lehr.schemas import (
    CheckpointDeletion,
    CheckpointVerdict,
    CheckpointView,
    ClusterView,
    Deletion,
    EventView,
    GateView,
    Health,
    Latest,
    LogHit,
    LogStream,
    MetricInfo,
    QueueEntry,
    RolloutDetail,
    RolloutView,
    RunDetail,
    RunView,
    SampleView,
    Series,
    StageView,
    SweepDeletion,
    SweepDetail,
    SweepView,
    TrialView,
)
from lehr.specs import RolloutSpec, RunSpec, SweepSpec
from lehr_trainer.configs.train import TrainConfig

class AsyncProxy:
    """The asynchronous face of a synchronous object.

    A subclass gets each public member of the class ``of`` that it does not define: methods are to
    be awaited, iterators are asynchronous, properties stay properties. Those in ``fetched`` may ask
    the server, and become methods.
    """

    def __init__(self, sync: Any) -> None: ...
    def __repr__(self) -> str: ...

class AsyncRun(AsyncProxy):
    """A run as it was when last read; ``await run.refresh()`` reads it again."""

    @property
    def view(self) -> RunView: ...
    def _repr_html_(self) -> str: ...
    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def ended(self) -> bool: ...
    @property
    def step(self) -> int | None:
        """Optimizer steps done, as last heard."""
        ...

    @property
    def attempt(self) -> int:
        """Number of its newest launch; 0 before the first."""
        ...

    @property
    def reason(self) -> str | None:
        """Why it is in its state, or why it waits."""
        ...

    @property
    def tags(self) -> list[str]: ...
    @property
    def latest(self) -> dict[str, Latest]: ...
    @property
    def url(self) -> str:
        """Its page on the dashboard."""
        ...

    async def detail(self) -> RunDetail:
        """The view with spec, provenance and attempts."""
        ...

    async def spec(self) -> RunSpec: ...
    async def config(self) -> TrainConfig:
        """What the trainer runs with, e.g. ``run.config.optimizer.lr``."""
        ...

    async def refresh(self) -> Self: ...
    async def cancel(self) -> Self:
        """Stop it without saving."""
        ...

    async def pause(self) -> Self:
        """Save a checkpoint, stop, and give the GPUs back; ``resume`` goes on from there."""
        ...

    async def resume(self) -> Self: ...
    async def retry(self) -> Self:
        """Queue a failed run again, from its last checkpoint."""
        ...

    async def checkpoint(self) -> Self:
        """Save a checkpoint at the next step."""
        ...

    async def archive(self) -> Self:
        """Put it out of sight, once it has ended; nothing of it is lost."""
        ...

    async def unarchive(self) -> Self: ...
    async def tag(self, *tags: str) -> Self:
        """Add tags; those that it has stay."""
        ...

    async def untag(self, *tags: str) -> Self:
        """Remove tags; one that it does not have is no error."""
        ...

    async def deletion(self) -> Deletion:
        """What ``delete`` would free."""
        ...

    async def delete(self) -> Deletion:
        """Delete its checkpoints, metrics, logs and files, for good; its record stays, archived."""
        ...

    async def fork(
        self,
        step: int | None = None,
        changes: Mapping[str, Any] | Sequence[str] = (),
        *,
        idempotency_key: str | None = None,
    ) -> AsyncRun:
        """A new run that goes on from a checkpoint of this one, with something changed.

        ::

            run.fork(step=15_000, changes={"train.optimizer.lr": 1.5e-4})

        Args:
            step: the checkpoint's; the newest checkpoint when none is given.
            changes: values by dotted path. A new warmup begins at the checkpoint.
            idempotency_key: names this request, so that it may be sent twice.

        Raises:
            NotFound: there is no checkpoint at that step; the nearest is named.
            SpecError: a change is wrong, or would need other weights than the checkpoint's.
        """
        ...

    async def mirror(
        self,
        mode: Literal["online", "offline", "off"] = "online",
        *,
        project: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        tags: Sequence[str] = (),
    ) -> Self:
        """Have the server mirror it in Weights & Biases, from its first event on.

        How far that is: ``run.refresh().detail.wandb``. The arguments are those of a spec's
        ``tracking.wandb``; a repeat begins anew with the new ones.

        Raises:
            UserError: the server lacks the package wandb, or a key for ``online``.
        """
        ...

    async def wait(
        self, *, timeout_s: float | None = None, progress: Callable[[RunView], None] | None = None
    ) -> Self:
        """Until it has ended. Interrupting only stops the waiting, never the run.

        Args:
            timeout_s: give up after so long.
            progress: called with the newest view at every look. When none is given, a notebook
                shows a live table, a terminal a bar on stderr.

        Raises:
            TimeoutError: it had not ended in time.
        """
        ...

    async def metrics(self) -> list[MetricInfo]: ...
    async def series(
        self,
        *names: str,
        x: Literal["step", "tokens", "time"] = "step",
        points: int = 500,
        exact: bool = False,
        smoothing: float | None = None,
        superseded: bool = False,
    ) -> list[Series]:
        """Curves, reduced on the server unless ``exact``; all metrics when none is named."""
        ...

    async def history(self, *names: str) -> pd.DataFrame:
        """Every point of the named metrics (all when none is named), a row a step.

        Exact, and the same on every call once the run has ended.

        Raises:
            NotFound: the run has no metric of that name.
        """
        ...

    async def plot(
        self,
        *names: str,
        x: Literal["step", "tokens", "time"] = "step",
        smoothing: float | None = None,
    ) -> Any:
        """Plotly: the named metrics, by default the losses.

        Metrics that end alike (``train/loss``, ``val/loss``) share a panel.

        Raises:
            NotFound: the run has no metric of that name, or none at all yet.
        """
        ...

    async def export(self, form: Literal["jsonl", "parquet"] = "jsonl") -> bytes:
        """Every point of every metric, as a file's bytes: a row a step, a column a metric."""
        ...

    async def log_streams(self) -> list[LogStream]: ...
    def logs(
        self,
        name: str = "rank-0.log",
        *,
        attempt: int | None = None,
        tail: int | None = None,
        follow: bool = False,
        offset: int | None = None,
    ) -> AsyncIterator[str]:
        """Lines of a log, by default rank 0's of the newest attempt.

        Args:
            name: which; ``log_streams()`` lists them.
            attempt: of which attempt; the newest when None.
            tail: begin so many lines before the end.
            follow: go on as lines come, through later attempts, until the run has ended.
            offset: begin at this byte instead, as ``search_logs`` tells it.
        """
        ...

    def search_logs(
        self, text: str, name: str = "rank-0.log", *, attempt: int | None = None, offset: int = 0
    ) -> AsyncIterator[LogHit]:
        """Lines of a log that contain ``text``, whatever its case; by default of rank 0.

        Args:
            text: what a line must contain.
            name: which log; ``log_streams()`` lists them.
            attempt: of which attempt; the newest that wrote this log when None.
            offset: search from this byte on.
        """
        ...

    async def events(self) -> list[EventView]: ...
    async def samples(self) -> list[SampleView]: ...
    async def checkpoints(self) -> list[CheckpointView]:
        """By step; those that are gone stay listed, with ``removed_at``."""
        ...

    async def verify_checkpoint(
        self, step: int, *, attempt: int | None = None
    ) -> CheckpointVerdict:
        """Have the server read a checkpoint to its end, wherever it lies, and compare digests."""
        ...

    async def download_checkpoint(
        self,
        step: int,
        folder: Path | str,
        *,
        attempt: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Path:
        """Fetch a checkpoint into a folder that does not exist yet; every digest is compared.

        Args:
            step: the checkpoint's.
            folder: where its files go.
            attempt: of which attempt; the newest that saved at this step.
            progress: called with the bytes so far, and in all.

        Raises:
            NotFound: there is no checkpoint at that step; the nearest is named.
            Conflict: the folder exists, or no place of the checkpoint can be read.
        """
        ...

    async def checkpoint_deletion(
        self, step: int, *, attempt: int | None = None
    ) -> CheckpointDeletion:
        """What ``delete_checkpoint`` would free."""
        ...

    async def delete_checkpoint(
        self, step: int, *, attempt: int | None = None
    ) -> CheckpointDeletion:
        """Delete one checkpoint with its copy, once nothing would begin from it any more."""
        ...

class AsyncSweep(AsyncProxy):
    """A sweep as it was when last read; ``await sweep.refresh()`` reads it again."""

    @property
    def view(self) -> SweepView: ...
    def _repr_html_(self) -> str | None: ...
    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def ended(self) -> bool: ...
    @property
    def url(self) -> str:
        """Its page on the dashboard."""
        ...

    async def detail(self) -> SweepDetail:
        """The view with its trials, spec and notes."""
        ...

    async def trials(self) -> list[TrialView]:
        """In the sweep's order."""
        ...

    async def notes(self) -> list[str]:
        """What to know of the result: the best is at the edge of the grid, ..."""
        ...

    async def results(self) -> list[TrialView]:
        """Its trials, best first; those without a rank come last, in the sweep's order."""
        ...

    async def runs(self) -> list[AsyncRun]:
        """One a trial, in the sweep's order."""
        ...

    async def best(self) -> AsyncRun:
        """The run that leads, by the sweep's metric at equal step.

        Raises:
            Conflict: its trials were evaluated on different held-out sets, so none leads.
            NotFound: no run has a finite value yet.
        """
        ...

    async def refresh(self) -> Self: ...
    async def cancel(self) -> Self:
        """Stop all its runs, without saving."""
        ...

    async def retry(self, *, idempotency_key: str | None = None) -> Self:
        """Run exactly its failed trials again, and those that never ran as it was stopped."""
        ...

    async def archive(self) -> Self:
        """Put it and its runs out of sight, once all have ended; nothing is lost."""
        ...

    async def unarchive(self) -> Self: ...
    async def deletion(self) -> SweepDeletion:
        """What ``delete`` would free."""
        ...

    async def delete(self) -> SweepDeletion:
        """Delete its runs' checkpoints, metrics, logs and files, for good; the record stays."""
        ...

    async def extend(
        self,
        parameters: Mapping[str, Sequence[Any]] | None = None,
        *,
        points: Sequence[Mapping[str, Any]] | None = None,
        trials: int | None = None,
        idempotency_key: str | None = None,
    ) -> Self:
        """Add trials, also once it has finished.

        Args:
            parameters: of a grid, further values by dotted path.
            points: of a list, further points, each with its values by dotted path.
            trials: of a search, how many more points to try.
            idempotency_key: names this request, so that it may be sent twice.
        """
        ...

    async def mirror(
        self,
        mode: Literal["online", "offline", "off"] = "online",
        *,
        project: str | None = None,
        entity: str | None = None,
        tags: Sequence[str] = (),
    ) -> Self:
        """Have the server mirror its runs in Weights & Biases, as one group.

        Raises:
            UserError: the server lacks the package wandb, or a key for ``online``.
        """
        ...

    async def wait(
        self,
        *,
        timeout_s: float | None = None,
        progress: Callable[[SweepDetail], None] | None = None,
    ) -> Self:
        """Until all its runs have ended. Interrupting only stops the waiting, never the runs.

        Args:
            timeout_s: give up after so long.
            progress: called with the newest view at every look. When none is given, a notebook
                shows a live table, a terminal a bar on stderr.

        Raises:
            TimeoutError: it had not finished in time.
        """
        ...

    async def frame(self) -> pd.DataFrame:
        """pandas: a row a trial."""
        ...

    async def plot(self, parameter: str | None = None) -> Any:
        """Plotly: the metric against a swept parameter (a learning rate, if there is one), with
        the fit and what it says.

        Raises:
            NotFound: the sweep does not vary ``parameter``.
        """
        ...

class AsyncRollout(AsyncProxy):
    """A rollout as it was when last read; ``await rollout.refresh()`` reads it again."""

    @property
    def view(self) -> RolloutView: ...
    def _repr_html_(self) -> str | None: ...
    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str:
        """running, passed, failed or cancelled."""
        ...

    @property
    def ended(self) -> bool: ...
    @property
    def reason(self) -> str | None:
        """Why it stopped."""
        ...

    @property
    def url(self) -> str:
        """Its page on the dashboard."""
        ...

    async def detail(self) -> RolloutDetail:
        """The view with its stages, spec and notes."""
        ...

    async def stages(self) -> list[StageView]:
        """In their order, those to come too."""
        ...

    async def notes(self) -> list[str]:
        """What to know of it: a stage that was left out, a gate that could not be judged."""
        ...

    async def gates(self, stage: str | None = None) -> list[GateView]:
        """Of one stage, or of all in their order.

        Raises:
            NotFound: it has no such stage.
        """
        ...

    async def runs(self) -> list[AsyncRun]:
        """All that were submitted so far, in that order."""
        ...

    async def run(self) -> AsyncRun:
        """The run that is rolled out: the last stage's.

        Raises:
            NotFound: its stage has not begun.
        """
        ...

    async def refresh(self) -> Self: ...
    async def cancel(self) -> Self:
        """Start nothing more of it, and stop its run without saving."""
        ...

    async def archive(self) -> Self:
        """Put it out of sight, once it has ended; its runs stay where they are."""
        ...

    async def unarchive(self) -> Self: ...
    async def wait(
        self,
        *,
        timeout_s: float | None = None,
        progress: Callable[[RolloutDetail], None] | None = None,
    ) -> Self:
        """Until it has ended. Interrupting only stops the waiting, never a run.

        Args:
            timeout_s: give up after so long.
            progress: called with the newest view at every look. When none is given, a notebook
                shows a live table, a terminal a bar on stderr.

        Raises:
            TimeoutError: it had not ended in time.
        """
        ...

    async def frame(self) -> pd.DataFrame:
        """pandas: a row a gate of each stage."""
        ...

class AsyncComparison(AsyncProxy):
    """Runs side by side."""

    @property
    def view(self) -> Comparison: ...
    @property
    def notes(self) -> list[str]:
        """What the comparison cannot say, in words."""
        ...

    def frame(self) -> pd.DataFrame:
        """pandas: a row a run, the baseline first, with what may change the outcome."""
        ...

    def _repr_html_(self) -> str: ...
    async def curves(self) -> list[Series]:
        """The metric of each run over the comparison's x axis, in the runs' order."""
        ...

    async def plot(self) -> Any:
        """Plotly: the metric of each run over the comparison's x axis."""
        ...

class AsyncClient(AsyncProxy):
    """A Lehr server, on an asyncio event loop.

    ::

        async with AsyncClient() as lehr:
            sweep = await lehr.sweep("sweeps/lr_grid.yaml")
            await sweep.wait()
            best = await sweep.best()

    It has ``Client``'s methods and raises what that raises. What a property of ``Run`` or ``Sweep``
    may have to ask the server for is a method here: ``await run.config()``.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        on_silence: Callable[[str], None] | None = None,
    ) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...
    @property
    def server(self) -> str: ...
    async def close(self) -> None: ...
    async def submit(
        self,
        spec: Path | str | dict[str, Any] | RunSpec,
        overrides: Overrides = (),
        *,
        provenance: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncRun:
        """Submit one run; it is recorded and queued when this returns.

        ``spec`` is a file's path, YAML text, a dict or a ``RunSpec``.

        Raises:
            SpecError: with every problem found; nothing was recorded.
        """
        ...

    async def runs(
        self,
        *,
        project: str | None = None,
        states: str | Sequence[str] | None = None,
        sweep: str | None = None,
        name: str | None = None,
        tag: str | None = None,
        search: str | None = None,
        archived: bool = False,
        limit: int | None = None,
    ) -> list[AsyncRun]:
        """Runs, newest first; all that match unless ``limit`` says how many."""
        ...

    async def run(self, ref: str) -> AsyncRun:
        """A run by id, unique beginning of an id, or name (the newest of that name)."""
        ...

    async def compare(
        self,
        *refs: str | Identified,
        metric: str = "val/loss",
        x: Literal["step", "tokens", "time", "flops"] = "step",
    ) -> AsyncComparison:
        """Runs side by side: what differs in their configs, and the metric at equal ``x``.

        The first is the baseline. ``notes`` says what the comparison cannot: more than one factor
        differs, or a difference lies within the noise between seeds.

        Raises:
            NotFound: no such run, or none of them has the metric.
        """
        ...

    async def sweep(
        self,
        spec: Path | str | dict[str, Any] | SweepSpec,
        overrides: Overrides = (),
        *,
        provenance: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncSweep:
        """Launch a sweep: all its runs are recorded and queued when this returns.

        To look at one that exists, use ``find_sweep``.

        Raises:
            SpecError: with every problem found; nothing was recorded.
        """
        ...

    async def sweeps(
        self, *, project: str | None = None, limit: int | None = None
    ) -> list[AsyncSweep]:
        """Sweeps, newest first; all that match unless ``limit`` says how many."""
        ...

    async def find_sweep(self, ref: str) -> AsyncSweep:
        """A sweep by id, unique beginning of an id, or name (the newest of that name)."""
        ...

    async def rollout(
        self,
        spec: Path | str | dict[str, Any] | RolloutSpec,
        overrides: Overrides = (),
        *,
        provenance: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncRollout:
        """Launch a rollout: a run brought up in stages, each behind the gates of the one before.

        To look at one that exists, use ``find_rollout``.

        Raises:
            SpecError: with every problem found; nothing was recorded.
        """
        ...

    async def rollouts(
        self, *, project: str | None = None, limit: int | None = None
    ) -> list[AsyncRollout]:
        """Rollouts, newest first; all that match unless ``limit`` says how many."""
        ...

    async def find_rollout(self, ref: str) -> AsyncRollout:
        """A rollout by id, unique beginning of an id, or name (the newest of that name)."""
        ...

    async def cluster(self) -> ClusterView: ...
    async def exclude_node(self, node: str, reason: str = "excluded by the user") -> ClusterView:
        """Place nothing more on a node; what runs there goes on."""
        ...

    async def readmit_node(self, node: str) -> ClusterView:
        """Give a node work again; what it failed before is forgiven."""
        ...

    async def queue(self) -> list[QueueEntry]:
        """What waits, in order, each with the reason."""
        ...

    async def health(self) -> Health:
        """Whether a Lehr server answers; needs no token."""
        ...

    def stream(self, run: str | None = None) -> AsyncIterator[StreamEvent]:
        """What happens, as it happens, in all runs or one; reconnects by itself."""
        ...
