"""``Client``: the entry point of the Python client."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote, urlsplit

from lehr import __version__
from lehr.base import home
from lehr.errors import ServerUnavailable, UserError
from lehr.faces.client import problems
from lehr.faces.client.admin import AdminMethods
from lehr.faces.client.checkpoints import DownloadProgress, choose, convert
from lehr.faces.client.comparisons import Comparison
from lehr.faces.client.refs import RefMethods
from lehr.faces.client.rollouts import Rollout
from lehr.faces.client.runs import Run
from lehr.faces.client.server_object import recorded
from lehr.faces.client.submission import checkout, load, plain, with_capsule
from lehr.faces.client.submission import provenance as gather_provenance
from lehr.faces.client.sweeps import Sweep
from lehr.faces.client.transport import StreamEvent, Transport
from lehr.schemas.base import Health, Page
from lehr.schemas.checkpoints import CapsuleView, CodeDiff
from lehr.schemas.comparisons import ClaimView
from lehr.schemas.laws import LawView
from lehr.schemas.rollouts import RolloutDetail, RolloutView
from lehr.schemas.runs import Opened, RunDetail, RunView, SubmissionCheck
from lehr.schemas.sweeps import SweepDetail, SweepView
from lehr.specs import RolloutSpec, RunSpec, Spec, SweepSpec
from lehr.specs.overrides import Overrides


class Client(RefMethods, AdminMethods):
    """A Lehr server, as Python objects.

    ::

        lehr = Client()                                     # the local server and its token
        sweep = lehr.sweep("sweeps/lr_grid.yaml", {"run.train.steps": 200})
        sweep.wait()
        sweep.best().history("train/loss", "val/loss")

    Every method raises ``lehr.errors.ServerUnavailable`` when no server answers,
    ``Unauthorized`` when the token is not the server's, and ``UserError`` (with ``NotFound``,
    ``Conflict``, ``SpecError``) when the request itself is wrong.
    """

    def __init__(
        self,
        server: str | None = None,
        token: str | None = None,
        *,
        timeout_s: float = 30.0,
        on_silence: Callable[[str], None] | None = None,
    ) -> None:
        """Connect to a server.

        ``on_silence`` is called from another thread when an answer takes over 3 s.

        Raises:
            ServerUnavailable: no address is given, and no server of this home runs.
        """
        address = server or home.server_url()
        if address is None and home.lock_holder(home.home(), "up.lock") is not None:
            raise ServerUnavailable(
                f"the Lehr server of {home.home()} is being started or stopped.",
                hint="Try again in some seconds.",
            )
        if address is None:
            raise ServerUnavailable(
                f"no Lehr server is running for {home.home()}.", hint=problems.no_server()
            )
        token = token or os.environ.get("LEHR_TOKEN")
        named = bool(server or os.environ.get("LEHR_SERVER"))
        own = home.read_server(home.home())
        # An explicit server with an explicit token is trusted. Any other gets a token only while it
        # is this home's server.
        send_token_while = None
        if own is not None and (not named or (token is None and _is_port_here(address, own.url))):
            # Not `localhost`: another program may have the port on another loopback address.
            address = own.url
            token = token or home.read_token(home.home())
            send_token_while = partial(home.server_runs, home.home(), own.url)
        self.transport = Transport(
            address,
            token,
            send_token_while=send_token_while,
            timeout_s=timeout_s,
            on_silence=on_silence,
        )

    @property
    def server(self) -> str:
        return self.transport.server

    def close(self) -> None:
        self.transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.server!r})"

    # --- runs ------------------------------------------------------------------------------

    def submit(
        self,
        spec: Path | str | dict[str, Any] | RunSpec,
        overrides: Overrides = (),
        *,
        provenance: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Run:
        """Submit one run; it is recorded and queued when this returns.

        ``spec`` is the path of a file, YAML text, a dict or a ``RunSpec``.

        Raises:
            SpecError: with every problem found; nothing was recorded.
        """
        answer = self._launch("run", spec, overrides, provenance, idempotency_key)
        return Run(self.transport, RunDetail.model_validate_json(answer))

    def runs(
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
        sort: str | None = None,
        limit: int | None = None,
    ) -> list[Run]:
        """Return runs: all that match, or at most ``limit``.

        ``search`` is a part of a name, id, project or tag, ``note`` of a note. They are newest
        first, or by ``sort``: a metric, a path of the config or a column, with ``-`` the highest
        first; several with commas.

        Raises:
            UserError: no run has what ``sort`` names.
        """
        params = {
            "project": project,
            "state": [states] if isinstance(states, str) else states,
            "sweep": sweep,
            "name": name,
            "tag": tag,
            "search": search,
            "note": note,
            "archived": archived,
            "sort": sort,
        }
        views = self.transport.pages("/runs", Page[RunView], params, limit)
        return [Run(self.transport, view) for view in views]

    def compare(
        self,
        *refs: str | Run,
        metric: str = "",
        x: Literal["step", "tokens", "time", "flops", "end"] = "step",
        by: str = "",
    ) -> Comparison:
        """Compare runs: differences of their configs, and the metric at equal ``x``.

        The first is the baseline. Without ``metric`` it is ``val/loss``, or another one that all
        runs have. ``notes`` lists limits of the comparison: more than one factor differs, or a
        difference is within the noise between seeds. ``by`` groups the runs by paths
        of the config, metrics (``val/loss``, or ``val/loss<2.5``), ``tag`` or ``project``, with
        commas between them; ``groups`` then has their means.

        Raises:
            NotFound: no such run, or none of them has the metric or what ``by`` names.
        """
        ids = [ref if isinstance(ref, str) else ref.id for ref in refs]
        query = {"run": ids, "metric": metric or None, "x": x, "by": by or None}
        answer = self.transport.get("/compare", query)
        return Comparison.read(self.transport, answer)

    def law(
        self,
        *refs: str | Sweep | Run,
        spec: Path | str | dict[str, Any] | RunSpec | RolloutSpec | None = None,
        **options: Any,
    ) -> LawView:
        """Fit the law of the final loss of sweeps and runs; predict a run or rollout, ``spec``.

        Options: ``parameters`` (without embeddings) and ``tokens`` in place of ``spec``, at the
        shape of the largest run; ``published=False``: published runs do not count as a prior.
        UserError: the runs have no common law, or too few have ended.
        """
        target = None if spec is None else plain(load(spec, ())[0])
        ids = [ref if isinstance(ref, str) else ref.id for ref in refs]
        answer = self.transport.post("/sweeps/law", {"refs": ids, "spec": target, **options})
        return LawView.model_validate_json(answer)

    def average_models(
        self,
        ingredients: Sequence[tuple[str, int | Literal["best", "last"]]],
        folder: Path | str,
        *,
        evaluate: bool = False,
        tokenizer: str | None = None,
        progress: DownloadProgress | None = None,
    ) -> dict[str, Any]:
        """Write the mean of the weights of several checkpoints, each by run and step.

        Like ``Run.export_model``, with its errors; all must be of one model. ``evaluate`` computes
        val/loss of the mean on this machine, which needs the corpus.

        Returns:
            The content of ``average.json`` in the folder, which lists the checkpoints.
        """
        folder = Path(folder).absolute()
        runs = [(self.run(ref), step) for ref, step in ingredients]
        chosen = [choose(run.detail, run.checkpoints(), step) for run, step in runs]
        convert(
            self.transport,
            [(run.id, one.step, one.attempt) for (run, _), one in zip(runs, chosen, strict=True)],
            folder,
            ["average", f"--out={folder}", *(["--evaluate"] if evaluate else [])],
            {"runs": [run.id for run, _ in runs], "lehr_version": __version__},
            tokenizer=tokenizer,
            progress=progress,
        )
        record: dict[str, Any] = json.loads((folder / "average.json").read_text("utf-8"))
        return record

    # --- sweeps ----------------------------------------------------------------------------

    def sweep(
        self,
        spec: Path | str | dict[str, Any] | SweepSpec,
        overrides: Overrides = (),
        *,
        provenance: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Sweep:
        """Launch a sweep: all its runs are recorded and queued when this returns.

        Of a campaign that is its first trial. For an existing sweep use ``find_sweep``.

        Raises:
            SpecError: with every problem found; nothing was recorded.
        """
        answer = self._launch("sweep", spec, overrides, provenance, idempotency_key)
        return Sweep(self.transport, SweepDetail.model_validate_json(answer))

    campaign = sweep

    def sweeps(
        self, *, project: str | None = None, note: str | None = None, limit: int | None = None
    ) -> list[Sweep]:
        """Return sweeps, newest first: all that match, or at most ``limit``."""
        views = self.transport.pages(
            "/sweeps", Page[SweepView], {"project": project, "note": note}, limit
        )
        return [Sweep(self.transport, view) for view in views]

    # --- rollouts --------------------------------------------------------------------------

    def rollout(
        self,
        spec: Path | str | dict[str, Any] | RolloutSpec,
        overrides: Overrides = (),
        *,
        provenance: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> Rollout:
        """Launch a rollout: a run brought up in stages, each starting after the gates of the
        previous one.

        For an existing rollout use ``find_rollout``.

        Raises:
            SpecError: with every problem found; nothing was recorded.
        """
        answer = self._launch("rollout", spec, overrides, provenance, idempotency_key)
        return Rollout(self.transport, RolloutDetail.model_validate_json(answer))

    def rollouts(
        self, *, project: str | None = None, note: str | None = None, limit: int | None = None
    ) -> list[Rollout]:
        """Return rollouts, newest first: all that match, or at most ``limit``."""
        params = {"project": project, "note": note}
        views = self.transport.pages("/rollouts", Page[RolloutView], params, limit)
        return [Rollout(self.transport, view) for view in views]

    def claims(self, by: str = "") -> list[ClaimView]:
        """Return the claims of a person, by default of this token, as they were last judged."""
        return self.transport.read(Page[ClaimView], "/claims", {"by": by}).items

    # --- the rest --------------------------------------------------------------------------

    def open(self, path: Path | str) -> Opened:
        """Bring the runs of a file ``*.lehr.html`` into the server, as they ended elsewhere."""
        try:
            with Path(path).open("rb") as file:
                answer = self.transport.upload("/bundles", file, Path(path).stat().st_size)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}.") from error
        return Opened.model_validate_json(answer)

    def code(self, ref: str) -> CapsuleView:
        """Return the files of a capsule: by its digest or the beginning of one, or of a run."""
        return self.transport.read(CapsuleView, f"/code/{quote(ref, safe='')}")

    def code_diff(self, ref: str, other: str) -> CodeDiff:
        """Return what changed from the code of ``ref`` to that of ``other``: runs or capsules."""
        return self.transport.read(CodeDiff, f"/code/{quote(ref, safe='')}/diff", {"other": other})

    def code_checkout(self, ref: str, folder: Path | str) -> Path:
        """Write the code of a run, or a capsule, into a new folder; return the folder.

        Raises:
            UserError: the folder exists and is not empty, or it cannot be written.
        """
        return checkout(self.transport, ref, Path(folder))

    def health(self) -> Health:
        """Return the server's health; needs no token."""
        return self.transport.read(Health, "/health")

    def stream(self, run: str | None = None) -> Iterator[StreamEvent]:
        """Yield events of all runs or one, as they happen. Reconnects by itself."""
        return self.transport.events({"run": run})

    def check(
        self, spec: Path | str | dict[str, Any] | Spec, overrides: Overrides = ()
    ) -> SubmissionCheck:
        """Check a run, sweep or rollout as if it were submitted. Nothing is recorded or sent.

        Raises:
            SpecError: with every problem found; a submission raises the same.
        """
        loaded, folder = load(spec, overrides)
        pinned = with_capsule(None, loaded, folder)
        # Code that was collected now is not sent; a capsule that the spec names must be there.
        body = {"kind": loaded.kind, "spec": plain(pinned), "code_sent": pinned is loaded}
        answer = self.transport.post("/checks", body)
        return SubmissionCheck.model_validate_json(answer)

    def _launch(
        self,
        kind: str,
        spec: Path | str | dict[str, Any] | Spec,
        overrides: Overrides,
        provenance: Mapping[str, Any] | None,
        key: str | None,
    ) -> bytes:
        loaded, folder = load(spec, overrides, want=kind)
        loaded = with_capsule(self.transport, loaded, folder)
        body = {
            "spec": plain(loaded),
            "provenance": dict(gather_provenance(folder) if provenance is None else provenance),
        }
        return recorded(self.transport, f"/{kind}s", body, key)


def _is_port_here(server: str, own: str) -> bool:
    """Return whether an address is of this machine alone, and has the port of ``own``."""
    address = urlsplit(server)
    return home.is_loopback(address.hostname or "") and address.port == urlsplit(own).port
