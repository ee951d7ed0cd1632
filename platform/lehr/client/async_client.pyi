"""Types of the asynchronous client, made by ``python docs/generate``."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import pandas as pd

from lehr.client.comparisons import Comparison, Identified
from lehr.client.transport import StreamEvent
from lehr.schemas.access import AuditEntry, CreatedToken, LoginLink, TokenView
from lehr.schemas.alerts import AlertView
from lehr.schemas.base import Health
from lehr.schemas.checkpoints import CheckpointDeletion, CheckpointVerdict, CheckpointView
from lehr.schemas.checks import SubmissionCheck
from lehr.schemas.cluster import ClusterView, JoinView, LeaveView, QueueEntry
from lehr.schemas.code import CapsuleView, CodeDiff
from lehr.schemas.maintenance import MaintenanceView
from lehr.schemas.quotas import QuotaView
from lehr.schemas.rollouts import GateView, RolloutDetail, RolloutView, StageView
from lehr.schemas.runs import Deletion, Latest, RunDetail, RunView
from lehr.schemas.secrets import SecretView
from lehr.schemas.streams import EventView, LogHit, LogStream, MetricInfo, SampleView, Series
from lehr.schemas.sweeps import SweepDeletion, SweepDetail, SweepView, TrialView
from lehr.schemas.system import RunSystem, SystemHistory
from lehr.schemas.transfers import TransferView
from lehr.schemas.views import SavedView
from lehr.schemas.webhooks import WebhookView
from lehr.specs import RolloutSpec, RunSpec, Spec, SweepSpec
from lehr.specs.overrides import Overrides
from lehr_trainer.configs.train import TrainConfig

class AsyncProxy:
    """The asynchronous wrapper of a synchronous object.

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
    def note(self) -> str:
        """Return the text that people wrote about it; at first the spec's notes."""
        ...

    @property
    def url(self) -> str:
        """Return the URL of its page on the dashboard."""
        ...

    async def unarchive(self) -> Self:
        """Show it in lists again."""
        ...

    async def set_note(self, note: str) -> Self:
        """Replace its note; an empty text removes it. Runs of a sweep or rollout keep theirs."""
        ...

    async def report(self, path: Path | str) -> Path:
        """Write a report to a file, as one HTML page that needs no network; return its path.

        It has the result with its figures, the cost, config and provenance.

        Raises:
            UserError: the file cannot be written.
        """
        ...

    @property
    def state(self) -> str: ...
    @property
    def ended(self) -> bool: ...
    @property
    def step(self) -> int | None:
        """Return the optimizer steps done, as last reported."""
        ...

    @property
    def attempt(self) -> int:
        """Return the number of its newest attempt; 0 before the first."""
        ...

    @property
    def reason(self) -> str | None:
        """Return why it is in its state, or why it waits."""
        ...

    @property
    def tags(self) -> list[str]: ...
    @property
    def latest(self) -> dict[str, Latest]: ...
    async def detail(self) -> RunDetail:
        """Return the view with spec, provenance and attempts."""
        ...

    async def spec(self) -> RunSpec: ...
    async def config(self) -> TrainConfig:
        """Return the trainer's config, e.g. ``run.config.optimizer.lr``."""
        ...

    async def refresh(self) -> Self: ...
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
        """Return curves, downsampled by the server unless ``exact``; all metrics when none is
        named.
        """
        ...

    async def history(self, *names: str) -> pd.DataFrame:
        """Return every point of the named metrics (default: all), one row per step.

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
        """Plot the named metrics with Plotly; by default the losses.

        Metrics with the same last part (``train/loss``, ``val/loss``) share a panel.

        Raises:
            NotFound: the run has no metric of that name, or none at all yet.
        """
        ...

    async def export(self, form: Literal["jsonl", "parquet"] = "jsonl") -> bytes:
        """Return every point of every metric as the bytes of a file: one row per step, one
        column per metric.
        """
        ...

    async def system(self, *, attempt: int | None = None, points: int = 400) -> RunSystem:
        """Return what its nodes and GPUs did while its attempts ran.

        Args:
            attempt: number of the attempt. Default: all of them.
            points: of each node, neighbours are averaged until there are at most so many.

        Raises:
            NotFound: it has no such attempt.
        """
        ...

    async def system_frame(self, *, attempt: int | None = None) -> pd.DataFrame:
        """Return ``system`` as a pandas frame: one row per attempt, node and time."""
        ...

    async def events(self) -> list[EventView]: ...
    async def alerts(self) -> list[AlertView]:
        """Return what the diagnosis of the run's curves has found so far."""
        ...

    async def samples(self) -> list[SampleView]: ...
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
        """Return lines of a log, by default rank 0 of the newest attempt.

        Args:
            name: name of the log; ``log_streams()`` lists them.
            attempt: number of the attempt. Default: the newest.
            tail: return only the last lines, this many.
            follow: continue with new lines, through later attempts, until the run has ended.
            offset: begin at this byte instead, as returned by ``search_logs``.
        """
        ...

    def search_logs(
        self, text: str, name: str = "rank-0.log", *, attempt: int | None = None, offset: int = 0
    ) -> AsyncIterator[LogHit]:
        """Return lines of a log that contain ``text``, ignoring case; by default of rank 0.

        Args:
            text: text that a line must contain.
            name: name of the log; ``log_streams()`` lists them.
            attempt: number of the attempt. Default: the newest that wrote this log.
            offset: search from this byte.
        """
        ...

    async def checkpoints(self) -> list[CheckpointView]:
        """Return its checkpoints by step; deleted ones stay listed, with ``removed_at``."""
        ...

    async def verify_checkpoint(
        self, step: int, *, attempt: int | None = None
    ) -> CheckpointVerdict:
        """Have the server read a checkpoint completely, in every location, and check its
        digests.
        """
        ...

    async def download_checkpoint(
        self,
        step: int,
        folder: Path | str,
        *,
        attempt: int | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Path:
        """Download a checkpoint into a new folder and check every digest.

        Args:
            step: step of the checkpoint.
            folder: folder for its files.
            attempt: number of the attempt. Default: the newest that saved at this step.
            progress: called with the bytes so far, and the total.

        Raises:
            NotFound: there is no checkpoint at that step; the nearest is named.
            Conflict: the folder exists, or no location of the checkpoint can be read.
        """
        ...

    async def export_model(
        self,
        folder: Path | str,
        step: int | Literal["best", "last"] = "last",
        *,
        attempt: int | None = None,
        tokenizer: str | None = None,
        overwrite: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> Path:
        """Write the model of a checkpoint to a folder that ``transformers`` loads.

        The folder gets weights, config, tokenizer and a model card with the run's provenance. It
        appears once it is complete. The weights are downloaded from the run's directory or its
        copy, and converted on this machine, which needs ``lehr[trainer]``.

        Args:
            folder: folder to make.
            step: step of the checkpoint; ``best`` has the lowest val/loss.
            attempt: number of the attempt. Default: the newest that saved at this step.
            tokenizer: where the run's tokenizer is on this machine, if not where the run found it;
                ``none`` leaves it out.
            overwrite: replace an earlier export.
            progress: called with the bytes downloaded so far, and the total.

        Raises:
            NotFound: there is no such checkpoint.
            Conflict: the folder is not empty, or no location of the checkpoint can be read.
            UserError: the model or its tokenizer cannot be exported.
        """
        ...

    async def checkpoint_deletion(
        self, step: int, *, attempt: int | None = None
    ) -> CheckpointDeletion:
        """Return what ``delete_checkpoint`` would free."""
        ...

    async def delete_checkpoint(
        self, step: int, *, attempt: int | None = None
    ) -> CheckpointDeletion:
        """Delete one checkpoint and its copy, unless a run still needs it."""
        ...

    async def cancel(self) -> Self:
        """Stop it without saving."""
        ...

    async def pause(self) -> Self:
        """Save a checkpoint, stop, and free the GPUs; ``resume`` continues from there."""
        ...

    async def resume(self) -> Self: ...
    async def retry(self) -> Self:
        """Queue a failed run again, from its last checkpoint."""
        ...

    async def set_priority(self, priority: int) -> Self:
        """Change its place in the queue: runs of a higher priority start first.

        Args:
            priority: from -100 to 100. Specs have 0 unless they say otherwise.
        """
        ...

    async def checkpoint(self) -> Self:
        """Save a checkpoint at the next step."""
        ...

    async def archive(self) -> Self:
        """Hide it from lists, once it has ended. Nothing is deleted."""
        ...

    async def tag(self, *tags: str) -> Self:
        """Add tags and keep the existing ones."""
        ...

    async def untag(self, *tags: str) -> Self:
        """Remove tags; a missing tag is no error."""
        ...

    async def deletion(self) -> Deletion:
        """Return what ``delete`` would free."""
        ...

    async def delete(self) -> Deletion:
        """Delete its checkpoints, metrics, logs and files, for good. Its record stays, archived."""
        ...

    async def fork(
        self,
        step: int | None = None,
        changes: Mapping[str, Any] | Sequence[str] = (),
        *,
        code: Literal["same", "current"] = "same",
        idempotency_key: str | None = None,
    ) -> AsyncRun:
        """Start a new run from a checkpoint of this one, with changes.

        ::

            run.fork(step=15_000, changes={"train.optimizer.lr": 1.5e-4})

        Args:
            step: step of the checkpoint. Default: the newest.
            changes: values by dotted path. A new warmup begins at the checkpoint.
            code: same: train with the code of this run; current: with the code as it is here now.
            idempotency_key: identifies this request, so that repeating it is safe.

        Raises:
            NotFound: there is no checkpoint at that step; the nearest is named.
            SpecError: a change is wrong, or would need other weights than the checkpoint's.
        """
        ...

    async def seeds(
        self,
        n: int = 3,
        *,
        provenance: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncSweep:
        """Repeat it ``n`` times with new seeds, as a sweep over the seed.

        Once they have ended, ``client.compare`` of this run, the sweep's runs and other runs judges
        differences by the noise between seeds.

        Args:
            n: number of runs to add, 1 to 20.
            provenance: where the request comes from. Default: commit, host and command.
            idempotency_key: identifies this request, so that repeating it is safe.

        Raises:
            UserError: ``n`` is out of its range.
            Conflict: it was deleted or archived, or it is a fork.
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
        """Mirror it to Weights & Biases, from its first event. The server does it.

        Progress: ``run.refresh().detail.wandb``. The arguments are those of a spec's
        ``tracking.wandb``. Repeating it starts over with new arguments.

        Raises:
            UserError: the server lacks the package wandb, or a key for ``online``.
        """
        ...

    async def wait(
        self, *, timeout_s: float | None = None, progress: Callable[[RunView], None] | None = None
    ) -> Self:
        """Wait until it has ended. Interrupting only stops the waiting, never the run.

        Args:
            timeout_s: give up after this time.
            progress: called with each new view. Without it, a notebook shows a live table, a
                terminal a bar on stderr.

        Raises:
            TimeoutError: it had not ended in time.
        """
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
    def note(self) -> str:
        """Return the text that people wrote about it; at first the spec's notes."""
        ...

    @property
    def url(self) -> str:
        """Return the URL of its page on the dashboard."""
        ...

    async def unarchive(self) -> Self:
        """Show it in lists again."""
        ...

    async def set_note(self, note: str) -> Self:
        """Replace its note; an empty text removes it. Runs of a sweep or rollout keep theirs."""
        ...

    async def report(self, path: Path | str) -> Path:
        """Write a report to a file, as one HTML page that needs no network; return its path.

        It has the result with its figures, the cost, config and provenance.

        Raises:
            UserError: the file cannot be written.
        """
        ...

    @property
    def state(self) -> str: ...
    @property
    def ended(self) -> bool: ...
    async def detail(self) -> SweepDetail:
        """Return the view with all of its trials, spec and notes."""
        ...

    async def trials(self) -> list[TrialView]:
        """Return the trials in the sweep's order."""
        ...

    async def notes(self) -> list[str]:
        """Return notes on the result: the best is at the edge of the values tried, ..."""
        ...

    async def results(self) -> list[TrialView]:
        """Return the trials, best first; those without a rank come last, in the sweep's order."""
        ...

    async def runs(self) -> list[AsyncRun]:
        """Return the runs, one per trial, in the sweep's order."""
        ...

    async def best(self) -> AsyncRun:
        """Return the best run, by the sweep's metric at equal step.

        Raises:
            Conflict: its trials were evaluated on different held-out sets, so they have no ranking.
            NotFound: no run has a finite value yet.
        """
        ...

    async def refresh(self) -> Self: ...
    async def cancel(self) -> Self:
        """Stop all its runs, without saving."""
        ...

    async def retry(self, *, idempotency_key: str | None = None) -> Self:
        """Queue its failed trials again, and those that never ran because it was stopped."""
        ...

    async def archive(self) -> Self:
        """Hide it and its runs from lists, once all have ended. Nothing is deleted."""
        ...

    async def deletion(self) -> SweepDeletion:
        """Return what ``delete`` would free."""
        ...

    async def delete(self) -> SweepDeletion:
        """Delete its runs' checkpoints, metrics, logs and files, for good. The record stays."""
        ...

    async def extend(
        self,
        parameters: Mapping[str, Sequence[Any]] | None = None,
        *,
        points: Sequence[Mapping[str, Any]] | None = None,
        trials: int | None = None,
        idempotency_key: str | None = None,
    ) -> Self:
        """Add trials, also after it has finished.

        Args:
            parameters: for a grid, more values by dotted path.
            points: for a list, more points, each with its values by dotted path.
            trials: for a search, the number of points to add.
            idempotency_key: identifies this request, so that repeating it is safe.
        """
        ...

    async def transfer(
        self,
        spec: Path | str | dict[str, Any] | RunSpec | RolloutSpec,
        overrides: Overrides = (),
        *,
        rule: str | None = None,
    ) -> TransferView:
        """Return the learning rate for a larger training, with its interval and its reasons.

        ``yaml`` of the answer is the spec with that rate. Nothing is recorded.

        Args:
            spec: the run or rollout that needs a rate: the path of a file, YAML text, a dict or
                a spec.
            overrides: values by dotted path that replace those of ``spec``.
            rule: name of a rule; by default the one with the least regret on published runs.

        Raises:
            SpecError: the spec is not valid.
            UserError: the sweep has no verdict on a learning rate, or no rule reaches the target.
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
        """Mirror its runs to Weights & Biases, as one group. The server does it.

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
        """Wait until all its runs have ended. Interrupting only stops the waiting, never the runs.

        Args:
            timeout_s: give up after this time.
            progress: called with each new view. Of a sweep of more than 1,000 trials, a view has
                the trials that train or failed. Without it, a notebook shows a live table, a
                terminal a bar on stderr.

        Raises:
            TimeoutError: it had not finished in time.
        """
        ...

    async def frame(self) -> pd.DataFrame:
        """Return a pandas frame: one row per trial, of a live sweep with its newest values."""
        ...

    async def importance(self) -> dict[str, float]:
        """Return how much each varied parameter decides the metric, the largest share first.

        The shares are those of Optuna's PED-ANOVA. Empty for fewer than ten compared trials,
        fewer than five for each parameter, or a single parameter.
        """
        ...

    async def plot(self, parameter: str | None = None) -> Any:
        """Plot the metric against a swept parameter (the learning rate by default), with its fit.

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
    def note(self) -> str:
        """Return the text that people wrote about it; at first the spec's notes."""
        ...

    @property
    def url(self) -> str:
        """Return the URL of its page on the dashboard."""
        ...

    async def unarchive(self) -> Self:
        """Show it in lists again."""
        ...

    async def set_note(self, note: str) -> Self:
        """Replace its note; an empty text removes it. Runs of a sweep or rollout keep theirs."""
        ...

    async def report(self, path: Path | str) -> Path:
        """Write a report to a file, as one HTML page that needs no network; return its path.

        It has the result with its figures, the cost, config and provenance.

        Raises:
            UserError: the file cannot be written.
        """
        ...

    @property
    def state(self) -> str:
        """running, passed, failed or cancelled."""
        ...

    @property
    def ended(self) -> bool: ...
    @property
    def reason(self) -> str | None:
        """Return why it stopped."""
        ...

    async def detail(self) -> RolloutDetail:
        """Return the view with its stages, spec and notes."""
        ...

    async def stages(self) -> list[StageView]:
        """Return all stages in order, including future ones."""
        ...

    async def notes(self) -> list[str]:
        """Return notes: a stage that was left out, a gate that could not be judged."""
        ...

    async def gates(self, stage: str | None = None) -> list[GateView]:
        """Return the gates of one stage, or of all in order.

        Raises:
            NotFound: it has no such stage.
        """
        ...

    async def runs(self) -> list[AsyncRun]:
        """Return all runs submitted so far, in order."""
        ...

    async def run(self) -> AsyncRun:
        """Return the run of the last stage.

        Raises:
            NotFound: the last stage has not begun.
        """
        ...

    async def refresh(self) -> Self: ...
    async def cancel(self) -> Self:
        """Start no more runs, and stop the current one without saving."""
        ...

    async def archive(self) -> Self:
        """Hide it from lists, once it has ended. Its runs stay listed."""
        ...

    async def wait(
        self,
        *,
        timeout_s: float | None = None,
        progress: Callable[[RolloutDetail], None] | None = None,
    ) -> Self:
        """Wait until it has ended. Interrupting only stops the waiting, never a run.

        Args:
            timeout_s: give up after this time.
            progress: called with each new view. Without it, a notebook shows a live table, a
                terminal a bar on stderr.

        Raises:
            TimeoutError: it had not ended in time.
        """
        ...

    async def frame(self) -> pd.DataFrame:
        """Return a pandas frame: one row per gate of each stage."""
        ...

class AsyncComparison(AsyncProxy):
    """Runs side by side."""

    @property
    def view(self) -> Comparison: ...
    @property
    def notes(self) -> list[str]:
        """Limits of the comparison, as sentences."""
        ...

    def frame(self) -> pd.DataFrame:
        """pandas: a row a run, the baseline first, with what may change the outcome."""
        ...

    def _repr_html_(self) -> str: ...
    async def curves(self) -> list[Series]:
        """Return the metric of each run over the comparison's x axis, in the runs' order."""
        ...

    async def plot(self) -> Any:
        """Plot the metric of each run over the comparison's x axis with Plotly."""
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
    async def tokens(self) -> list[TokenView]:
        """Return the named tokens by name, without their values. Needs the role admin."""
        ...

    async def create_token(
        self,
        name: str,
        role: str,
        *,
        expires_in_days: float | None = None,
        projects: Sequence[str] | None = None,
    ) -> CreatedToken:
        """Create a named token; its value is only in this answer. Needs the role admin.

        Args:
            name: its name, e.g. anna-laptop.
            role: viewer, researcher or admin.
            expires_in_days: when it ends; None: never.
            projects: it sees and uses only these projects; None: all.
        """
        ...

    async def rotate_token(self, name: str) -> CreatedToken:
        """Replace the value of a token. The old one stops working at once. Needs the role admin."""
        ...

    async def revoke_token(self, name: str) -> TokenView:
        """End a token and the logins made with it at once. Needs the role admin."""
        ...

    async def audit(
        self, *, name: str | None = None, since: float | None = None, limit: int = 100
    ) -> list[AuditEntry]:
        """Return the newest requests that changed something or were refused, newest first.

        Needs the role admin.

        Args:
            name: only requests with this token.
            since: only from this time on, in seconds since the epoch.
            limit: most entries.
        """
        ...

    async def login_link(self) -> LoginLink:
        """Make an address that logs a browser in as this client: once, within five minutes."""
        ...

    async def secrets(self) -> list[SecretView]:
        """Return the secrets by name, without their values."""
        ...

    async def set_secret(self, name: str, value: str) -> SecretView:
        """Set a secret that specs may name. Needs the role admin.

        Attempts that start from now on get the value.
        """
        ...

    async def remove_secret(self, name: str) -> SecretView:
        """Remove a secret. Needs the role admin. Runs that name it and start later fail."""
        ...

    async def quotas(self) -> list[QuotaView]:
        """Return the quotas by project. A project without one has no limit."""
        ...

    async def set_quota(self, project: str, gpus: int) -> QuotaView:
        """Set the most GPUs that the project's runs hold at a time. Needs the role admin.

        Running runs go on, also beyond it.
        """
        ...

    async def remove_quota(self, project: str) -> QuotaView:
        """Remove the quota of a project: its runs have no limit. Needs the role admin."""
        ...

    async def maintenance(self) -> list[MaintenanceView]:
        """Return the maintenance windows, the next one first."""
        ...

    async def add_maintenance(
        self,
        starts_at: float,
        duration_s: float,
        *,
        node: str | None = None,
        repeat: str | None = None,
        note: str = "",
    ) -> MaintenanceView:
        """Declare a time in which nodes are not used. Needs the role admin.

        Args:
            starts_at: when it begins, in seconds since the epoch.
            duration_s: how long it is.
            node: name of the node; None: all nodes.
            repeat: daily or weekly; None: once.
            note: shown in the reasons of runs that wait.
        """
        ...

    async def remove_maintenance(self, window_id: int) -> MaintenanceView:
        """Remove a window; an open one ends at once. Needs the role admin."""
        ...

    async def cluster(self) -> ClusterView: ...
    async def exclude_node(self, node: str, reason: str = "by the user") -> ClusterView:
        """Place no new runs on a node. Its running runs continue."""
        ...

    async def readmit_node(self, node: str) -> ClusterView:
        """Place runs on a node again, and clear its failure count."""
        ...

    async def node_history(
        self, node: str, *, first: float | None = None, last: float | None = None, points: int = 400
    ) -> SystemHistory:
        """Return a node's CPU, memory, disk, network and GPUs over time.

        Args:
            node: name of the node.
            first: begin, in seconds since the epoch. Default: an hour before ``last``.
            last: end. Default: now.
            points: neighbours are averaged until there are at most so many.

        Raises:
            NotFound: the cluster has no such node.
        """
        ...

    async def node_frame(
        self, node: str, *, first: float | None = None, last: float | None = None
    ) -> pd.DataFrame:
        """Return ``node_history`` as a pandas frame: one row per time, one column per figure."""
        ...

    async def join_cluster(
        self, node: str, *, readmit: bool = False, check: bool = False
    ) -> JoinView:
        """Return what a machine needs to join the cluster as ``node``. Contains secrets.

        ``readmit``: give the node work again if it had left. ``check``: only look; the answer has
        no secrets.
        """
        ...

    async def leave_cluster(self, node: str) -> LeaveView:
        """Place no new runs on a node until it joins again."""
        ...

    async def queue(self) -> list[QueueEntry]:
        """Return the queued runs in order, each with the reason why it waits."""
        ...

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

        ``spec`` is the path of a file, YAML text, a dict or a ``RunSpec``.

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
        note: str | None = None,
        archived: bool = False,
        limit: int | None = None,
    ) -> list[AsyncRun]:
        """Return runs, newest first: all that match, or at most ``limit``.

        ``search`` is a part of a name, id, project or tag, ``note`` of a note.
        """
        ...

    async def run(self, ref: str) -> AsyncRun:
        """Return a run by id, unique prefix of an id, or name (the newest of that name)."""
        ...

    async def compare(
        self,
        *refs: str | Identified,
        metric: str = "",
        x: Literal["step", "tokens", "time", "flops"] = "step",
        by: str = "",
    ) -> AsyncComparison:
        """Compare runs: differences of their configs, and the metric at equal ``x``.

        The first is the baseline. Without ``metric`` it is ``val/loss``, or another one that all
        runs have. ``notes`` lists limits of the comparison: more than one factor differs, or a
        difference is within the noise between seeds. ``by`` groups the runs by paths
        of the config, metrics (``val/loss``, or ``val/loss<2.5``), ``tag`` or ``project``, with
        commas between them; ``groups`` then has their means.

        Raises:
            NotFound: no such run, or none of them has the metric or what ``by`` names.
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

        For an existing sweep use ``find_sweep``.

        Raises:
            SpecError: with every problem found; nothing was recorded.
        """
        ...

    async def sweeps(
        self, *, project: str | None = None, note: str | None = None, limit: int | None = None
    ) -> list[AsyncSweep]:
        """Return sweeps, newest first: all that match, or at most ``limit``."""
        ...

    async def find_sweep(self, ref: str) -> AsyncSweep:
        """Return a sweep by id, unique prefix of an id, or name (the newest of that name)."""
        ...

    async def rollout(
        self,
        spec: Path | str | dict[str, Any] | RolloutSpec,
        overrides: Overrides = (),
        *,
        provenance: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncRollout:
        """Launch a rollout: a run brought up in stages, each starting after the gates of the
        previous one.

        For an existing rollout use ``find_rollout``.

        Raises:
            SpecError: with every problem found; nothing was recorded.
        """
        ...

    async def rollouts(
        self, *, project: str | None = None, note: str | None = None, limit: int | None = None
    ) -> list[AsyncRollout]:
        """Return rollouts, newest first: all that match, or at most ``limit``."""
        ...

    async def find_rollout(self, ref: str) -> AsyncRollout:
        """Return a rollout by id, unique prefix of an id, or name (the newest of that name)."""
        ...

    async def views(self) -> list[SavedView]:
        """Return the saved views of the runs page, by name."""
        ...

    async def put_view(self, name: str, query: str) -> SavedView:
        """Save a view of the runs page, or replace the one of that name.

        ``query`` is the query of the page's address, without its question mark.
        """
        ...

    async def delete_view(self, name: str) -> None:
        """Remove a saved view."""
        ...

    async def code(self, ref: str) -> CapsuleView:
        """Return the files of a capsule: by its digest or the beginning of one, or of a run."""
        ...

    async def code_diff(self, ref: str, other: str) -> CodeDiff:
        """Return what changed from the code of ``ref`` to that of ``other``: runs or capsules."""
        ...

    async def code_checkout(self, ref: str, folder: Path | str) -> Path:
        """Write the code of a run, or a capsule, into a new folder; return the folder.

        Raises:
            UserError: the folder exists and is not empty, or it cannot be written.
        """
        ...

    async def webhooks(self) -> list[WebhookView]:
        """Return the webhooks of the server by name. Their addresses are not shown."""
        ...

    async def put_webhook(self, name: str, url: str) -> WebhookView:
        """Add a webhook, or give it another address."""
        ...

    async def delete_webhook(self, name: str) -> None:
        """Remove a webhook. Specs that name it send nothing any more."""
        ...

    async def test_webhook(self, name: str) -> WebhookView:
        """Send a message to a webhook now."""
        ...

    async def health(self) -> Health:
        """Return the server's health; needs no token."""
        ...

    def stream(self, run: str | None = None) -> AsyncIterator[StreamEvent]:
        """Yield events of all runs or one, as they happen. Reconnects by itself."""
        ...

    async def check(
        self, spec: Path | str | dict[str, Any] | Spec, overrides: Overrides = ()
    ) -> SubmissionCheck:
        """Check a run, sweep or rollout as if it were submitted. Nothing is recorded or sent.

        Raises:
            SpecError: with every problem found; a submission raises the same.
        """
        ...
