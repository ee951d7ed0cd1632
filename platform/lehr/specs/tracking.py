"""``tracking`` and ``alerts`` of a spec: mirrors in other tools, and what alerts do."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from lehr.specs.gates import AlertCode
from lehr_trainer.configs.train import Config

_KEY = re.compile(r"(?:local-)?[0-9a-f]{40}|wandb_v\d+_\S{20,}")
"""Pattern of W&B's API keys."""
_KEY_FIELDS = frozenset({"api_key", "apikey", "key", "token", "password", "secret"})
NO_KEY = (
    "a W&B key must not be in a spec, which everybody with access to the run can read; set it on "
    "the server: WANDB_API_KEY in its environment, or `wandb login`"
)


def refuse_key(text: str) -> str:
    """Return the text, unless it looks like a W&B API key.

    Raises:
        ValueError: it does. The message does not repeat the text.
    """
    if _KEY.fullmatch(text):
        raise ValueError(f"this looks like a W&B key: {NO_KEY}")
    return text


_Word = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^[^/\\#?%:]+$"), AfterValidator(refuse_key)
]
_Project = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"), AfterValidator(refuse_key)
]
_Tag = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(refuse_key)]


class WandbTracking(Config):
    """A mirror of the run in Weights & Biases, made by the server."""

    mode: Literal["online", "offline", "off"] = "online"
    """online: send to W&B; offline: write files on the server's machine for `wandb sync`; off:
    no mirror.
    """
    project: _Project | None = None
    """Project in W&B. None: the run's project."""
    entity: _Word | None = None
    """Team or user in W&B. None: the default of the server's key."""
    group: _Word | None = None
    """Group in W&B. None: the sweep."""
    job_type: _Word | None = None
    """Job type in W&B, a word to filter by."""
    tags: list[_Tag] = []
    """Tags in W&B, in addition to the run's own."""

    @model_validator(mode="before")
    @classmethod
    def _no_key(cls, data: Any) -> Any:
        named = _KEY_FIELDS & data.keys() if isinstance(data, dict) else ()
        if named:
            raise ValueError(f"{min(named)}: {NO_KEY}")
        return data


class Tracking(Config):
    wandb: WandbTracking | None = None
    """Mirror in Weights & Biases. None: no mirror."""


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
