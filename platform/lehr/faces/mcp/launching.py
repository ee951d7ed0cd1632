"""Tools that launch and stop. The server refuses what is over the budget of the agent's token.

Each launch has a ``request_id`` that the agent chooses. Repeated within seven days, also after a
restart of this program, it launches nothing more and answers with what it made.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any

from pydantic import Field

from lehr.errors import UserError
from lehr.faces.client import Client, Rollout, Run, Sweep
from lehr.faces.client.submission import plain
from lehr.faces.mcp.answers import Answer, brief_run
from lehr.specs import load_spec

RequestId = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9._-]{1,100}$",
        description="Your own word for this launch. Repeat it to repeat the call safely; choose a "
        "new one for another launch.",
    ),
]
SpecText = Annotated[
    str, Field(description="The spec as YAML or JSON text; example_spec has working ones.")
]
Overrides = Annotated[
    dict[str, Any] | None,
    Field(description='Values by dotted path, e.g. {"train.optimizer.lr": 0.001}.'),
]
Ref = Annotated[str, Field(description="Id, unique prefix of an id, or name.")]
_PROVENANCE = {"command": ["lehr", "mcp"]}
"""The same for each repetition of a launch, so that its request stays equal."""


class Launching:
    """The tools, for one token."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit_run(
        self, request_id: RequestId, spec: SpecText, overrides: Overrides = None
    ) -> Answer:
        """Submit one run, if its plan fits in the budget. It is recorded and queued."""
        return self._new("run", request_id, spec, overrides)

    def launch_sweep(
        self, request_id: RequestId, spec: SpecText, overrides: Overrides = None
    ) -> Answer:
        """Launch a sweep, if the plan of all its trials fits in the budget."""
        return self._new("sweep", request_id, spec, overrides)

    def launch_rollout(
        self, request_id: RequestId, spec: SpecText, overrides: Overrides = None
    ) -> Answer:
        """Launch a run in stages with gates, if the plan of all stages fits in the budget."""
        return self._new("rollout", request_id, spec, overrides)

    def retry(self, ref: Ref) -> Answer:
        """Queue a failed run again from its last checkpoint, or the failed trials of a sweep."""
        return self._launched(self._client.find(ref, "retry").retry())

    def resume(self, ref: Ref) -> Answer:
        """Queue a paused run again, from its checkpoint."""
        return self._launched(self._client.run(ref, "resume").resume())

    def extend_sweep(
        self,
        request_id: RequestId,
        ref: Ref,
        parameters: dict[str, list[Any]] | None = None,
        points: list[dict[str, Any]] | None = None,
        trials: int | None = None,
    ) -> Answer:
        """Add trials to a sweep: values for a grid, points for a list, a number for a search.

        next_trials of show_sweep has the most useful ones.
        """
        sweep = self._client.find_sweep(ref).extend(
            parameters, points=points, trials=trials, idempotency_key=self._key(request_id)
        )
        return self._launched(sweep)

    def repeat_seeds(
        self, request_id: RequestId, ref: Ref, n: Annotated[int, Field(ge=1, le=20)] = 3
    ) -> Answer:
        """Repeat a run with other seeds, as a sweep, to measure the noise between seeds."""
        run, key = self._client.run(ref), self._key(request_id)
        return self._launched(run.seeds(n, provenance=_PROVENANCE, idempotency_key=key))

    def judge(self, ref: Ref, add_seeds: bool = False) -> Answer:
        """Judge the claim of a run (hypothesis and baseline in its spec); add_seeds starts runs."""
        return {"claim": self._client.run(ref).judge(add_seeds=add_seeds)}

    def fork(
        self,
        request_id: RequestId,
        ref: Ref,
        step: Annotated[
            int | None, Field(description="Step of the checkpoint. Default: the newest.")
        ] = None,
        changes: Overrides = None,
    ) -> Answer:
        """Start a new run from a checkpoint of another, with changes."""
        run, key = self._client.run(ref), self._key(request_id)
        return self._launched(
            run.fork(step, changes or {}, provenance=_PROVENANCE, idempotency_key=key)
        )

    def cancel(self, ref: Ref) -> Answer:
        """Stop a run, sweep or rollout for good, without saving. What it used stays counted."""
        return {"cancelled": _brief(self._client.find_any(ref, "cancel").cancel())}

    def pause(self, ref: Ref) -> Answer:
        """Save a run and free its GPUs; resume continues it."""
        return {"paused": _brief(self._client.run(ref, "pause").pause())}

    def budget(self) -> Answer:
        """Show the budget of this token in GPU-hours: used, promised to live runs, and left."""
        return {"budget": self._client.budget()}

    def _new(
        self, kind: str, request_id: str, spec: str, overrides: Mapping[str, Any] | None
    ) -> Answer:
        loaded = load_spec(f"{spec}\n", overrides or {})
        if loaded.kind != kind:
            tool = "submit_run" if loaded.kind == "run" else f"launch_{loaded.kind}"
            raise UserError(f"this is the spec of a {loaded.kind}.", hint=f"Use {tool}.")
        # Not by the client's methods: those send the code of the folder where this program runs.
        body = {"spec": plain(loaded), "provenance": _PROVENANCE}
        key = self._key(request_id)
        made = self._client.transport.post(f"/{kind}s", body, idempotency_key=key)
        return self._launched(self._client.find_any(json.loads(made)["id"]))

    def _launched(self, launched: Run | Sweep | Rollout) -> Answer:
        return {"launched": _brief(launched), **self.budget()}

    def _key(self, request_id: str) -> str:
        return f"mcp:{self._holder}:{request_id}"

    @cached_property
    def _holder(self) -> str:
        return self._client.budget().name


def _brief(launched: Run | Sweep | Rollout) -> Answer:
    if isinstance(launched, Run):
        return {**brief_run(launched.view), "url": launched.url}
    fields = {"id", "name", "state", "counts", "warnings"}
    return {**launched.view.model_dump(mode="json", include=fields), "url": launched.url}
