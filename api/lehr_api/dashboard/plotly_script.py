"""Plotly's script, from the installed ``plotly`` wheel: no CDN, no copy in the repository."""

from __future__ import annotations

import gzip
from functools import cache
from importlib import metadata, resources
from pathlib import Path
from threading import Lock

_compressing = Lock()


@cache
def plotly_script_path() -> Path:
    return Path(str(resources.files("plotly") / "package_data" / "plotly.min.js"))


@cache
def plotly_script_name() -> str:
    """Return its name in URLs; it contains the release, so that it can be cached for good."""
    return f"plotly-{metadata.version('plotly')}.min.js"


def plotly_script_gzipped() -> bytes:
    """Compress it from 4.8 MB to 1.5, once, on the first request. The others wait for that."""
    with _compressing:
        return _gzipped()


@cache
def _gzipped() -> bytes:
    return gzip.compress(plotly_script_path().read_bytes(), compresslevel=6)
