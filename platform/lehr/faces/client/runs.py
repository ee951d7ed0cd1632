"""``Run``: one run of a server, with its data and actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from lehr.faces.client.capsules import with_current_code
from lehr.faces.client.run_checkpoints import RunCheckpointMethods
from lehr.faces.client.run_logs import RunLogMethods
from lehr.faces.client.run_metrics import RunMetricMethods
from lehr.faces.client.server_object import recorded
from lehr.schemas.runs import Deletion, RunDetail, RunView
from lehr.schemas.sweeps import SweepDetail

if TYPE_CHECKING:
    from lehr.faces.client.sweeps import Sweep


class Run(RunMetricMethods, RunLogMethods, RunCheckpointMethods):
    """A run as last read; ``refresh()`` reads it again."""

    def cancel(self) -> Self:
        """Stop it without saving."""
        return self._act("cancel")

    def pause(self) -> Self:
        """Save a checkpoint, stop, and free the GPUs; ``resume`` continues from there."""
        return self._act("pause")

    def resume(self) -> Self:
        return self._act("resume")

    def retry(self) -> Self:
        """Queue a failed run again, from its last checkpoint."""
        return self._act("retry")

    def set_priority(self, priority: int) -> Self:
        """Change its place in the queue: runs of a higher priority start first.

        Args:
            priority: from -100 to 100. Specs have 0 unless they say otherwise.
        """
        answer = self._transport.put(f"{self._path}/priority", {"priority": priority})
        self.view = self._detail_of(answer)
        return self

    def checkpoint(self) -> Self:
        """Save a checkpoint at the next step."""
        return self._act("checkpoint")

    def archive(self) -> Self:
        """Hide it from lists, once it has ended. Nothing is deleted."""
        return self._act("archive")

    def tag(self, *tags: str) -> Self:
        """Add tags and keep the existing ones."""
        return self._change_tags(add=tags)

    def untag(self, *tags: str) -> Self:
        """Remove tags; a missing tag is no error."""
        return self._change_tags(remove=tags)

    def _change_tags(self, **change: Sequence[str]) -> Self:
        body = {name: list(tags) for name, tags in change.items()}
        answer = self._transport.post(f"/runs/{self.id}/tags", body)
        self.view = RunDetail.model_validate_json(answer)
        return self

    def deletion(self) -> Deletion:
        """Return what ``delete`` would free."""
        return Deletion.model_validate_json(self._transport.get(f"/runs/{self.id}/deletion"))

    def delete(self) -> Deletion:
        """Delete its checkpoints, metrics, logs and files, for good. Its record stays, archived."""
        return Deletion.model_validate_json(self._transport.delete(f"/runs/{self.id}"))

    def fork(
        self,
        step: int | None = None,
        changes: Mapping[str, Any] | Sequence[str] = (),
        *,
        code: Literal["same", "current"] = "same",
        optimizer_state: Literal["keep", "fresh"] = "keep",
        provenance: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Run:
        """Start a new run from a checkpoint of this one, with changes.

        ::

            run.fork(step=15_000, changes={"train.optimizer.lr": 1.5e-4})

        Args:
            step: step of the checkpoint. Default: the newest.
            changes: values by dotted path. A new warmup begins at the checkpoint.
            code: same: train with the code of this run; current: with the code as it is here now.
            optimizer_state: fresh starts the optimizer without the checkpoint's state, as another
                optimizer must.
            provenance: where the request comes from. Default: commit, host and command.
            idempotency_key: identifies this request, so that repeating it is safe.

        Raises:
            NotFound: there is no checkpoint at that step; the nearest is named.
            SpecError: a change is wrong, or would need other weights than the checkpoint's.
        """
        from lehr.faces.client.submission import provenance as gathered

        given = dict(changes) if isinstance(changes, Mapping) else list(changes)
        if code == "current":
            given = with_current_code(self._transport, self.detail.spec, given)
        body = {
            "step": step,
            "changes": given,
            "optimizer_state": optimizer_state,
            "provenance": dict(provenance or gathered(None)),
        }
        answer = recorded(self._transport, f"/runs/{self.id}/fork", body, idempotency_key)
        return Run(self._transport, RunDetail.model_validate_json(answer))

    def seeds(
        self,
        n: int = 3,
        *,
        provenance: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Sweep:
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
        from lehr.faces.client.submission import provenance as gathered
        from lehr.faces.client.sweeps import Sweep

        body = {"n": n, "provenance": dict(provenance or gathered(None))}
        answer = recorded(self._transport, f"/runs/{self.id}/seeds", body, idempotency_key)
        return Sweep(self._transport, SweepDetail.model_validate_json(answer))

    def mirror(
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
        body = {"mode": mode, "project": project, "entity": entity, "group": group}
        answer = self._transport.post(
            f"/runs/{self.id}/wandb", {**body, "job_type": job_type, "tags": list(tags)}
        )
        self.view = RunDetail.model_validate_json(answer)
        return self

    def wait(
        self,
        *,
        timeout_s: float | None = None,
        progress: Callable[[RunView], None] | None = None,
    ) -> Self:
        """Wait until it has ended. Interrupting only stops the waiting, never the run.

        Args:
            timeout_s: give up after this time.
            progress: called with each new view. Without it, a notebook shows a live table, a
                terminal a bar on stderr.

        Raises:
            TimeoutError: it had not ended in time.
        """
        self._until_ended(self, lambda: self.view, timeout_s, progress)
        return self
