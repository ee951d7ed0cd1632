"""``lehr admin``: tokens, quotas and secrets of a server; who did what."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, TypeVar

import typer

from lehr.base import formats
from lehr.errors import UserError
from lehr.faces.cli.connect import connect
from lehr.faces.cli.output import (
    JsonOption,
    console,
    escaped,
    minute,
    print_fitting,
    print_json,
    print_result,
    table,
)
from lehr.schemas.cluster import AuditEntry, CreatedToken, TokenView

T = TypeVar("T")
app = typer.Typer(rich_markup_mode=None)
admin, token, quota, secret = (
    typer.Typer(rich_markup_mode=None, no_args_is_help=True) for _ in range(4)
)
app.add_typer(admin, name="admin")
admin.add_typer(token, name="token")
admin.add_typer(quota, name="quota")
admin.add_typer(secret, name="secret")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the token, e.g. anna-laptop.")]
Project = Annotated[str, typer.Argument(metavar="PROJECT", help="Name of the project.")]
SecretName = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the secret, e.g. hf-read.")
]
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}


@admin.callback()
def about() -> None:
    """Manage tokens, quotas and secrets; list who did what. Needs the role admin."""


@token.callback()
def about_tokens() -> None:
    """Give people and programs tokens of their own, with a role.

    viewer: reads everything. researcher: also submits, changes and ends runs. admin: also manages
    tokens, secrets and nodes. The server's own token, in LEHR_HOME/token, is an admin.
    """


@token.command("create")
def create(
    name: Name,
    role: Annotated[str, typer.Option(metavar="ROLE", help="viewer, researcher or admin.")],
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Expire after this time, e.g. 30d. Default: never."),
    ] = None,
    gpu_hours: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Limit the GPU-hours of all runs submitted with the token together. "
            "Default: no limit.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a token and print it. Only its hash is stored, so it cannot be shown again.

    JSON: {token: CreatedToken}.
    """
    days = None if expires is None else seconds(expires, "--expires") / _UNITS["d"]
    client = connect()
    made = client.create_token(name, role, expires_in_days=days, gpu_hours=gpu_hours)
    _print(made, client.server, as_json=as_json)


@token.command("ls")
def list_tokens(as_json: JsonOption = False) -> None:
    """List the named tokens, without their values. JSON: {tokens: [TokenView]}."""

    def cells(token: TokenView) -> list[str]:
        ends = "never" if token.expires_at is None else minute(token.expires_at)
        budget = "" if token.gpu_hours is None else formats.gpu_hours(token.gpu_hours)
        return [token.name, token.role, token.state, minute(token.created_at), ends, budget]

    columns = {"tokens": ("name", "role", "state", "created", "expires", "budget")}
    empty = "There is no named token. Create one: lehr admin token create NAME --role viewer"
    _print_rows(connect().tokens(), columns, cells, empty, as_json=as_json)


@token.command("rotate")
def rotate(name: Name, as_json: JsonOption = False) -> None:
    """Replace the value of a token and print the new one. The old one stops working at once.

    JSON: {token: CreatedToken}.
    """
    client = connect()
    _print(client.rotate_token(name), client.server, as_json=as_json)


@token.command("revoke")
def revoke(name: Name, as_json: JsonOption = False) -> None:
    """Revoke a token. It and the logins made with it stop working at once.

    JSON: {token: TokenView}.
    """
    ended = connect().revoke_token(name)
    print_result({"token": ended}, f"{ended.name} is revoked.", as_json=as_json)


@quota.callback()
def about_quotas() -> None:
    """Limit how many GPUs the runs of a project hold at a time.

    A run beyond the quota of its project waits, and its reason says so. A project without a quota
    has no limit.
    """


@quota.command("set")
def set_quota(
    project: Project,
    gpus: Annotated[
        int, typer.Argument(metavar="GPUS", min=0, help="Maximum number of GPUs at a time.")
    ],
    as_json: JsonOption = False,
) -> None:
    """Set the quota of a project. Running runs continue, even if they hold more.

    JSON: {quota: QuotaView}.
    """
    made = connect().set_quota(project, gpus)
    text = f"{escaped(made.project)}: at most {formats.counted(made.gpus, 'GPU')} at a time."
    print_result({"quota": made}, text, as_json=as_json)


@quota.command("ls")
def list_quotas(as_json: JsonOption = False) -> None:
    """List the quotas. JSON: {quotas: [QuotaView]}."""
    _print_rows(
        connect().quotas(),
        {"quotas": ("project", "gpus", "set", "by")},
        lambda quota: [
            quota.project,
            str(quota.gpus),
            formats.ago(quota.changed_at),
            quota.changed_by,
        ],
        "No project has a quota. Set one: lehr admin quota set PROJECT GPUS",
        as_json=as_json,
    )


@quota.command("rm")
def remove_quota(project: Project, as_json: JsonOption = False) -> None:
    """Remove the quota of a project: its runs have no limit.

    JSON: {quota: QuotaView}.
    """
    removed = connect().remove_quota(project)
    print_result({"quota": removed}, f"{escaped(removed.project)} has no quota.", as_json=as_json)


@secret.callback()
def about_secrets() -> None:
    """Manage secrets, which specs refer to by name.

    A spec with secrets: {HF_TOKEN: hf-read} gives its trainer the variable HF_TOKEN; one with
    alerts: {webhook: team} sends its messages to the address in the secret team. Only the server
    stores the value, in LEHR_HOME/secrets.json.
    """


@secret.command("set")
def set_secret(name: SecretName, as_json: JsonOption = False) -> None:
    """Set a secret: asks for the value, or reads it from standard input.

    The value is not an argument, because other users of the machine can see arguments. One line
    break at the end of standard input is removed. JSON: {secret: SecretView}.
    """
    if sys.stdin.isatty():
        value = typer.prompt(f"Value of {name}", hide_input=True)
    else:
        value = sys.stdin.read().removesuffix("\n")
    if not value:
        raise UserError(
            f"the value of {name} is empty.",
            hint=f"lehr admin secret set {name} < file-with-the-value",
        )
    made = connect().set_secret(name, value)
    shown = escaped(made.name)
    uses = f"secrets: {{VARIABLE: {shown}}}, or alerts: {{webhook: {shown}}}"
    text = f"{shown} is set. In a spec: {uses}"
    print_result({"secret": made}, text, as_json=as_json)


@secret.command("ls")
def list_secrets(as_json: JsonOption = False) -> None:
    """List the secrets, without their values; of a webhook, whether its last message arrived.

    JSON: {secrets: [SecretView]}.
    """
    _print_rows(
        connect().secrets(),
        {"secrets": ("name", "set", "by", "last message")},
        lambda one: [one.name, formats.ago(one.changed_at), one.changed_by, one.last_message or ""],
        "There is no secret. Set one: lehr admin secret set NAME",
        as_json=as_json,
    )


@secret.command("rm")
def remove_secret(name: SecretName, as_json: JsonOption = False) -> None:
    """Remove a secret. Runs that name it and start later fail.

    JSON: {secret: SecretView}.
    """
    removed = connect().remove_secret(name)
    print_result({"secret": removed}, f"{escaped(removed.name)} is removed.", as_json=as_json)


@admin.command("audit")
def audit(
    by: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only requests with this token.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only entries younger than this, e.g. 12h or 7d."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of entries.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List who changed something or was refused, newest first.

    Requests that only read are not listed. The newest 100,000 entries are kept.

    JSON: {audit: [AuditEntry]}.
    """
    start = None if since is None else time.time() - seconds(since, "--since")

    def cells(entry: AuditEntry) -> list[str]:
        request = f"{entry.method} {entry.path}"
        return [
            formats.ago(entry.at),
            entry.name,
            entry.role,
            request,
            str(entry.status),
            entry.address,
        ]

    columns = {"audit": ("when", "token", "role", "request", "answer", "from")}
    entries = connect().audit(name=by, since=start, limit=limit)
    _print_rows(entries, columns, cells, "Nothing is recorded.", as_json=as_json)


@admin.command("login-link")
def login_link(as_json: JsonOption = False) -> None:
    """Print a link that logs a browser in. It works once, and expires after five minutes.

    The browser gets the role of the token that this command uses.

    JSON: {login_link: LoginLink}.
    """
    made = connect().login_link()
    if as_json:
        print_json({"login_link": made})
    else:
        console().print(made.url, soft_wrap=True, markup=False)


def _print(made: CreatedToken, server: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"token": made})
        return
    out = console()
    ends = "It never expires." if made.expires_at is None else f"Until {minute(made.expires_at)}."
    out.print(f"{made.name} is a {made.role}. {ends} The token is shown only now:")
    out.print(f"export LEHR_SERVER={server} LEHR_TOKEN={made.token}", soft_wrap=True, markup=False)


def _print_rows(
    items: Sequence[T],
    columns: Mapping[str, tuple[str, ...]],
    cells: Callable[[T], list[str]],
    empty: str,
    *,
    as_json: bool,
) -> None:
    """Print a list: as JSON under its key, as a table, or the sentence for an empty one.

    ``columns`` has the key in JSON with the columns of the table, ``cells`` makes a row.
    """
    [(key, names)] = columns.items()
    if as_json:
        print_json({key: list(items)})
    elif not items:
        console().print(empty)
    else:
        rows = table(*names)
        for item in items:
            rows.add_row(*map(escaped, cells(item)))
        print_fitting(rows, fold=names[-1])


def seconds(text: str, option: str) -> float:
    """Return the seconds of a time as people write it: 30m, 12h, 7d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])", text.strip())
    if match is None:
        raise UserError(
            f"{option} {text!r} is not a time.", hint="Write minutes, hours or days: 30m, 12h, 7d."
        )
    return float(match[1]) * _UNITS[match[2]]
