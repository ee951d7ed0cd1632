"""``lehr webhook``: addresses that get messages about alerts and ended runs."""

from __future__ import annotations

from typing import Annotated

import typer

from lehr.cli.connect import connect
from lehr.cli.output import JsonOption, console, escaped, print_json, print_result, table

app = typer.Typer(rich_markup_mode=None)
webhook = typer.Typer(
    help="Send messages about runs to a chat.", rich_markup_mode=None, no_args_is_help=True
)
app.add_typer(webhook, name="webhook")

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Name of the webhook: lowercase letters, digits and dashes."
    ),
]


@webhook.callback()
def about() -> None:
    """Send messages about alerts and ended runs to a chat, or to a program of yours.

    A spec names the webhook: alerts: {webhook: NAME}. Addresses inside the server's network are
    refused, unless LEHR_WEBHOOK_HOSTS names their hosts when the server starts.
    """


@webhook.command("add")
def add_webhook(
    name: Name,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="Address, or - for standard input, to keep it out of the shell's history.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Add a webhook, or give it another address. The server stores the address and never shows it.

    JSON: {webhook: WebhookView}.
    """
    if url == "-":
        import sys

        url = sys.stdin.readline().strip()
    made = connect().put_webhook(name, url)
    if as_json:
        print_json({"webhook": made})
    else:
        console().print(f"{made.name} sends to {escaped(made.host)}.")
        console().print(f"  Try it: lehr webhook test {made.name}", style="dim")


@webhook.command("ls")
def list_webhooks(as_json: JsonOption = False) -> None:
    """List the webhooks. JSON: {webhooks: [WebhookView]}."""
    found = connect().webhooks()
    if as_json:
        print_json({"webhooks": found})
        return
    if not found:
        console().print("There is no webhook. Add one: lehr webhook add NAME URL")
        return
    rows = table("name", "host")
    for one in found:
        rows.add_row(one.name, escaped(one.host))
    console().print(rows)


@webhook.command("test")
def send_test(name: Name, as_json: JsonOption = False) -> None:
    """Send a message to a webhook now. JSON: {webhook: WebhookView}."""
    found = connect().test_webhook(name)
    print_result({"webhook": found}, f"{escaped(found.host)} took the message.", as_json=as_json)


@webhook.command("rm")
def remove(name: Name, as_json: JsonOption = False) -> None:
    """Remove a webhook. JSON: {removed: NAME}."""
    connect().delete_webhook(name)
    print_result({"removed": name}, f"{name} is removed.", as_json=as_json)
