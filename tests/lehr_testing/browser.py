"""The browser that tests and benches drive."""

from __future__ import annotations

import os
import shutil

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""In the order in which they are tried; the Makefile installs the first that the system has."""


def chromium() -> str:
    """Return the path of Chromium: ``LEHR_TEST_CHROMIUM``, or the first that is installed.

    The headless shell renders pages like Chromium, without the windows around them.
    """
    chosen = os.environ.get("LEHR_TEST_CHROMIUM")
    found = chosen or next((path for one in BROWSERS if (path := shutil.which(one))), None)
    return found or "/usr/bin/chromium"
