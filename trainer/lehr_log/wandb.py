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


class Silent:
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


class Run(Silent):
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

    def define_metric(self, name: str, *given: Any, **named: Any) -> Silent:
        return define_metric(name, *given, **named)

    def finish(self, *_: Any, **__: Any) -> None: ...


config = Config(lehr_log.config)
run: Run | None = None
_step_metrics: list[str] = []
"""Metrics that are the step of all others. Lightning and transformers log with such a one."""


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
    if step is None:
        step = next((flat[name] for name in _step_metrics if name in flat), None)
    lehr_log.log(flat, step=step)


def define_metric(name: str, step_metric: str | None = None, *_: Any, **__: Any) -> Silent:
    """Take a metric that is the step of all others, ``"*"``, as the step; accept all else."""
    if name == "*" and isinstance(step_metric, str) and step_metric not in _step_metrics:
        _step_metrics.append(step_metric)
    return Silent()


def finish(*_: Any, **__: Any) -> None:
    """Do nothing: Lehr records the end."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Silent()


def _flatten(data: Mapping[str, Any], prefix: str, found: dict[str, Any]) -> None:
    for name, value in data.items():
        full = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping):
            _flatten(value, full, found)
        else:
            found[full] = value
