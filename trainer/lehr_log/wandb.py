"""The shape of the wandb package over ``lehr_log``: ``import lehr_log.wandb as wandb``.

Numbers, images, tables and histograms are recorded, the summary and the config. Artifacts, sweeps
and all else are accepted, left out, and named as such. No call raises; nothing is sent to W&B.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import secrets
import string
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Self

import lehr_log
from lehr_log import media
from lehr_log.steps import Steps

__version__ = "0.31.0"
"""The version of wandb whose calls these are. Scripts compare it."""
_LOSE = frozenset({
    "Api", "add_column", "agent", "alert", "link_artifact", "link_model", "log_artifact",
    "log_model", "restore", "save", "sweep", "use_artifact", "use_model", "watch",
})  # fmt: skip
"""Names whose calls do nothing here, and something that is missed in wandb."""
_OF_INIT = ("project", "name", "id", "notes", "tags", "group")
"""Arguments of ``init`` that a run which Lehr did not start takes."""
_MOST_VALUES = 1_000  # Of a config.
_MOST_NAMES = 100
"""Names of what is left out."""
_MOST_CONFIGS = 100
"""Records of changes of the config."""
_VALUES_A_RECORD = 50
_LONGEST = 10_000
"""Characters of a text in the config; Lehr cuts it further."""


class Values(dict[str, Any]):
    """A dictionary whose keys are attributes, too. It takes whatever wandb takes as a config."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def update(self, *given: Any, allow_val_change: bool | None = None, **named: Any) -> None:  # noqa: ARG002
        for one in given:
            super().update(_mapping(one))
        super().update(named)

    def setdefaults(self, given: Any) -> None:
        for name, value in _mapping(given).items():
            self.setdefault(name, value)

    def as_dict(self) -> dict[str, Any]:
        return dict(self)

    def update_locked(self, given: Any, *_: Any, **__: Any) -> None:
        self.update(given)

    def persist(self) -> None: ...


Config = Values


class _Open(type):
    """The type of classes of which every attribute is there, such as ``wandb.AlertLevel.WARN``."""

    def __getattr__(cls, name: str) -> Any:
        return _unknown(name)


class Unsupported(metaclass=_Open):
    """Accepts every call, attribute and item. As a path, it is an empty folder of the run."""

    def __init__(self, *given: Any, **named: Any) -> None:  # noqa: ARG002 - accepts everything
        if (name := type(self).__name__) in _LOSE:
            _leave_out([name])

    def __getattr__(self, name: str) -> Any:
        return _unknown(name)

    def __call__(self, *given: Any, **named: Any) -> Any:  # noqa: ARG002 - accepts everything
        return Unsupported()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def __getitem__(self, key: Any) -> Any:
        return Unsupported()

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __fspath__(self) -> str:
        return str(Path(_folder()) / "left-out")


Image = _Open("Image", (media.Image, Unsupported), {})
Table = _Open("Table", (media.Table, Unsupported), {})
Histogram = _Open("Histogram", (media.Histogram, Unsupported), {})


class Error(Exception):
    """The base of all errors of wandb. None of them is raised here."""


class _Util(Unsupported):
    """``wandb.util``."""

    def generate_id(self, length: int = 8) -> str:
        return "".join(
            secrets.choice(string.ascii_lowercase + string.digits) for _ in range(length)
        )


config = Values(lehr_log.config)
summary = Values()
"""The last value of each metric, and what the program puts there."""
run: Run | None = None
util = _Util()
_steps = Steps(lehr_log.resume_step)
_held: dict[str, Any] = {}
"""Numbers that were logged with ``commit=False``."""
_kept_summary: dict[str, Any] = {}
_config_records = 0
_kept_config: dict[str, Any] = {}
"""The config as recorded: without the arguments of the run, which its spec has."""
_left_out: dict[str, None] = {}
"""Names of what is not recorded, in order."""
_step_metrics: list[str] = []
"""Metrics that are the step of all others. Lightning and transformers log with such a one."""


def init(*_: Any, config: Any = None, **given: Any) -> Run:
    """Begin; ``config`` is laid under the arguments of the run."""
    global run  # noqa: PLW0603 - one run a process, as in wandb
    mode = given.get("mode") or os.environ.get("WANDB_MODE")
    if run is None and not lehr_log.run.goes_on() and mode != "disabled":
        known = {name: given[name] for name in _OF_INIT if given.get(name) is not None}
        known["mode"] = "offline" if mode in {"offline", "dryrun"} else None
        known["resume"] = given.get("resume") in {True, "allow", "must", "auto"}
        given["id"] = lehr_log.init(config=_mapping(config), **known).id
    if not isinstance(globals()["config"], Values):  # The program has put its own there.
        globals()["config"] = Values(_mapping(globals()["config"]))
    globals()["config"].setdefaults(config)
    _keep()
    if run is None:
        run = Run(**given)
    return run


def log(data: Any, step: int | None = None, commit: bool | None = None, **_: Any) -> None:
    """Record the numbers of ``data``; nested mappings have names with a dot, as in wandb.

    ``commit=False`` without a step holds them for the next call.
    """
    _keep()
    with contextlib.suppress(Exception):
        _record(_numbers(data), step, commit)


def _record(numbers: dict[str, Any], step: int | None, commit: bool | None) -> None:
    numbers = {**_held, **numbers}
    given = _steps.given(numbers, _step_metrics) if step is None else int(step)
    _held.clear()
    if given is None and commit is False:
        _held.update(numbers)
        return
    lehr_log.log(numbers, step=_steps.take(numbers, given, commit=commit))
    last = {name: value for name, value in numbers.items() if isinstance(value, float)}
    summary.update(last)
    _kept_summary.update(last)


@atexit.register
def _flush() -> None:
    _keep()
    if _held:
        _record({}, None, None)


def define_metric(name: str, step_metric: Any = None, *_: Any, **__: Any) -> Unsupported:
    """Take a metric that is the step of all others, ``"*"``, as the step; accept all else."""
    if name == "*" and isinstance(step_metric, str) and step_metric not in _step_metrics:
        _step_metrics.append(step_metric)
    return Unsupported()


def finish(exit_code: int | None = None, *_: Any, **__: Any) -> None:
    """End the run of this module. Lehr records the end of its launch when the program ends."""
    global run  # noqa: PLW0603 - one run a process, as in wandb
    _flush()
    if lehr_log.run._run is not None:  # noqa: SLF001
        lehr_log.run._run.finish("failed" if exit_code else "completed")  # noqa: SLF001
    run = None


class Run(Unsupported):
    """What ``init`` returns."""

    log = staticmethod(log)
    define_metric = staticmethod(define_metric)
    finish = staticmethod(finish)

    def __init__(self, **given: Any) -> None:
        self.config, self.summary = config, summary
        own = dict.fromkeys(("id", "name", "project", "entity"), "lehr")
        for field, default in (own | {"group": "", "job_type": ""}).items():
            value = given.get(field)
            vars(self)[field] = value if isinstance(value, str) and value else default
        self.notes, self.tags = given.get("notes"), tuple(given.get("tags") or ())
        self.resumed = lehr_log.resume_from is not None
        self.offline, self.disabled = True, False
        self.url = self.sweep_id = self.sweep_url = self.project_url = None
        self.path = f"{self.entity}/{self.project}/{self.id}"
        self.get_url = lambda: None

    @property
    def dir(self) -> str:
        """A folder for files of the run, made when it is first asked for."""
        return _folder()

    @property
    def step(self) -> int:
        """The step of the next call that gives none."""
        return _steps.next

    def __exit__(self, kind: object = None, *_: object) -> None:
        finish(int(kind is not None))


def _reset() -> None:
    """Forget what a run before this one has logged."""
    global _steps, _config_records
    _steps, _config_records = Steps(lehr_log.resume_step), 0
    for values in (summary, _held, _kept_summary, _kept_config, _left_out):
        values.clear()
    if isinstance(config, Values):
        config.clear()
        config.update(lehr_log.config)


def login(*_: Any, **__: Any) -> bool:
    """Do nothing: nobody has to be known."""
    return True


def __getattr__(name: str) -> Any:
    return _unknown(name)


def _unknown(name: str) -> Any:
    """Return what stands for a name of wandb: a class for one like ``Image``, else an object."""
    if name.startswith("__"):
        raise AttributeError(name)
    # Of a name whose call loses something, too, a class: it notes the call.
    is_class = name in _LOSE or (name[:1].isupper() and not name.isupper())
    return _class(name) if is_class else Unsupported()


@cache
def _class(name: str) -> type:
    """Return the class of this name, always the same: scripts call ``isinstance`` with it."""
    known = globals().get(name)
    if isinstance(known, type):
        return known
    if name.endswith(("Error", "Exception")):
        return type(name, (Error,), {})
    return _Open(name, (Unsupported,), {})


@cache
def _folder() -> str:
    """Return the folder of the run's files, below the program's folder as in wandb."""
    for parent in (Path.cwd, tempfile.gettempdir):
        with contextlib.suppress(OSError):
            folder = Path(parent()) / "wandb/latest-run/files"
            folder.mkdir(parents=True, exist_ok=True)
            return str(folder)
    return tempfile.gettempdir()


def _mapping(given: Any) -> Mapping[str, Any]:
    """Return names and values of a config: a mapping, an ``argparse.Namespace``, any object."""
    if isinstance(given, Mapping):
        return given
    return dict(vars(given)) if hasattr(given, "__dict__") else {}


def _numbers(data: Any) -> dict[str, Any]:
    """Return the numbers and media of a mapping by their names; other values are left out."""
    numbers: dict[str, Any] = {}
    others: list[str] = []
    for name, value in _flat(data):
        try:
            numbers[name] = value if media.is_media(value) else lehr_log._number(value)  # noqa: SLF001
        except Exception:  # noqa: BLE001 - of any class
            if value is not None:
                others.append(f"{name} ({type(value).__name__})")
    _leave_out(others)
    return numbers


def _leave_out(names: Iterable[str]) -> None:
    """Have Lehr name what is left out, each name once."""
    new = [name for name in names if name not in _left_out]
    if new and len(_left_out) < _MOST_NAMES:
        _left_out.update(dict.fromkeys(new))
        with contextlib.suppress(Exception):
            values = dict.fromkeys(new)
            lehr_log._write({"kind": "left_out", "step": 0, "values": values})  # noqa: SLF001


def _keep() -> None:
    """Record what the program has changed in the config and in the summary."""
    global _config_records  # noqa: PLW0603 - one run a process, as in wandb
    with contextlib.suppress(Exception):
        given = dict(_flat(lehr_log.config))
        flat = islice(_flat(config), _MOST_VALUES)
        kept = {name: _plain(value) for name, value in flat if name not in given}
        # In lists, since NaN is not equal to itself.
        changed = [name for name, v in kept.items() if [_kept_config.get(name, kept)] != [v]]
        for start in range(0, len(changed), _VALUES_A_RECORD):
            if _config_records >= _MOST_CONFIGS:
                _leave_out([f"config (after {_MOST_CONFIGS} changes)"])
                break
            _config_records += 1
            values = {name: kept[name] for name in changed[start : start + _VALUES_A_RECORD]}
            _kept_config.update(values)
            lehr_log._write({"kind": "config", "step": 0, "values": values})  # noqa: SLF001
        put = {name: v for name, v in summary.items() if _kept_summary.get(name, kept) is not v}
        _kept_summary.update(put)
        if numbers := _numbers({f"summary/{name}": value for name, value in put.items()}):
            lehr_log.log(numbers, step=lehr_log._last_step)  # noqa: SLF001


def _plain(value: Any) -> Any:
    """Return a value of the config as JSON has it; of other types their text, without the folder
    of the attempt.
    """
    if isinstance(value, bool | float | None) or (type(value) is int and abs(value) < 2**53):
        return value
    shown = value if isinstance(value, str | int | list | tuple) else type(value).__name__
    return str(shown).replace(str(Path.cwd()), ".")[:_LONGEST]


def _flat(data: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a mapping and of those in it, with dots in their names."""
    for name, value in data.items() if isinstance(data, Mapping) else ():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
