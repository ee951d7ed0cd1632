"""List, set and remove the secrets that specs name."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from lehr import actor
from lehr.errors import UserError
from lehr.schemas.secrets import SecretsView, SecretView
from lehr.secret_store import Secret, SecretStore
from lehr.specs.secret_names import SECRET_NAME

if TYPE_CHECKING:
    from lehr.services.context import Context

MOST_BYTES = 32_768
"""A longer value does not fit in an environment beside others."""


def list_secrets(context: Context) -> SecretsView:
    return SecretsView(secrets=[_view(one) for one in SecretStore(context.home).all()])


def set_secret(context: Context, name: str, value: str) -> SecretView:
    """Set a secret. Attempts that start from now on get the value.

    Raises:
        UserError: the name or the value is not valid.
    """
    if not SECRET_NAME.fullmatch(name):
        raise UserError(
            f"{name!r} is not a name for a secret.",
            hint="Up to 64 letters, digits, dots, dashes and underscores: hf-read.",
        )
    size = len(value.encode("utf-8", "surrogatepass"))
    if not 0 < size <= MOST_BYTES:
        raise UserError(
            f"the value of {name} has {size:,} bytes; it must have 1 to {MOST_BYTES:,} bytes."
        )
    if "\0" in value:
        raise UserError(f"the value of {name} has a NUL character, which a variable cannot hold.")
    store = SecretStore(context.home)
    return _view(store.set(name, value, by=actor.current(), at=context.store.clock()))


def remove_secret(context: Context, name: str) -> SecretView:
    """Remove a secret. A run that names it fails with the reason if it starts later.

    Raises:
        NotFound: there is none of this name.
    """
    return _view(SecretStore(context.home).remove(name))


def _view(secret: Secret) -> SecretView:
    return SecretView(**asdict(secret))
