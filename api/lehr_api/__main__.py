"""``python -m lehr_api``: the one server process of a home."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from functools import partial
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType
from typing import Literal

from lehr import __version__
from lehr.base import home, own_logs
from lehr.control.liveness import LONGEST_S
from lehr.errors import HomeUnusable, LehrError, UserError, not_installed

try:
    import structlog
    import uvicorn

    from lehr.app.upkeep import Upkeep, give_back, limit_arenas
    from lehr_api.app import create_app
    from lehr_api.settings import Settings, check_certificate, check_public_url
except ModuleNotFoundError as missing:
    sys.exit(f"lehr: {not_installed(missing)}")
from fastapi import FastAPI

log = structlog.get_logger("lehr.server")
_OPEN_FILES = 65_536
_KEEP_ALIVE_S = int(2 * LONGEST_S)
_LOG_BYTES = 20 * 1000 * 1000
_OLD_LOGS = 4
_GRACE_S = 5
"""Seconds for requests in progress to finish when the server stops."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    limit_arenas()
    where = options.home.expanduser().absolute()
    try:
        _refuse_bare_network(options)
        check_public_url(options.public_url)
        check_certificate(options.tls_certificate, options.tls_key)
        with home.lock(where):
            home.remove_server(where)  # Of a killed server with the same pid, as in a container.
            settings = Settings(
                home=where,
                token=home.ensure_token(where),
                host=options.host,
                port=options.port,
                public_url=options.public_url,
                allowed_hosts=tuple(options.allowed_host),
                code=_code_policy(),
                trainers=tuple(os.environ.get("LEHR_TRAINERS", "").replace(",", " ").split()),
                gpus=options.gpus,
                ray_address=options.ray_address,
                tls_certificate=options.tls_certificate,
                tls_key=options.tls_key,
            )
            with _listening(settings) as listener:
                _allow_open_files()
                configure_logs(home.logs_dir(where) / "server.log")
                if note := home.close_to_others(where):
                    log.warning(note)
                with contextlib.ExitStack() as upkeep:
                    rotation = partial(own_logs.rotate, home.logs_dir(where))
                    for name, act in (("log-rotation", rotation), ("freed-memory", give_back)):
                        thread = Upkeep(name, act)
                        thread.start()
                        upkeep.callback(thread.stop)
                    _serve(settings, listener)
    except LehrError as error:
        print(f"lehr: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _allow_open_files() -> None:
    """Raise the limit of open files as far as allowed: each attempt keeps a connection open.

    Most systems begin with 1,024 for the sake of ``select``, which nothing here uses.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class UvicornServer(uvicorn.Server):
    """Stops on a signal without raising it again, so that the cleanup runs. Ends the event
    streams, which would delay the shutdown.
    """

    def __init__(self, config: uvicorn.Config, app: FastAPI, url: str, where: Path) -> None:
        super().__init__(config)
        self._app = app
        self._url = url
        self._where = where

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        ca_file = os.environ.get("LEHR_CA") if self._url.startswith("https:") else None
        info = home.ServerInfo(self._url, os.getpid(), __version__, ca_file)
        home.write_server(self._where, info)
        log.info("server listens", url=self._url, home=str(self._where), version=__version__)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        log.info("server stops; trainings continue")
        home.remove_server(self._where)
        self._app.state.services.hub.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        def stop(_signal: int, _frame: FrameType | None) -> None:
            self.force_exit = self.should_exit and _signal == signal.SIGINT
            self.should_exit = True

        before = {one: signal.signal(one, stop) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def _serve(settings: Settings, listener: socket.socket) -> None:
    app = create_app(settings)
    if settings.ray_address and settings.url_is_loopback:
        log.warning("workers on other machines cannot reach this address", url=settings.url)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        # A worker keeps its connection from one heartbeat to the next.
        timeout_keep_alive=_KEEP_ALIVE_S,
        # A proxy on this machine may report that the browser came by HTTPS.
        proxy_headers=True,
        forwarded_allow_ips="127.0.0.1,::1",
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        loop="uvloop",
        http="httptools",
        # Half of the files that may be open. The other half is for the store, streams and Ray.
        limit_concurrency=resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2,
        ws="none",
    )
    server = UvicornServer(config, app, settings.url, settings.home)
    try:
        server.run(sockets=[listener])
    finally:
        home.remove_server(settings.home)


@contextlib.contextmanager
def _listening(settings: Settings) -> Iterator[socket.socket]:
    """Bind the port before anything is opened, so that a taken port is reported at once."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except OSError as error:
            raise HomeUnusable(
                f"cannot listen at {settings.host}:{settings.port}: {error.strerror}.",
                hint="Another process may use the port. Choose another: --port N",
            ) from error
        yield listener
    finally:
        listener.close()


def configure_logs(path: Path) -> None:
    """Write structlog's and the standard library's records to ``path`` and stderr: JSON lines."""
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
    file = RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=_OLD_LOGS, encoding="utf-8")
    terminal = logging.StreamHandler(sys.stderr)
    root = logging.getLogger()
    root.handlers[:] = [file, terminal]
    for handler in root.handlers:
        handler.setFormatter(formatter)
    root.setLevel(logging.INFO)
    # Its log lines repeat what the server logs itself.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)


def _code_policy() -> Literal["any", "installed"]:
    """Return what ``LEHR_CODE`` allows.

    Raises:
        UserError: it has another value.
    """
    given = os.environ.get("LEHR_CODE") or "any"
    if given in {"any", "installed"}:
        return "installed" if given == "installed" else "any"
    raise UserError(
        f"LEHR_CODE is {given!r}; it must be any or installed.",
        hint="any: runs bring their own code. installed: only the server's own trainer trains.",
    )


def _refuse_bare_network(options: argparse.Namespace) -> None:
    """Refuse to listen on a non-loopback address without TLS unless --insecure is given."""
    settings = Settings(home=Path(), token="", host=options.host)
    if settings.loopback or options.tls_certificate or options.insecure:
        return
    raise UserError(
        f"--host {options.host} can be reached from the network, and without TLS the token "
        "can be read there.",
        hint="Give --tls-certificate and --tls-key, put a TLS proxy in front of 127.0.0.1, or, "
        "on a trusted network, add --insecure.",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lehr_api", description="Lehr's server.")
    add = parser.add_argument
    add("--home", type=Path, default=home.home(), help="home folder (default: LEHR_HOME)")
    add("--host", default=home.DEFAULT_HOST, help="address to listen on")
    add("--port", type=int, default=home.DEFAULT_PORT)
    add("--gpus", type=_number, help="number of GPUs to offer; logical ones without a GPU")
    add("--ray-address", help="address of an existing Ray cluster")
    add("--public-url", help="URL of this server for workers and browsers")
    add("--allowed-host", action="append", default=[], help="additional host name to accept")
    add("--tls-certificate", type=Path)
    add("--tls-key", type=Path)
    add(
        *("--insecure", "--insecure-http"),
        action="store_true",
        help="allow addresses other than loopback without TLS",
    )
    return parser


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
