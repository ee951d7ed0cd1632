"""The server's log: one JSON object per line, in a file of the home and on stderr."""

from __future__ import annotations

import logging
import sys
from logging.handlers import RotatingFileHandler
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from pathlib import Path

_MOST_BYTES = 20 * 1000 * 1000
_OLD_FILES = 4


def configure(path: Path) -> None:
    """Send structlog's and the standard library's records to ``path`` and stderr."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )
    file = RotatingFileHandler(path, maxBytes=_MOST_BYTES, backupCount=_OLD_FILES, encoding="utf-8")
    terminal = logging.StreamHandler(sys.stderr)
    root = logging.getLogger()
    root.handlers[:] = [file, terminal]
    for handler in root.handlers:
        handler.setFormatter(formatter)
    root.setLevel(logging.INFO)
    # Its log lines repeat what the server logs itself.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
