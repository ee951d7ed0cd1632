"""``alerts`` of a spec: what the server does when a run's curves show something."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lehr.specs.gates import AlertCode
from lehr_trainer.configs.train import Config

AlertAction = Literal["note", "warn", "pause", "stop"]


class AlertActions(Config):
    """What an alert does, once for each alert of a run."""

    actions: dict[AlertCode, AlertAction] = {}
    """Action by the alert's name, e.g. {nan: stop, diverging: pause}. note: record it in the run's
    events. warn: also send a message. pause: also save a checkpoint and free the GPUs, until
    `lehr resume`. stop: also cancel the run, without saving.
    """
    other: AlertAction = "warn"
    """Action of the alerts that ``actions`` does not name."""
    webhook: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")] | None = None
    """Name of the webhook that gets the messages, also when the run ends. `lehr admin webhook add`
    makes one. None: no messages.
    """

    def action(self, code: AlertCode) -> AlertAction:
        return self.actions.get(code, self.other)
