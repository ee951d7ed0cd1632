"""Watch live runs: act on each of their alerts once, as their specs define."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lehr.control.lifecycle import ALERT, Desired, RunState
from lehr.errors import Conflict, NotFound
from lehr.specs.run import AlertActions
from lehr.store.changes import ChangedRuns
from lehr.store.webhooks import about_alert, about_end

if TYPE_CHECKING:
    from lehr.analysis.diagnosis import Alert
    from lehr.app.alerting.sender import Sender
    from lehr.app.presenters.runs import RunPresenter
    from lehr.specs.run import AlertAction
    from lehr.store import Store
    from lehr.store.tables import RunRow

GATHER_S = 2.0
"""Changes are gathered for so long."""
MESSAGE = "webhook:"
"""Prefix of the actor of a message's note; the webhook's name follows."""
_DESIRED = {"pause": Desired.PAUSE, "stop": Desired.CANCEL}


class AlertWatch:
    """A thread that diagnoses runs while they train and carries out their alerts' actions.

    What an alert did is recorded with the run, in the same table as people's requests. So it acts
    once, also over restarts of the server and of the run; a run that was resumed after a pause is
    not paused for the same alert again.
    """

    def __init__(
        self,
        store: Store,
        runs: RunPresenter,
        messages: Sender,
        *,
        wake: Callable[[], Any],
        server_url: str,
    ) -> None:
        self._store = store
        self._runs = runs
        self._messages = messages
        self._wake = wake
        self._url = server_url
        self._changed = ChangedRuns(
            store,
            self._look,
            name="alerts",
            gather_s=GATHER_S,
            of_interest=lambda change: change.kind in {"run", "metrics"},
        )

    def start(self) -> None:
        running = self._store.runs.by_state([RunState.RUNNING])
        self._changed.start(run.id for run in running)

    def stop(self) -> None:
        self._changed.stop()

    def _look(self, run_id: str) -> None:
        with contextlib.suppress(NotFound):  # Deleted meanwhile.
            self.act(run_id)

    def act(self, run_id: str) -> None:
        """Carry out what the run's alerts and its end ask for, as far as that was not done."""
        run = self._store.runs.get(run_id)
        ended = RunState(run.state).ended
        settings = AlertActions.model_validate(run.spec.get("alerts") or {})
        if not run.attempt or not (ended or run.state == RunState.RUNNING):
            return
        done: set[str] | None = None
        for alert in self._runs.alerts(run):
            done = self._done(run) if done is None else done
            if f"{ALERT}{alert.code}" not in done:
                self._carry_out(run, alert, settings)
        if ended and settings.webhook is not None:
            note = f"{MESSAGE}{settings.webhook}:{run.attempt}"
            if note not in (self._done(run) if done is None else done):
                with self._store.transaction():
                    self._store.requests.note(
                        run.id, "message", actor=note, message=f"the run is {run.state}"
                    )
                    self._messages.put(settings.webhook, about_end(run, server=self._url))
                self._messages.wake()

    def _done(self, run: RunRow) -> set[str]:
        return {request.actor for request in self._store.requests.of_run(run.id)}

    def _carry_out(self, run: RunRow, alert: Alert, settings: AlertActions) -> None:
        action: AlertAction = settings.action(alert.code)
        actor = f"{ALERT}{alert.code}"
        message = f"{alert.code} at step {alert.step:,}: {alert.seen}"
        # One transaction: no alert acts twice, and none acts without its message.
        with self._store.transaction():
            if action in _DESIRED:
                try:
                    self._store.requests.set_desired(
                        run.id, _DESIRED[action], actor=actor, message=message
                    )
                except Conflict:  # It has ended, or is being cancelled.
                    action = "warn"
            # Also where the state was requested already: what is recorded is not done again.
            if actor not in self._done(run):
                self._store.requests.note(run.id, action, actor=actor, message=message)
            if settings.webhook is not None and action != "note":
                text = about_alert(run, alert, action, server=self._url)
                self._messages.put(settings.webhook, text)
        if action in _DESIRED:
            self._wake()
        self._messages.wake()
