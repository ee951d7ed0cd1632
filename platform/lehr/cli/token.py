"""``lehr token``, ``lehr audit``, ``lehr login-link``: who may use a server, and who did what."""

from __future__ import annotations

import re
import time
from typing import Annotated

import typer

from lehr import formats
from lehr.cli.connect import connect
from lehr.cli.output import JsonOption, console, escaped, print_json, table, to_jsonable
from lehr.errors import UserError
from lehr.schemas.access import CreatedToken

app = typer.Typer(rich_markup_mode=None)
token = typer.Typer(
    help="Give people and programs tokens of their own, with a role.",
    rich_markup_mode=None,
    no_args_is_help=True,
)
app.add_typer(token, name="token")

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the token, e.g. anna-laptop.")]
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}


@token.callback()
def about() -> None:
    """Give people and programs tokens of their own, with a role.

    viewer: reads everything. researcher: also submits, changes and ends runs. admin: also manages
    tokens, secrets, nodes and webhooks. The server's own token, in LEHR_HOME/token, is an admin.
    """


@token.command("create")
def create(
    name: Name,
    role: Annotated[
        str, typer.Option("--role", metavar="ROLE", help="viewer, researcher or admin.")
    ],
    expires: Annotated[
        str | None,
        typer.Option(
            "--expires", metavar="TIME", help="Expire after this time, e.g. 30d. Default: never."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a token and print it. Only its hash is stored, so it cannot be shown again.

    JSON: {token: CreatedToken}.
    """
    days = None if expires is None else seconds(expires, "--expires") / _UNITS["d"]
    client = connect()
    made = client.create_token(name, role, expires_in_days=days)
    _print(made, client.server, as_json=as_json)


@token.command("ls")
def list_tokens(as_json: JsonOption = False) -> None:
    """List the named tokens, without their values. JSON: {tokens: [TokenView]}."""
    found = connect().tokens()
    if as_json:
        print_json({"tokens": to_jsonable(found)})
        return
    if not found:
        console().print("There is no named token. Create one: lehr token create NAME --role viewer")
        return
    rows = table("name", "role", "state", "created", "expires")
    for one in found:
        ends = "never" if one.expires_at is None else _day(one.expires_at)
        rows.add_row(one.name, one.role, one.state, _day(one.created_at), ends)
    console().print(rows)


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
    if as_json:
        print_json({"token": to_jsonable(ended)})
    else:
        console().print(f"{ended.name} is revoked.")


@app.command("audit")
def audit(
    by: Annotated[
        str | None, typer.Option("--by", metavar="NAME", help="Only requests with this token.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since", metavar="TIME", help="Only entries younger than this, e.g. 12h or 7d."
        ),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of entries.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List who changed something or was refused, newest first. Needs the role admin.

    Requests that only read are not listed. The newest 100,000 entries are kept.

    JSON: {audit: [AuditEntry]}.
    """
    start = None if since is None else time.time() - seconds(since, "--since")
    found = connect().audit(name=by, since=start, limit=limit)
    if as_json:
        print_json({"audit": to_jsonable(found)})
        return
    if not found:
        console().print("Nothing is recorded.")
        return
    rows = table("when", "token", "role", "request", "answer", "from")
    for one in found:
        request = f"{one.method} {escaped(one.path)}"
        rows.add_row(
            formats.ago(one.at), one.name, one.role, request, str(one.status), escaped(one.address)
        )
    console().print(rows)


@app.command("login-link")
def login_link(as_json: JsonOption = False) -> None:
    """Print a link that logs a browser in. It works once, and expires after five minutes.

    The browser gets the role of the token that this command uses.

    JSON: {login_link: LoginLink}.
    """
    made = connect().login_link()
    if as_json:
        print_json({"login_link": to_jsonable(made)})
    else:
        console().print(made.url, soft_wrap=True, markup=False)


def _print(made: CreatedToken, server: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"token": to_jsonable(made)})
        return
    out = console()
    ends = "It never expires." if made.expires_at is None else f"Until {_day(made.expires_at)}."
    out.print(f"{made.name} is a {made.role}. {ends} The token is shown only now:")
    out.print(f"export LEHR_SERVER={server} LEHR_TOKEN={made.token}", soft_wrap=True, markup=False)


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def seconds(text: str, option: str) -> float:
    """Return the seconds of a time as people write it: 30m, 12h, 7d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([mhd])", text.strip())
    if match is None:
        raise UserError(
            f"{option} {text!r} is not a time.", hint="Write minutes, hours or days: 30m, 12h, 7d."
        )
    return float(match[1]) * _UNITS[match[2]]
