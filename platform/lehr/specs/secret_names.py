"""The names of secrets in specs."""

from __future__ import annotations

import re

SECRET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Letters, digits, dots, dashes and underscores; starts with a letter or digit."""
