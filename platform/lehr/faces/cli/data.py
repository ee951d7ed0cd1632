"""``lehr data``: prepare token shards before a run needs GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lehr.base import home
from lehr.errors import UserError
from lehr.faces.cli.output import JsonOption, after_ctrl_c, console, notes, print_json
from lehr.faces.cli.plan import OverridesArgument, SpecFile, read_spec, runs_of
from lehr_trainer import extras

if TYPE_CHECKING:
    from lehr.specs import Spec
    from lehr_trainer.configs.train import TrainConfig

app = typer.Typer(rich_markup_mode=None)
data = typer.Typer(
    help="Prepare token shards of a corpus before training.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(data, name="data")


@data.command("prepare")
def prepare(
    file: SpecFile, overrides: OverridesArgument = None, as_json: JsonOption = False
) -> None:
    """Prepare the corpus of a run, sweep or rollout on this machine. Reuses a prepared corpus.

    JSON: {prepared: [summary of each preparation]}.
    """
    summaries = [
        prepare_corpus(config, quiet=as_json) for config in corpora(read_spec(file, overrides))
    ]
    if as_json:
        print_json({"prepared": summaries})
    else:
        for text in summaries:
            console().print(text, markup=False)


def corpora(spec: Spec) -> list[TrainConfig]:
    """One config for each different corpus, tokenizer and held-out set of a spec."""
    found: dict[str, TrainConfig] = {}
    for run in runs_of(spec):
        train = run.own
        data = [stage.config.data.model_dump(mode="json") for stage in train.course]
        key = json.dumps([data, train.validation.share, train.model.vocab_size])
        found.setdefault(key, train)
    return list(found.values())


def prepare_corpus(config: TrainConfig, *, quiet: bool = False) -> str:
    """Run the trainer's preparation with a progress bar. Return its last message.

    Raises:
        UserError: the corpus or the tokenizer is wrong.
        ModuleNotFoundError: the trainer is not installed.
    """
    extras.need("tokenizers")
    after_ctrl_c("The corpus is not ready. What is finished is kept: run the same command again.")
    with tempfile.TemporaryDirectory(prefix="lehr-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(config.model_dump_json())
        command = [sys.executable, "-P", "-m", "lehr_trainer.data", "prepare", "--notices"]
        process = subprocess.Popen(
            [*command, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "LEHR_DATA": str(home.data_dir())},
        )
        try:
            assert process.stdout is not None
            _follow(process.stdout, quiet=quiet)
            _, errors = process.communicate()
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if process.returncode != 0:
        last = errors.strip().splitlines()[-1] if errors.strip() else f"exit {process.returncode}"
        raise UserError(last.removeprefix("error: "))
    return errors.strip()


def _follow(lines: Any, *, quiet: bool) -> None:
    """Show progress: a bar on a terminal, lines of text in a pipe, nothing with --json."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    out = notes()
    if quiet or not out.is_terminal:
        before = None
        for line in lines:
            notice = json.loads(line)
            if not quiet and notice["phase"] != before:
                out.print(f"{notice['phase']}: {notice['message']}", markup=False)
            before = notice["phase"]
        return
    with Progress(
        TextColumn("{task.fields[phase]}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.description}", markup=False),
        console=out,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=None, phase="corpus")
        for line in lines:
            notice = json.loads(line)
            done = notice.get("done")
            progress.update(
                task,
                description=notice["message"],
                phase=notice["phase"],
                total=None if done is None else 1.0,
                completed=done or 0.0,
            )
