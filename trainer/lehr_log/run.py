"""A run of a process that Lehr did not start. Standard library only.

The process writes lines into a file and waits for nothing. A process beside it,
``lehr.faces.external``, turns them into the run's records and sends them.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import itertools
import json
import math
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

import lehr_log

FOLDER = "lehr-runs"
"""Where runs are kept, below the current folder."""
BEGIN, LOG, POSITION, STOP = "begin.json", "log-0.jsonl", "position.json", "stop"
_WAIT_S = 5.0
"""How long the end of a run waits until all is sent."""
_ID = re.compile(r"[a-z][a-z0-9]{3,31}")
_LETTERS = "abcdefghjkmnpqrstuvwxyz"
"""Those of Lehr's ids, hard to confuse."""
Outcome = Literal["completed", "failed", "stopped"]


class Run:
    """A run of this process. In a launch of Lehr, and on ranks other than 0, it has no folder."""

    def __init__(self, run_id: str, name: str, project: str) -> None:
        from lehr_log import wandb

        self.id, self.name, self.project = run_id, name, project
        self.folder: Path | None = None
        self.summary: dict[str, Any] = wandb.summary
        """Figures of the whole run; recorded as ``summary/<name>`` at its end."""
        self._sender: subprocess.Popen[bytes] | None = None

    log = staticmethod(lehr_log.log)

    def finish(self, outcome: Outcome = "completed", reason: str | None = None) -> None:
        """End the run. Waits at most some seconds until all is sent; repeating it does nothing."""
        global _run  # noqa: PLW0603 - one run a process
        if self.folder is None or lehr_log._log_path() != str(self.folder / LOG):  # noqa: SLF001
            return
        with contextlib.suppress(Exception):
            from lehr_log import wandb

            wandb._flush()  # noqa: SLF001
            end = {"kind": "end", "step": 0, "outcome": outcome, "reason": reason}
            lehr_log._write(end)  # noqa: SLF001
        _run = None
        lehr_log._record_into(None)  # noqa: SLF001
        if self._sender is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._sender.wait(_WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        self.finish(*_reason_of(error))


_run: Run | None = None
_ended: tuple[Outcome, str | None] = ("completed", None)
"""How the process ends, as far as it is known."""


def init(
    project: str = "default",
    name: str | None = None,
    config: Any = None,
    *,
    id: str | None = None,  # noqa: A002 - as in wandb
    resume: bool = False,
    tags: Sequence[str] = (),
    group: str = "",
    notes: str = "",
    steps: int | None = None,
    tokens_per_step: int = 1,
    folder: str | os.PathLike[str] = FOLDER,
    mode: Literal["online", "offline"] | None = None,
    server: str | None = None,
    token: str | None = None,
) -> Run:
    """Begin a run in a process that Lehr did not start. It never raises.

    In a launch of Lehr, or while a run goes on, that run goes on; only ``config`` is added.

    Args:
        project: label that groups runs.
        name: name of the run; by default that of the script.
        config: settings of the run, as a mapping or an ``argparse.Namespace``.
        id: id of the run; by default a new one. One that is in use becomes another one.
        resume: go on with the run ``id``. Steps after the first one that is logged now are
            superseded.
        tags: words to find the run by.
        group: sweep of the project that it belongs to, with all runs of this group.
        notes: text about it.
        steps: number of steps that it trains, if known.
        tokens_per_step: tokens of a step, for axes in tokens.
        folder: where it is kept: ``<folder>/<id>/attempt-<n>``.
        mode: offline sends nothing; ``lehr sync`` does later. Default: LEHR_MODE, or online.
        server: address of the server. Default: LEHR_SERVER, else that of this machine's home.
        token: token of the server. Default: LEHR_TOKEN, else that of the home.
    """
    global _run
    from lehr_log import wandb

    name = label(name or Path(sys.argv[0] if sys.argv else "").stem, "run")
    run = _run or Run(str(id or ""), name, label(project, "default"))
    try:
        given = plain(wandb._mapping(config))  # noqa: SLF001
        if goes_on() or os.environ.get("RANK", "0") != "0":
            if given and lehr_log._log_path() is not None:  # noqa: SLF001
                wandb.config.setdefaults(given)
                wandb._keep()  # noqa: SLF001
            return run
        attempt = _claim(Path(folder), run.id, resume=resume)
        begun = {
            "id": attempt.parent.name,
            "resume": resume,
            "group": str(group or ""),
            "token": secrets.token_urlsafe(32),
            "started_at": time.time(),
            "spec": {
                "kind": "run",
                "name": run.name,
                "project": run.project,
                "tags": [str(tag) for tag in tags],
                "notes": str(notes),
                "resources": {"gpus": 0},
                "trainer": {
                    "external": True,
                    "args": given,
                    "steps": int(steps) if steps and steps > 0 else None,
                    "tokens_per_step": max(1, int(tokens_per_step)),
                },
            },
            "command": sys.argv,
            **_process(),
        }
        (attempt / BEGIN).touch(0o600)
        (attempt / BEGIN).write_text(json.dumps(begun))
        run.id, run.folder, _run = attempt.parent.name, attempt, run
        lehr_log._record_into(str(attempt / LOG), given, _step_before(attempt))  # noqa: SLF001
        wandb._reset()  # noqa: SLF001
        print(f"lehr_log: run {run.id} is recorded in {attempt}", file=sys.stderr)
        _watch_end()
        run._sender = _send(attempt, mode, server, token)  # noqa: SLF001
    except Exception as error:  # noqa: BLE001 - nothing here may stop a training
        print(f"lehr_log: not recorded: {error}", file=sys.stderr)
    return run


def goes_on() -> bool:
    """Return whether this process is in a launch of Lehr, or has begun a run."""
    return _run is not None or bool({"LEHR_LOG", "LEHR_STOP"} & os.environ.keys())


def use_as_wandb() -> None:
    """From here on, ``import wandb`` is ``lehr_log.wandb``, as ``report_to="wandb"`` needs it."""
    sys.path.insert(0, str(Path(__file__).parent / "as_wandb"))


def _claim(base: Path, given: str, *, resume: bool) -> Path:
    """Make the folder of a new attempt, which no other process has."""
    run_id = given
    if given and not _ID.fullmatch(given):
        run_id = f"x{hashlib.sha256(given.encode()).hexdigest()[:11]}"
        lehr_log._tell(given, f"the id {given[:50]!r} is no id of Lehr's: it is {run_id}")  # noqa: SLF001
    try:
        base.mkdir(parents=True, exist_ok=True)
    except OSError:
        base = Path(tempfile.gettempdir()) / FOLDER
        base.mkdir(exist_ok=True)
    (base / ".gitignore").write_text("*\n")
    if not run_id or ((base / run_id).exists() and not resume):
        run_id = "".join(map(secrets.choice, [_LETTERS, *[_LETTERS + "23456789"] * 7]))
        if given:
            print(f"lehr_log: the id {given!r} is in use: the run is {run_id}", file=sys.stderr)
    for number in itertools.count(1):
        attempt = base / run_id / f"attempt-{number}"
        with contextlib.suppress(FileExistsError):
            attempt.mkdir(parents=True)
            return attempt.absolute()
    raise AssertionError


def _step_before(attempt: Path) -> int:
    """Return the last step of the attempts before this one; 0 if they are elsewhere."""
    steps = [0]
    for path in attempt.parent.glob(f"attempt-*/{POSITION}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            steps.append(int(json.loads(path.read_bytes())["step"]))
    return max(steps)


def _send(
    attempt: Path, mode: str | None, server: str | None, token: str | None
) -> subprocess.Popen[bytes]:
    """Start the process that sends."""
    if (mode or os.environ.get("LEHR_MODE", "online")) not in {"online", "offline"}:
        lehr_log._tell("mode", "mode, or LEHR_MODE, is neither online nor offline: online is taken")  # noqa: SLF001
    given = {"LEHR_SERVER": server, "LEHR_TOKEN": token, "LEHR_MODE": mode}
    environment = os.environ | {name: value for name, value in given.items() if value}
    # Safe path: modules of the current folder must not stand in for those that it imports. A
    # session of its own: Ctrl-C is for the program.
    command = [sys.executable, "-P", "-m", "lehr.faces.external", str(attempt)]
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True
    )
    os.setpriority(os.PRIO_PROCESS, process.pid, 10)  # Its imports, too, give way to the training.
    return process


@cache
def _watch_end() -> None:
    """Record how the process ends, in place of the way before. Once a process."""
    atexit.register(lambda: _run.finish(*_ended) if _run is not None else None)

    def noting(function: Callable[..., Any], error: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> Any:
            global _ended  # noqa: PLW0603 - one end a process
            _ended = _reason_of(error(*arguments))
            return function(*arguments)

        return noted

    sys.excepthook = noting(sys.excepthook, lambda _kind, error, _trace: error)
    sys.exit = noting(sys.exit, SystemExit)


def _reason_of(error: BaseException | None) -> tuple[Outcome, str | None]:
    if error is None or (isinstance(error, SystemExit) and error.code in {None, 0}):
        return "completed", None
    if isinstance(error, KeyboardInterrupt):
        return "stopped", "interrupted by Ctrl-C"
    if isinstance(error, SystemExit):
        return "failed", f"it exited with {str(error.code)[:500]}"
    return "failed", f"{type(error).__name__}: {error}"[:2000]


def label(text: str, default: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:100] or default


def plain(value: Any) -> Any:
    """Return a value of the config as JSON has it; of other types their names."""
    from lehr_log import wandb

    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    text = isinstance(value, float) and not math.isfinite(value)
    return wandb._plain(str(value) if text else value)  # noqa: SLF001


def _process() -> dict[str, Any]:
    """Return what identifies this process on its machine."""
    process: dict[str, Any] = {"pid": os.getpid()}
    with contextlib.suppress(OSError):
        process["boot_id"] = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        process["start_time"] = int(fields[19])
    return process
