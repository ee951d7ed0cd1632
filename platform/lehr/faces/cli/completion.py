"""Shell completion for bash, zsh and fish: script, installation, and names from the server."""

from __future__ import annotations

import typer

from lehr.errors import LehrError, UserError, nearest

SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")
_VARIABLE = "_LEHR_COMPLETE"
_TIMEOUT_S = 1.0
_MOST = 50


def show(shell: str) -> None:
    """Print the script for ``--show-completion SHELL``, and exit.

    Raises:
        UserError: the shell is not supported.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    script = get_completion_script(prog_name="lehr", complete_var=_VARIABLE, shell=_known(shell))
    typer.echo(script)
    raise typer.Exit


def install(shell: str) -> None:
    """Add the script to the shell's start-up files for ``--install-completion SHELL``, and exit.

    Raises:
        UserError: the shell is not supported.
    """
    from typer.completion import install as install_script  # type: ignore[attr-defined]

    name, path = install_script(shell=_known(shell), prog_name="lehr", complete_var=_VARIABLE)
    typer.echo(f"Wrote completion for {name} to {path}. Open a new terminal to use it.")
    raise typer.Exit


def refs(incomplete: str) -> list[str]:
    """Complete names of runs, sweeps and rollouts. Return none when no server answers quickly."""
    import os

    from lehr.faces.client import Client

    try:
        with Client(os.environ.get("LEHR_SERVER") or None, timeout_s=_TIMEOUT_S) as client:
            names = [run.name for run in client.runs(search=incomplete or None, limit=_MOST)]
            names += [sweep.name for sweep in client.sweeps(limit=_MOST)]
            names += [rollout.name for rollout in client.rollouts(limit=_MOST)]
    except LehrError:
        return []
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _known(shell: str) -> str:
    if shell in SHELLS:
        return shell
    near = nearest(shell, SHELLS)
    raise UserError(
        f"no completion for {shell!r}. Available: {', '.join(SHELLS)}.",
        hint=f"Did you mean {near}?" if near else None,
    )
