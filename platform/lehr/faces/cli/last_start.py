"""How ``lehr up`` starts a server, and how it started the last one: ``<home>/up.json``.

Machines that joined need the same address again, and runs their folder.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lehr.base import home
from lehr_trainer.files import write_atomically

Option = tuple[str, ...]
"""A variable and its value, or an option and its value, if it has one."""
_FOLDERS = {"LEHR_RUNS": home.runs_dir, "LEHR_DATA": home.data_dir}


@dataclass(frozen=True)
class ServerOptions:
    """The options that the server was started with."""

    host: str = home.DEFAULT_HOST
    port: int | None = None
    """None: the default port, or the next free one."""
    gpus: int | None = None
    ray_address: str | None = None
    more: tuple[str, ...] = ()
    """Options passed to ``python -m lehr_api`` unchanged."""

    @property
    def has_tls(self) -> bool:
        """Return whether other machines reach it by TLS, which a proxy may serve."""
        return "--tls-certificate" in self.more or any(
            word.startswith("https:") for word in self.more
        )


@dataclass(frozen=True)
class Start:
    """A start of a server."""

    pid: int
    options: ServerOptions
    files: Mapping[str, str] = field(default_factory=dict)
    """Its ``named_files``."""

    @property
    def non_default(self) -> list[Option]:
        """The variables and options that differ from the defaults, as on a command line."""
        non_default: list[Option] = list(self.files.items())
        for name, value, default in (
            ("--gpus", self.options.gpus, None),
            ("--ray-address", self.options.ray_address, None),
            ("--host", self.options.host, ServerOptions.host),
            ("--port", self.options.port, None),
        ):
            if value != default:
                non_default.append((name, str(value)))
        for word in self.options.more:
            if word.startswith("--"):
                non_default.append((word,))
            else:
                non_default[-1] = (*non_default[-1], word)
        return non_default

    @property
    def command(self) -> str:
        """The command line that starts such a server, for a shell."""
        variables = shell_words(o for o in self.non_default if not o[0].startswith("--"))
        flags = shell_words(o for o in self.non_default if o[0].startswith("--"))
        return " ".join([*variables, "lehr up", *flags])


def shell_words(options: Iterable[Option]) -> list[str]:
    return [
        shlex.join(o) if o[0].startswith("--") else f"{o[0]}={shlex.quote(o[1])}" for o in options
    ]


def write(where: Path, start: Start | None) -> None:
    if start is None:
        (where / "up.json").unlink(missing_ok=True)
        return
    record = {
        "process": {"pid": start.pid},
        "options": asdict(start.options),
        "folders": dict(start.files),
    }
    write_atomically(where / "up.json", json.dumps(record))


def read(where: Path) -> Start | None:
    """Return the last start by ``lehr up`` in this home."""
    try:
        record = json.loads((where / "up.json").read_bytes())
        options = record["options"]
        return Start(
            int(record["process"]["pid"]),
            ServerOptions(**{**options, "more": tuple(options["more"])}),
            dict(record["folders"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def dropped_options(new: Start, last: Start) -> list[str]:
    """Return the options of ``last`` that decide where things are, and that ``new`` does not have.

    A changed value is deliberate, so it is not reported; another folder of runs is, because runs
    may miss their files. ``--gpus`` is not, because it has its own default.
    """
    named = {"--gpus", *(option[0] for option in new.non_default)} - {"LEHR_RUNS"}
    return shell_words(
        option
        for option in last.non_default
        if option[0] not in named and option not in new.non_default
    )


def named_folders() -> dict[str, str]:
    """Return the variables of this shell that name folders of a server, with absolute paths."""
    return {name: str(folder()) for name, folder in _FOLDERS.items() if os.environ.get(name)}


def named_files(options: ServerOptions) -> dict[str, str]:
    """Return the variables of this shell without which such a server would not be the same."""
    authority = os.environ.get("LEHR_CA")
    return named_folders() | ({"LEHR_CA": authority} if authority and options.has_tls else {})
