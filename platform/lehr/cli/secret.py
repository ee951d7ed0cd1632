"""``lehr secret``: values that runs get by name, never stored in a spec."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from lehr import formats
from lehr.cli.connect import connect
from lehr.cli.output import JsonOption, console, escaped, print_json, print_result, table
from lehr.errors import UserError

app = typer.Typer(rich_markup_mode=None)
secret = typer.Typer(
    help="Manage secrets, which specs refer to by name.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(secret, name="secret")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the secret, e.g. hf-read.")]


@secret.callback()
def about() -> None:
    """Manage secrets, which specs refer to by name.

    A spec with secrets: {HF_TOKEN: hf-read} gives its trainer the variable HF_TOKEN. Only the
    server stores the value, in LEHR_HOME/secrets.json.
    """


@secret.command("set")
def set_secret(name: Name, as_json: JsonOption = False) -> None:
    """Set a secret: asks for the value, or reads it from standard input. Needs the role admin.

    The value is not an argument, because other users of the machine can see arguments. One line
    break at the end of standard input is removed. JSON: {secret: SecretView}.
    """
    if sys.stdin.isatty():
        value = typer.prompt(f"Value of {name}", hide_input=True)
    else:
        value = sys.stdin.read().removesuffix("\n")
    if not value:
        raise UserError(
            f"the value of {name} is empty.", hint=f"lehr secret set {name} < file-with-the-value"
        )
    made = connect().set_secret(name, value)
    if as_json:
        print_json({"secret": made})
    else:
        name = escaped(made.name)
        console().print(f"{name} is set. In a spec: secrets: {{VARIABLE: {name}}}")


@secret.command("ls")
def list_secrets(as_json: JsonOption = False) -> None:
    """List the secrets, without their values. JSON: {secrets: [SecretView]}."""
    found = connect().secrets()
    if as_json:
        print_json({"secrets": found})
        return
    if not found:
        console().print("There is no secret. Set one: lehr secret set NAME")
        return
    rows = table("name", "set", "by")
    for one in found:
        rows.add_row(escaped(one.name), formats.ago(one.changed_at), escaped(one.changed_by))
    console().print(rows)


@secret.command("rm")
def remove_secret(name: Name, as_json: JsonOption = False) -> None:
    """Remove a secret. Runs that name it and start later fail. Needs the role admin.

    JSON: {secret: SecretView}.
    """
    removed = connect().remove_secret(name)
    print_result({"secret": removed}, f"{escaped(removed.name)} is removed.", as_json=as_json)
