"""The Caddyfile: its limits are not below the server's, and a real Caddy, where there is one, serves by it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading

import httpx
import pytest

from lehr_api.settings import Settings
from lehr_testing.api import TOKEN, served
from lehr_testing.paths import ROOT
from lehr_testing.server import free_port
from lehr_testing.waiting import until

TEXT = (ROOT / "deploy/proxy/Caddyfile").read_text()
UNITS = {"MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}


def limit(matcher: str) -> int:
    [(number, unit)] = re.findall(
        rf"request_body {matcher} {{\s*max_size (\d+)([A-Za-z]+)", TEXT, re.MULTILINE
    )
    return int(number) * UNITS[unit]


def test_proxy_lets_all_bodies_through_that_the_server_takes(tmp_path):
    settings = Settings(home=tmp_path, token="t")
    assert limit("@code") >= settings.capsule_limit
    assert limit("@other") >= max(settings.body_limit, settings.chunk_limit)
    assert "@code path /api/v1/code/*" in TEXT
    assert "@other not path /api/v1/code/*" in TEXT


@pytest.fixture
def caddy(tmp_path):
    """A Caddy with the file, its name and a certificate of its own, before a real server."""
    program = shutil.which("caddy")
    if program is None:
        pytest.skip("caddy is not installed")
    with served(tmp_path / "home", public_url="https://lehr.example.org") as (_, url):
        https, http = free_port(), free_port()
        options = (
            f"{{\n\tlocal_certs\n\tskip_install_trust\n\tadmin off\n\thttp_port {http}\n"
            f"\thttps_port {https}\n}}\n"
        )
        path = tmp_path / "Caddyfile"
        assert "127.0.0.1:5347" in TEXT
        path.write_text(options + TEXT.replace("127.0.0.1:5347", url.removeprefix("http://")))
        environment = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
        process = subprocess.Popen(
            [program, "run", "--config", str(path), "--adapter", "caddyfile"],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        root = tmp_path / "caddy/pki/authorities/local/root.crt"

        def listens() -> bool:
            assert process.poll() is None, "caddy ended"
            with socket.socket() as probe:
                return root.exists() and probe.connect_ex(("127.0.0.1", https)) == 0

        try:
            until(listens, within_s=60, what="caddy to listen")
            yield https, root
        finally:
            # It would wait for open event streams.
            process.kill()
            process.wait(timeout=30)


def client_of(caddy) -> httpx.Client:
    port, root = caddy
    return httpx.Client(
        base_url=f"https://127.0.0.1:{port}/api/v1",
        headers={"Authorization": f"Bearer {TOKEN}", "Host": "lehr.example.org"},
        verify=ssl.create_default_context(cafile=str(root)),
        timeout=60,
    )


def ask(client, method, path, **options):
    """Ask by the name of the certificate, whatever the address."""
    return client.request(method, path, extensions={"sni_hostname": "lehr.example.org"}, **options)


def test_caddy_serves_code_of_20_mb_and_events_without_delay(caddy):
    with client_of(caddy) as client:
        assert ask(client, "GET", "/health").status_code == 200
        body = b"x" * 20_000_000
        digest = hashlib.sha256(body).hexdigest()
        refused = ask(client, "PUT", f"/code/{digest}", content=body)
        # It arrived whole, and is no archive.
        assert refused.status_code == 422, refused.text
        too_large = ask(client, "POST", "/runs", content=b"{" + b" " * 9_000_000)
        assert too_large.status_code == 413
        first = threading.Event()
        request = client.build_request(
            "GET", "/stream", extensions={"sni_hostname": "lehr.example.org"}
        )
        answer = client.send(request, stream=True)
        try:
            for _ in answer.iter_bytes():
                first.set()
                break
        finally:
            answer.close()
        assert first.is_set()
