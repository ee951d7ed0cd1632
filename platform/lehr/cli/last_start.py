"""The options of a home's last ``lehr up``, so that the next one can repeat them.

Machines that joined need the same address again, and runs their folder.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from lehr.cli.daemon import ServerOptions, named_files, recorded_start

Option = Sequence[str]
"""A variable and its value, or an option and its value, if it has one."""


def non_default_options(options: ServerOptions, folders: Mapping[str, str]) -> list[Option]:
    """Return the options that differ from the defaults, in the order of a command line.

    ``folders``: variables with their values, e.g. of ``LEHR_RUNS``.
    """
    non_default: list[Option] = list(folders.items())
    for name, value, default in (
        ("--gpus", options.gpus, None),
        ("--ray-address", options.ray_address, None),
        ("--host", options.host, ServerOptions.host),
        ("--port", options.port, None),
    ):
        if value != default:
            non_default.append([name, str(value)])
    for word in options.more:
        if word.startswith("--"):
            non_default.append([word])
        else:
            non_default[-1] = [*non_default[-1], word]
    return non_default


def up_command(options: Sequence[Option], lehr: str = "lehr") -> str:
    """Return the command line with these options, for a shell."""
    variables = [_text(option) for option in options if not option[0].startswith("--")]
    flags = [_text(option) for option in options if option[0].startswith("--")]
    return " ".join([*variables, f"{lehr} up", *flags])


def last_options(home_dir: Path) -> list[Option]:
    """Return the options of the last server that ``lehr up`` started in this home."""
    start = recorded_start(home_dir)
    return [] if start is None else non_default_options(*start)


def runs_folder(home_dir: Path) -> Path | None:
    """Return where the last server that ``lehr up`` started in this home had its runs."""
    start = recorded_start(home_dir)
    return None if start is None else Path(start[1].get("LEHR_RUNS") or home_dir / "runs")


def missing_options(new: ServerOptions, last: Sequence[Option]) -> list[str]:
    """Return the last options that decide where things are, and that ``new`` does not have.

    A changed value is deliberate, so it is not reported. Nor is ``--gpus``, which has its own
    default.
    """
    unreported = {"--gpus", *(option[0] for option in non_default_options(new, named_files(new)))}
    return [_text(option) for option in last if option[0] not in unreported]


def _text(option: Option) -> str:
    if option[0].startswith("--"):
        return shlex.join(option)
    name, value = option
    return f"{name}={shlex.quote(value)}"
