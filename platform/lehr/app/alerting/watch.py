"""Watch live runs: act on each of their alerts once, as their specs define."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any

from lehr.analysis.diagnosis import Alert
from lehr.app.alerting.sender import Sender
from lehr.app.presenters.runs import RunPresenter
from lehr.control.lifecycle import ALERT, REWIND, Desired, RunState
from lehr.control.saved_points import Rewound, point_before
from lehr.errors import Conflict, NotFound
from lehr.specs.run import AlertAction, AlertActions
from lehr.store import Store
from lehr.store.changes import ChangedRuns
from lehr.store.tables import RunRow
from lehr.store.webhooks import about_alert, about_end
from lehr_trainer.contract import layout

GATHER_S = 2.0  # Changes are gathered for so long.
MESSAGE = "webhook:"  # Prefix of the actor of a message's note; the webhook's name follows.
_LATE, _LATE_STEPS = 0.05, 100
"""Share of all steps, and least number of them, after which a spike is not worth a rewind: the
server was away meanwhile."""
_DESIRED = {"pause": Desired.PAUSE, "stop": Desired.CANCEL}


@dataclass(eq=False, repr=False)
class AlertWatch:
    """A thread that diagnoses runs while they train and carries out their alerts' actions.

    What an alert did is recorded with the run, in the same table as people's requests. So it acts
    once, also over restarts of the server and of the run; a run that was resumed after a pause is
    not paused for the same alert again.
    """

    store: Store
    runs: RunPresenter
    messages: Sender
    _: KW_ONLY
    wake: Callable[[], Any]
    server_url: str

    def __post_init__(self) -> None:
        self._changed = ChangedRuns(
            self.store,
            self._look,
            name="alerts",
            gather_s=GATHER_S,
            of_interest=lambda change: change.kind in {"run", "metrics"},
        )

    def start(self) -> None:
        running = self.store.runs.by_state([RunState.RUNNING, RunState.EXTERNAL])
        self._changed.start(run.id for run in running)

    def stop(self) -> None:
        self._changed.stop()

    def _look(self, run_id: str) -> None:
        with contextlib.suppress(NotFound):  # Deleted meanwhile.
            self.act(run_id)

    def act(self, run_id: str) -> None:
        """Carry out what the run's alerts and its end ask for, as far as that was not done."""
        run = self.store.runs.get(run_id)
        ended = RunState(run.state).ended
        settings = AlertActions.model_validate(run.spec.get("alerts") or {})
        if not run.attempt or not (ended or run.state in {RunState.RUNNING, RunState.EXTERNAL}):
            return
        done: set[str] | None = None
        for alert in self.runs.alerts(run):
            if settings.action(alert.code) == "rewind" and not ended:
                self._rewind(run, alert, settings)
                continue
            done = self._done(run) if done is None else done
            if f"{ALERT}{alert.code}" not in done:
                message = f"{alert.code} at step {alert.step:,}: {alert.seen}"
                action = settings.action(alert.code)
                action = "warn" if action == "rewind" else action  # It has ended.
                self._carry_out(run, alert, settings, action, message)
        receivers = self._receivers(run, settings) if ended else []
        if receivers:
            done = self._done(run) if done is None else done
        for name in receivers:
            note = f"{MESSAGE}{name}:{run.attempt}"
            if note not in (done or set()):
                with self.store.transaction():
                    self.store.requests.note(
                        run.id, "message", actor=note, message=f"the run is {run.state}"
                    )
                    self.messages.put(name, about_end(run, server=self.server_url))
                self.messages.wake()

    def _receivers(self, run: RunRow, settings: AlertActions) -> list[str]:
        """Return the webhook of the spec, and the devices of who submitted the run.

        A device gets nothing of what ended before it was added. It ends with its person's token.
        """
        names = [] if settings.webhook is None else [settings.webhook]
        token = self.store.access_tokens.of_name(run.submitted_by)
        if token is None or self.store.access_tokens.valid(token):
            since = 0.0 if token is None else token.created_at
            names += [
                name
                for name, device in self.messages.devices.all()
                if device.person == run.submitted_by
                and since <= device.since < (run.ended_at or math.inf)
            ]
        return names

    def _done(self, run: RunRow) -> set[str]:
        return {request.actor for request in self.store.requests.of_run(run.id)}

    def _rewind(self, run: RunRow, alert: Alert, settings: AlertActions) -> None:
        """Restart the run from before the alert; warn or stop it if that is not possible."""
        attempts = {one.number: one for one in self.store.attempts.of_run(run.id)}
        through, began = attempts[run.attempt].last_step, alert.last or alert.step
        if through is None or began > through:
            return  # Diagnosed from curves of before the last resume.
        rewound = Rewound(attempt=run.attempt, before=began, through=through)
        resumed = {number: one.resume_from for number, one in attempts.items()}
        point = point_before(self.store.checkpoints.of_run(run.id), rewound, resumed)
        start = layout.checkpoint_at("/".join(Path(point or run.resume_from or "").parts[-3:]))
        requests = self.store.requests.of_run(run.id)
        action: AlertAction = "warn"
        if sum(one.kind == "rewind" for one in requests) >= settings.rewinds:
            action = "stop"
            text = f"stopped: alerts.rewinds is {settings.rewinds}, and all are used"
        elif alert.last is not None and through - began > max(
            _LATE * (run.stored.total_steps or 0), _LATE_STEPS
        ):
            text = "not rewound: it was long ago, and the loss has recovered"
        elif start is None:
            text = "not rewound: no checkpoint from before that is left"
        else:
            action = "rewind"
            text = (
                f"rewinds from step {through:,} to {start[1]:,}, and skips the data of steps "
                f"{start[1] + 1:,} to {through:,}"
            )
        message = f"{alert.code} at step {began:,}: {alert.seen}; {text}"
        if message not in {one.message for one in requests}:
            given = rewound if action == "rewind" else None
            self._carry_out(run, alert, settings, action, message, given)

    def _carry_out(
        self,
        run: RunRow,
        alert: Alert,
        settings: AlertActions,
        action: AlertAction,
        message: str,
        rewound: Rewound | None = None,
    ) -> None:
        actor = f"{ALERT}{alert.code}"
        # One transaction: no alert acts twice, and none acts without its message.
        with self.store.transaction():
            if rewound is not None and not self.store.transitions.apply(
                run.id,
                old=RunState.RUNNING,
                new=RunState.STOPPING,
                attempt=run.attempt,
                cause=REWIND,
                message=message,
                actor=actor,
                set={"rewound": rewound},
            ):
                return  # It has changed, and is judged again.
            if action in _DESIRED:
                try:
                    self.store.requests.set_desired(
                        run.id, _DESIRED[action], actor=actor, message=message
                    )
                except Conflict:  # It has ended, or is being cancelled.
                    action = "warn"
            # Also where the state was requested already: what is recorded is not done again.
            recorded = self.store.requests.of_run(run.id)
            if not any((one.actor, one.message) == (actor, message) for one in recorded):
                self.store.requests.note(run.id, action, actor=actor, message=message)
            if action != "note":
                text = about_alert(run, alert, action, server=self.server_url)
                for name in self._receivers(run, settings):
                    self.messages.put(name, text)
        if action in {*_DESIRED, "rewind"}:
            self.wake()
        self.messages.wake()
