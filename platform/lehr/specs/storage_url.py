"""Storage URLs of checkpoint copies: validation, required packages, opening. Pure except for
``open_place``.
"""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from lehr.errors import UserError, nearest
from lehr_trainer.extras import install


class Scheme(NamedTuple):
    module: str | None
    """The package that fsspec needs for it; None for a folder."""
    install: str
    example: str


SCHEMES = {
    "file": Scheme(None, "", "file:///mnt/shared/checkpoints"),
    "s3": Scheme("s3fs", "lehr[s3]", "s3://bucket/prefix"),
    "gs": Scheme("gcsfs", "gcsfs", "gs://bucket/prefix"),
    "az": Scheme("adlfs", "adlfs", "az://container/prefix"),
    "sftp": Scheme("paramiko", "paramiko", "sftp://host/folder"),
}


CHAIN = "::"
"""fsspec opens what stands before it, and drops what Lehr adds at the end: the run's own folder."""


def normalised(url: str) -> str:
    """Return the URL as it is recorded: with its scheme, without a trailing slash.

    Raises:
        ValueError: it is not a storage URL that can be written to.
    """
    text = f"file://{url}" if url.startswith("/") else url
    scheme, separator, _ = text.partition("://")
    if not separator:
        raise ValueError(
            f"{url!r} is not a storage URL: write s3://bucket/prefix, or an absolute path"
        )
    if scheme not in SCHEMES:
        near = nearest(scheme, SCHEMES)
        known = f"did you mean {near}://" if near else f"known: {', '.join(SCHEMES)}"
        raise ValueError(
            f"{url!r} begins with {scheme}://, which is not a supported scheme; {known}"
        )
    parts = urlsplit(text)
    if "@" in parts.netloc and ":" in parts.netloc.rpartition("@")[0]:
        raise ValueError(
            "the URL has a password; a spec is not encrypted, so set it in the environment"
        )
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} has a query or fragment, which a storage URL must not have")
    if scheme == "file" and (parts.netloc or parts.path in {"", "/"}):
        raise ValueError(f"{url!r} must be an absolute path: file:///mnt/shared/checkpoints")
    if scheme != "file" and not parts.netloc:
        raise ValueError(f"{url!r} names no bucket: {SCHEMES[scheme].example}")
    if ".." in parts.path.split("/"):
        raise ValueError(f"{url!r} contains '..'; write the resulting path")
    if CHAIN in url:
        raise ValueError(f"{url!r} contains '{CHAIN}', which joins two storages; name one")
    if scheme != "file" and any(sign in text for sign in "*?["):
        raise ValueError(f"{url!r} contains *, ? or [, which would match other folders")
    return text.rstrip("/")


def missing_package(url: str) -> str | None:
    """Return the package that is missing to open the URL; None if none is."""
    scheme = SCHEMES[url.partition("://")[0]]
    needed = ["fsspec", *([scheme.module] if scheme.module else [])]
    if all(importlib.util.find_spec(module) for module in needed):
        return None
    return scheme.install or "fsspec"


def open_place(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of ``url`` and the path in it. Sends no request yet.

    Raises:
        UserError: the required package is not installed, or the URL is of two storages.
    """
    if CHAIN in url:
        raise UserError(f"{url!r} contains '{CHAIN}': it is not opened.")
    package = missing_package(url)
    if package is not None:
        scheme = url.partition("://")[0]
        raise UserError(
            f"{scheme}:// cannot be opened here: a package is missing.",
            hint=f"Install it: {install(package)}",
        )
    from fsspec.core import url_to_fs

    # No cached listings: another process may have just written the file.
    fs, path = url_to_fs(url, use_listings_cache=False)
    return fs, str(path)


def short(error: BaseException) -> str:
    """Return a storage client's error in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    kind = type(error).__name__
    words = text if kind in text else f"{kind}: {text}"
    return words if len(words) <= 300 else f"{words[:297]}..."
