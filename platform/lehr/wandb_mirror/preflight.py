"""Check whether this server can mirror to W&B: the package, and a key for online.

W&B manages the key (WANDB_API_KEY, or the netrc of ``wandb login``). Lehr checks that it exists,
and never reads it.
"""

from __future__ import annotations

import importlib.util
import netrc
import os
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from lehr_trainer.extras import install

_BASE_URL = "https://api.wandb.ai"
_KEYS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")


def lack(mode: Literal["online", "offline", "off"]) -> tuple[str, str] | None:
    """Return what is missing for a mirror of this mode, and what to do; None when nothing is."""
    if mode == "off":
        return None
    if importlib.util.find_spec("wandb") is None:
        return (
            "the package wandb is not installed on the server's machine",
            f"Install it there: {install('lehr[wandb]')}",
        )
    if mode == "online" and not _has_key():
        return (
            f"the server has no W&B API key for {_host()}",
            "Set one on the server (`wandb login` or WANDB_API_KEY), or use mode: offline.",
        )
    return None


def _has_key() -> bool:
    if any(os.environ.get(name) for name in _KEYS):
        return True
    given = os.environ.get("NETRC")
    for path in [Path(given)] if given else [Path("~/.netrc"), Path("~/_netrc")]:
        try:
            if netrc.netrc(path.expanduser()).authenticators(_host()) is not None:
                return True
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def _host() -> str:
    return urlsplit(os.environ.get("WANDB_BASE_URL") or _BASE_URL).hostname or _BASE_URL
