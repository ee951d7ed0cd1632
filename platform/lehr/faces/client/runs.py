"""``Run``: one run of a server, with its data and actions."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from zipfile import ZipFile

from lehr.base.bundle import SUFFIX
from lehr.errors import UserError
from lehr.faces.client import checkpoints
from lehr.faces.client.checkpoints import LONG_S, DownloadProgress, Step
from lehr.faces.client.run_data import RunData
from lehr.faces.client.server_object import recorded
from lehr.faces.client.submission import with_current_code
from lehr.schemas.checkpoints import CheckpointDeletion, CheckpointVerdict, CheckpointView
from lehr.schemas.comparisons import ClaimView
from lehr.schemas.runs import Deletion, RunDetail
from lehr.schemas.sweeps import SweepDetail
from lehr.specs.run import RunSpec
from lehr_trainer.contract.records import Evaluation

if TYPE_CHECKING:
    from lehr.control.cooldowns import Cooldown, Shape
    from lehr.faces.client.sweeps import Sweep


class Run(RunData):
    """A run as last read; ``refresh()`` reads it again."""

    def checkpoints(self) -> list[CheckpointView]:
        """Return its checkpoints by step; deleted ones stay listed, with ``removed_at``."""
        return self._list("/checkpoints", CheckpointView)

    def report(self, path: Path | str, *, checkpoint: Step | None = None) -> Path:
        """Write a report, to ``*.lehr.html`` also a checkpoint; raises as its download does."""
        if checkpoint is None:
            return super().report(path)
        if not str(path).endswith(SUFFIX):
            raise UserError(f"only a file NAME{SUFFIX} can have a checkpoint, not {path}.")
        point = checkpoints.choose(self.detail, self.checkpoints(), checkpoint)
        with tempfile.TemporaryDirectory(dir=Path(path).parent) as scratch:
            folder = Path(scratch, "checkpoint")
            self.download_checkpoint(point.step, folder, attempt=point.attempt)
            with ZipFile(super().report(path), "a") as archive:
                for file in sorted(folder.iterdir()):
                    archive.write(file, f"runs/{self.id}/{point.path}/{file.name}")
        return Path(path)

    def verify_checkpoint(self, step: int, *, attempt: int | None = None) -> CheckpointVerdict:
        """Have the server read a checkpoint completely, in every location, and check its
        digests.
        """
        answer = self._transport.post(
            f"{self._path}/checkpoints/{step}/verify", params={"attempt": attempt}, within_s=LONG_S
        )
        return CheckpointVerdict.model_validate_json(answer)

    def download_checkpoint(
        self,
        step: int,
        folder: Path | str,
        *,
        attempt: int | None = None,
        progress: DownloadProgress | None = None,
    ) -> Path:
        """Download a checkpoint into a new folder and check every digest.

        Default of ``attempt``: the newest that saved at this step. ``progress`` is called with the
        bytes so far, and the total.

        Raises:
            NotFound: there is no checkpoint at that step; the nearest is named.
            Conflict: the folder exists, or no location of the checkpoint can be read.
        """
        target = Path(folder)
        checkpoints.download(
            self._transport, self.id, step, target, attempt=attempt, progress=progress
        )
        return target

    def export_model(
        self,
        folder: Path | str,
        step: int | Literal["best", "last"] = "last",
        *,
        attempt: int | None = None,
        average: bool = False,
        tokenizer: str | None = None,
        overwrite: bool = False,
        progress: DownloadProgress | None = None,
    ) -> Path:
        """Write the model of a checkpoint to a folder that ``transformers`` loads.

        The folder gets weights, config, tokenizer and a model card with the run's provenance. It
        appears once it is complete. The weights are downloaded from the run's directory or its
        copy, and converted on this machine, which needs ``lehr[trainer]``.

        Args:
            folder: folder to make.
            step: step of the checkpoint; ``best`` has the lowest val/loss.
            attempt: number of the attempt. Default: the newest that saved at this step.
            average: export the running average of its weights (``train.average``).
            tokenizer: where the run's tokenizer is on this machine, if not where the run found it;
                ``none`` leaves it out.
            overwrite: replace an earlier export.
            progress: called with the bytes downloaded so far, and the total.

        Raises:
            NotFound: there is no such checkpoint.
            Conflict: the folder is not empty, or no location of the checkpoint can be read.
            UserError: the model or its tokenizer cannot be exported.
        """
        folder = Path(folder).absolute()
        if not isinstance(step, int):
            chosen = checkpoints.choose(self.detail, self.checkpoints(), step)
            step, attempt = chosen.step, attempt or chosen.attempt
        checkpoints.convert(
            self._transport,
            [(self.id, step, attempt)],
            folder,
            ["export", str(folder), *(["--average"] if average else [])],
            checkpoints.facts(self.detail),
            kinds=checkpoints.KINDS | ({"average"} if average else set()),
            tokenizer=tokenizer,
            overwrite=overwrite,
            progress=progress,
        )
        return folder

    def evaluate(
        self,
        step: int | Literal["best", "last"] = "last",
        tasks: Sequence[Path | str] = (),
        *,
        tokenizer: str | None = None,
    ) -> Evaluation:
        """Evaluate a checkpoint on files of tasks, by default on ``train.evals``, and add the
        values to the run's curves at that step.

        The weights are downloaded and evaluated on this machine, which needs ``lehr[trainer]`` and
        the files. Raises what ``export_model`` does.
        """
        chosen = checkpoints.choose(self.detail, self.checkpoints(), step)
        arguments = ["eval", *(["--tasks", *map(str, tasks)] if tasks else [])]
        with tempfile.TemporaryDirectory(prefix="lehr-eval-") as scratch:
            record, folder = Path(scratch) / "record.json", Path(scratch) / "checkpoint"
            point = (self.id, chosen.step, chosen.attempt)
            arguments.insert(1, f"--out={record}")
            checkpoints.convert(
                self._transport, [point], folder, arguments, None, tokenizer=tokenizer
            )
            body = json.loads(record.read_text("utf-8"))
        path = f"{self._path}/checkpoints/{chosen.step}/evaluations?attempt={chosen.attempt}"
        return Evaluation.model_validate_json(self._transport.post(path, body))

    def checkpoint_deletion(self, step: int, *, attempt: int | None = None) -> CheckpointDeletion:
        """Return what ``delete_checkpoint`` would free."""
        path = f"{self._path}/checkpoints/{step}/deletion"
        return self._transport.read(CheckpointDeletion, path, {"attempt": attempt})

    def delete_checkpoint(self, step: int, *, attempt: int | None = None) -> CheckpointDeletion:
        """Delete one checkpoint and its copy, unless a run still needs it."""
        answer = self._transport.delete(
            f"{self._path}/checkpoints/{step}", {"attempt": attempt}, within_s=LONG_S
        )
        return CheckpointDeletion.model_validate_json(answer)

    def pause(self) -> Self:
        """Save a checkpoint, stop, and free the GPUs; ``resume`` continues from there."""
        return self._act("pause")

    def resume(self) -> Self:
        return self._act("resume")

    def retry(self) -> Self:
        """Queue a failed run again, from its last checkpoint."""
        return self._act("retry")

    def set_priority(self, priority: int) -> Self:
        """Change its place in the queue, from -100 to 100: runs of a higher priority start first.
        Specs have 0 unless they say otherwise.
        """
        return self._update(self._transport.put(f"{self._path}/priority", {"priority": priority}))

    def checkpoint(self) -> Self:
        """Save a checkpoint at the next step."""
        return self._act("checkpoint")

    def tag(self, *tags: str) -> Self:
        """Add tags and keep the existing ones."""
        return self._act("tags", {"add": list(tags)})

    def untag(self, *tags: str) -> Self:
        """Remove tags; a missing tag is no error."""
        return self._act("tags", {"remove": list(tags)})

    def deletion(self) -> Deletion:
        """Return what ``delete`` would free."""
        return self._transport.read(Deletion, f"/runs/{self.id}/deletion")

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

    def cooldown(
        self,
        tokens: int | str,
        at: int | None = None,
        *,
        to: float = 0.0,
        shape: Shape = "linear",
        name: str | None = None,
        below_peak: bool = False,
        idempotency_key: str | None = None,
    ) -> Run:
        """Start a run that decays the learning rate of this one over so many tokens: a fork.

        ::

            run.cooldown("2B", at=8_000)

        Args:
            tokens: to train on after the checkpoint, e.g. 2B; rounded up to whole steps.
            at: step of the checkpoint. Default: the newest.
            to: rate at the last step, as a share of the rate at the checkpoint.
            shape: of the decay: linear, or sqrt (1 - sqrt of the share done).
            name: of the new run. Default: NAME-cooldown-TOKENS.
            below_peak: allow a checkpoint where the rate of this run is not at its peak; the decay
                then begins from that rate.
            idempotency_key: identifies this request, so that repeating it is safe.

        Raises:
            NotFound: there is no checkpoint at that step; the nearest is named.
            UserError: an argument is wrong, or the run trains with a program of its own.
        """
        planned = self.plan_cooldown(
            tokens, at=at, to=to, shape=shape, name=name, below_peak=below_peak
        )
        return self.fork(planned.step, planned.changes, idempotency_key=idempotency_key)

    def plan_cooldown(self, tokens: int | str, **options: Any) -> Cooldown:
        """Return what ``cooldown`` of the same arguments would record, and record nothing."""
        from lehr.control.cooldowns import cooldown

        saved = [point for point in self.checkpoints() if point.removed_at is None]
        return cooldown(RunSpec.model_validate(self.detail.spec), saved, tokens, **options)

    def seeds(
        self,
        n: int = 3,
        *,
        provenance: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Sweep:
        """Repeat it ``n`` times, 1 to 20, with new seeds, as a sweep over the seed.

        Once they have ended, ``client.compare`` of this run, the sweep's runs and other runs judges
        differences by the noise between seeds. With ``idempotency_key``, repeating the request is
        safe.

        Raises:
            UserError: ``n`` is out of its range.
            Conflict: it was deleted or archived, or it is a fork.
        """
        from lehr.faces.client.submission import provenance as gathered
        from lehr.faces.client.sweeps import Sweep

        body = {"n": n, "provenance": dict(provenance or gathered(None))}
        answer = recorded(self._transport, f"/runs/{self.id}/seeds", body, idempotency_key)
        return Sweep(self._transport, SweepDetail.model_validate_json(answer))

    def judge(self, *, add_seeds: bool = False) -> ClaimView:
        """Judge its claim. ``add_seeds``: start the next pairs of runs, if none is training."""
        answer = self._transport.post(f"{self._path}/judge", params={"add_seeds": add_seeds})
        return ClaimView.model_validate_json(answer)

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
        return self._act("wandb", {**body, "job_type": job_type, "tags": list(tags)})
