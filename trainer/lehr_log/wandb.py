"""The shape of the wandb package over ``lehr_log``: ``import lehr_log.wandb as wandb``.

Numbers that are logged are recorded; tables, pictures, artifacts and sweeps are accepted and left
out. No call raises, and nothing is sent to W&B.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import lehr_log


class Config(dict[str, Any]):
    """The arguments of the run; its keys are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def update(self, *given: Any, allow_val_change: bool = True, **named: Any) -> None:  # noqa: ARG002
        super().update(*given, **named)


class _Silent:
    """Accepts every call and attribute."""

    def __getattr__(self, name: str) -> Self:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *given: Any, **named: Any) -> Self:  # noqa: ARG002 - accepts everything
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class Run(_Silent):
    """What ``init`` returns."""

    def __init__(self) -> None:
        self.config = config
        self.summary: dict[str, Any] = {}
        self.name = self.id = "lehr"
        self.step = 0

    def log(
        self,
        data: Mapping[str, Any],
        step: int | None = None,
        commit: bool | None = None,  # noqa: ARG002 - a call is complete here
        **_: Any,
    ) -> None:
        log(data, step=step)

    def finish(self, *_: Any, **__: Any) -> None: ...


config = Config(lehr_log.config)
run: Run | None = None


def init(*_: Any, config: Any = None, **__: Any) -> Run:
    """Begin; ``config`` is laid under the arguments of the run."""
    global run  # noqa: PLW0603 - one run a process, as in wandb
    if isinstance(config, Mapping):
        for name, value in config.items():
            globals()["config"].setdefault(name, value)
    run = run or Run()
    return run


def log(
    data: Mapping[str, Any],
    step: int | None = None,
    commit: bool | None = None,  # noqa: ARG001 - a call is complete here
    **_: Any,
) -> None:
    """Record the numbers of ``data``; nested mappings have names with a dot, as in wandb."""
    flat: dict[str, Any] = {}
    if isinstance(data, Mapping):
        _flatten(data, "", flat)
    lehr_log.log(flat, step=step)


def finish(*_: Any, **__: Any) -> None:
    """Do nothing: Lehr records the end."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Silent()


def _flatten(data: Mapping[str, Any], prefix: str, found: dict[str, Any]) -> None:
    for name, value in data.items():
        full = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping):
            _flatten(value, full, found)
        else:
            found[full] = value
