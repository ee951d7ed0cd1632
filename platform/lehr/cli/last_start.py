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


def of(options: ServerOptions, folders: Mapping[str, str]) -> list[Option]:
    """Return the options that differ from the defaults, in the order of a command line.

    ``folders``: variables with their values, e.g. of ``LEHR_RUNS``.
    """
    found: list[Option] = list(folders.items())
    for name, value, default in (
        ("--gpus", options.gpus, None),
        ("--ray-address", options.ray_address, None),
        ("--host", options.host, ServerOptions.host),
        ("--port", options.port, None),
    ):
        if value != default:
            found.append([name, str(value)])
    for word in options.more:
        if word.startswith("--"):
            found.append([word])
        else:
            found[-1] = [*found[-1], word]
    return found


def command(found: Sequence[Option], lehr: str = "lehr") -> str:
    """Return the command line with these options, for a shell."""
    variables = [_text(one) for one in found if not one[0].startswith("--")]
    options = [_text(one) for one in found if one[0].startswith("--")]
    return " ".join([*variables, f"{lehr} up", *options])


def before(where: Path) -> list[Option]:
    """Return the options of the last server that ``lehr up`` started in this home."""
    found = recorded_start(where)
    return [] if found is None else of(*found)


def runs_folder(where: Path) -> Path | None:
    """Return where the last server that ``lehr up`` started in this home had its runs."""
    found = recorded_start(where)
    return None if found is None else Path(found[1].get("LEHR_RUNS") or where / "runs")


def dropped(now: ServerOptions, earlier: Sequence[Option]) -> list[str]:
    """Return the earlier options that decide where things are, and that ``now`` does not give.

    Another value is no drop: it is meant. Nor is the number of GPUs: that has its own default.
    """
    given = {"--gpus", *(one[0] for one in of(now, named_files(now)))}
    return [_text(one) for one in earlier if one[0] not in given]


def _text(option: Option) -> str:
    if option[0].startswith("--"):
        return shlex.join(option)
    name, value = option
    return f"{name}={shlex.quote(value)}"
