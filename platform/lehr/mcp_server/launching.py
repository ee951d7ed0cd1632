"""Tools that launch and stop, within the account's budget.

Each launch has a ``request_id`` that the agent chooses. Repeating it, also after a restart of this
program, launches nothing more and answers with what it made.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

from pydantic import Field

from lehr.client import Rollout, Run, Sweep
from lehr.errors import Conflict, UserError
from lehr.mcp_server.answers import Answer, ago, brief_run
from lehr.mcp_server.budget import AgentBudget
from lehr.mcp_server.estimates import RETRIED, LaunchEstimates
from lehr.mcp_server.ledger import NOTHING, Amount, Book, Done, Kind, Ledger, Pending, now
from lehr.specs import load_spec

if TYPE_CHECKING:
    from lehr.client import Client

RequestId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=100,
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
REPLAYED_WITHIN_S = 6 * 24 * 3600.0
"""The server remembers a request's key for seven days."""
_log = logging.getLogger("lehr.mcp")


class Launching:
    """The tools, for one account."""

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        budget: AgentBudget,
        estimates: LaunchEstimates,
        *,
        may_stop_others: bool = False,
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._budget = budget
        self._estimates = estimates
        self._may_stop_others = may_stop_others

    # --- tools ---------------------------------------------------------------------------------

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

    def retry(self, request_id: RequestId, ref: Ref) -> Answer:
        """Queue a failed run again from its last checkpoint, or the failed trials of a sweep."""
        found = self._client.find(ref, "retry")
        if isinstance(found, Sweep):
            return self._more(
                request_id, "retry", found, None, lambda: self._estimates.of_retry(found)
            )
        return self._more(
            request_id, "retry", found, None, lambda: self._estimates.of_run(found.spec)
        )

    def resume(self, request_id: RequestId, ref: Ref) -> Answer:
        """Queue a paused run again, from its checkpoint."""
        run = self._client.run(ref, "resume")
        total = run.view.total_steps
        left = max(1 - (run.step or 0) / total, 0.0) if total else 1.0
        return self._more(
            request_id,
            "resume",
            run,
            None,
            lambda: self._estimates.of_run(run.spec, remaining=left),
        )

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
        given = {"parameters": parameters, "points": points, "trials": trials}
        more = {name: value for name, value in given.items() if value is not None}
        sweep = self._client.find_sweep(ref)
        return self._more(
            request_id, "extend", sweep, more, lambda: self._estimates.of_extension(sweep, more)
        )

    def repeat_seeds(
        self, request_id: RequestId, ref: Ref, n: Annotated[int, Field(ge=1, le=20)] = 3
    ) -> Answer:
        """Repeat a run with other seeds, as a sweep, to measure the noise between seeds."""
        run = self._client.run(ref)
        planned = self._estimates.of_run(run.spec)
        body = {"n": n, "provenance": self._provenance()}
        total = NOTHING
        for _ in range(n):
            total += planned
        return self._launch(
            request_id, "seeds", "sweep", f"/runs/{run.id}/seeds", body, lambda: total
        )

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
        run = self._client.run(ref)
        body = {"step": step, "changes": changes or {}, "provenance": self._provenance()}
        return self._launch(
            request_id,
            "fork",
            "run",
            f"/runs/{run.id}/fork",
            body,
            lambda: self._estimates.of_fork(run, step, changes or {}),
        )

    def cancel(self, ref: Ref) -> Answer:
        """Stop a run, sweep or rollout for good, without saving. What it used stays counted."""
        found = self._client.find_any(ref, "cancel")
        self._refuse_others(found, "cancel")
        found.cancel()
        return {"cancelled": _brief(found)}

    def pause(self, ref: Ref) -> Answer:
        """Save a run and free its GPUs; resume continues it."""
        run = self._client.run(ref, "pause")
        self._refuse_others(run, "pause")
        return {"paused": brief_run(run.pause().view)}

    def budget(self) -> Answer:
        """Show the account: its limit, what is used, promised to live launches, and left."""
        with self._ledger.opened() as book:
            self._settle(book)
            standing = self._budget.standing(book)
            self._ledger.save(book)
            launched = [
                {"id": object_id, "kind": owned.kind, "name": owned.name, "used": owned.used}
                for object_id, owned in list(book.owned.items())[-20:]
            ]
            waiting = list(book.pending)
        return {
            "account": self._ledger.account,
            **standing.view(),
            "launched": launched,
            "unanswered_requests": waiting,
        }

    # --- launching -------------------------------------------------------------------------------

    def _new(
        self, kind: Kind, request_id: str, spec: str, overrides: Mapping[str, Any] | None
    ) -> Answer:
        loaded = load_spec(f"{spec}\n", overrides or {})
        if loaded.kind != kind:
            tool = "submit_run" if loaded.kind == "run" else f"launch_{loaded.kind}"
            raise UserError(f"this is the spec of a {loaded.kind}.", hint=f"Use {tool}.")
        body = {
            "spec": {"kind": kind, **loaded.model_dump(mode="json", exclude_unset=True)},
            "provenance": self._provenance(),
        }
        return self._launch(
            request_id, "launch", kind, f"/{kind}s", body, lambda: self._estimates.of(loaded)
        )

    def _more(
        self,
        request_id: str,
        verb: Literal["retry", "resume", "extend"],
        found: Run | Sweep,
        body: dict[str, Any] | None,
        plan: Callable[[], Amount],
    ) -> Answer:
        kind: Kind = "sweep" if isinstance(found, Sweep) else "run"
        path = f"/{kind}s/{quote(found.id, safe='')}/{verb}"
        return self._launch(request_id, verb, kind, path, body, plan, found)

    def _launch(
        self,
        request_id: str,
        verb: str,
        kind: Kind,
        path: str,
        body: dict[str, Any] | None,
        plan: Callable[[], Amount],
        found: Run | Sweep | None = None,
    ) -> Answer:
        with self._ledger.opened() as book:
            self._settle(book, but=request_id)
            known = _known(book, request_id, path, body)
        # Planned without the account's lock: it may take long, and the watch needs the account.
        planned = plan() if known is None else NOTHING
        with self._ledger.opened() as book:
            # Another program may have sent it meanwhile.
            known = _known(book, request_id, path, body) or known
            if isinstance(known, Done):
                launched = self._budget.find(known.object_id, kind)
                return {"launched": _brief(launched), "repeated": True}
            if known is None:
                self._budget.standing(book).refuse_beyond(planned)
                known = Pending(
                    verb=verb,
                    kind=kind,
                    path=path,
                    body=body,
                    planned=planned,
                    before=NOTHING if found is None else self._budget.used_by(found),
                    ended=found is not None and found.ended,
                    others=_untouched(found, verb),
                    at=now(),
                )
            book.pending[request_id] = known
            self._ledger.save(book)
            object_id = self._send(book, request_id)
            standing = self._budget.standing(book)
            self._ledger.save(book)
        return {
            "launched": _brief(self._budget.find(object_id, kind)),
            "planned": known.planned.model_dump(),
            "budget": standing.view(),
        }

    def _settle(self, book: Book, *, but: str | None = None) -> None:
        """Send launches again whose answer never came: the server records each once."""
        for request_id, pending in list(book.pending.items()):
            if request_id != but and now() - pending.at < REPLAYED_WITHIN_S:
                try:
                    self._send(book, request_id)
                except UserError as error:
                    _log.warning("launch %s is dropped: %s", request_id, error.message)

    def _send(self, book: Book, request_id: str) -> str:
        """Send a pending launch, and note its answer. Return the id of what it made.

        Raises:
            UserError: the server refused it, so that nothing was recorded; it is pending no more.
        """
        pending = book.pending[request_id]
        try:
            answer = self._client.transport.post(
                pending.path, pending.body, idempotency_key=self._key(request_id)
            )
        except UserError:
            del book.pending[request_id]
            self._ledger.save(book)
            raise
        made = json.loads(answer)
        object_id, kind = self._payer(book, made, pending.kind)
        paid = pending.model_copy(update={"ended": pending.ended and object_id == made["id"]})
        self._budget.promise(book, object_id, kind, made["name"], paid)
        book.done[request_id] = Done(
            verb=pending.verb,
            path=pending.path,
            body=pending.body,
            object_id=made["id"],
            at=now(),
        )
        del book.pending[request_id]
        self._ledger.save(book)
        return str(made["id"])

    @staticmethod
    def _payer(book: Book, made: Mapping[str, Any], kind: Kind) -> tuple[str, Kind]:
        """Return what to count: the sweep or rollout of a run, if the account pays for that."""
        for field in ("sweep_id", "rollout_id"):
            owner = book.owned.get(made.get(field) or "")
            if owner is not None:
                return str(made[field]), owner.kind
        return str(made["id"]), kind

    def _refuse_others(
        self, found: Run | Sweep | Rollout, verb: Literal["cancel", "pause"]
    ) -> None:
        if self._may_stop_others:
            return
        with self._ledger.opened() as book:
            mine = {object_id for object_id, owned in book.owned.items() if owned.launched}
            # A run that it only continued can be continued again after a pause.
            continued = verb == "pause" and found.id in book.owned
        of = [found.id]
        if isinstance(found, Run):
            of += [one for one in (found.view.sweep_id, found.view.rollout_id) if one]
        if mine.isdisjoint(of) and not continued:
            raise Conflict(
                f"{found.name} ({found.id}) was not launched by account {self._ledger.account}.",
                hint="Ask the person to stop it, or to start lehr mcp with --may-stop-others.",
            )

    def _key(self, request_id: str) -> str:
        given = f"lehr mcp\0{self._ledger.account}\0{request_id}"
        return hashlib.sha256(given.encode()).hexdigest()[:40]

    def _provenance(self) -> dict[str, Any]:
        """Return the same for each repetition of a launch, so that its request stays equal."""
        return {"command": ["lehr", "mcp", "--account", self._ledger.account]}


def _known(
    book: Book, request_id: str, path: str, body: Mapping[str, Any] | None
) -> Done | Pending | None:
    """Return the launch with this id if the account has it.

    Raises:
        Conflict: it is another one, or so old that the server may record it twice.
    """
    known = book.done.get(request_id) or book.pending.get(request_id)
    if known is not None and (known.path, known.body) != (path, body):
        raise Conflict(
            f"request_id {request_id!r} was used for another launch.",
            hint="Choose a new one, or repeat that launch unchanged.",
        )
    if isinstance(known, Pending) and now() - known.at >= REPLAYED_WITHIN_S:
        raise Conflict(
            f"the launch {request_id!r} was sent {ago(known.at)}, and its answer never came. The "
            "server has forgotten whether it got it.",
            hint="Look for it with list_runs; choose a new request_id to launch it again.",
        )
    return known


def _untouched(found: Run | Sweep | None, verb: str) -> list[str]:
    """Return the runs of a sweep that neither a retry nor an extension of it starts."""
    if not isinstance(found, Sweep):
        return []
    again = RETRIED if verb == "retry" else ()
    return [trial.run.id for trial in found.trials if trial.run.state not in again]


def _brief(found: Run | Sweep | Rollout) -> Answer:
    if isinstance(found, Run):
        return {
            **brief_run(found.refresh().view),
            "url": found.url,
            "warnings": found.detail.warnings,
        }
    return {
        "id": found.id,
        "name": found.name,
        "state": found.state,
        "counts": found.view.counts if isinstance(found, Sweep) else None,
        "warnings": found.detail.warnings if isinstance(found, Sweep) else None,
        "url": found.url,
    }
