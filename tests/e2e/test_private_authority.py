"""`lehr --ca FILE up` with a certificate of a private authority: a run trains by HTTPS alone."""

from __future__ import annotations

import json

import pytest

from lehr_testing import specs
from lehr_testing.fakes import FakeServer
from lehr_testing.tls import private_authority
from lehr_testing.waiting import until

# tests/api/test_private_authority.py has the connection of the CLI and of a worker without Ray.
pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(600)]


def test_own_workers_of_a_server_with_a_private_authority_train(tmp_path, monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    made = private_authority(tmp_path / "tls")
    server = FakeServer(tmp_path / "home", gpus=1, corpus=specs.text_corpus(tmp_path / "corpus"))
    server.environment |= {"LEHR_CA": str(made.authority)}
    server.environment.pop("SSL_CERT_FILE", None)
    options = ("--tls-certificate", str(made.certificate), "--tls-key", str(made.key))
    server.cli("up", "--gpus", "1", "--port", str(server.port), *options)
    try:
        (tmp_path / "run.json").write_text(json.dumps(server.spec("by-https", steps=5)))
        run = json.loads(server.cli("submit", str(tmp_path / "run.json"), "--json").stdout)["run"]

        def ended():
            return json.loads(server.cli("show", run["id"], "--json").stdout)["run"]

        until(lambda: ended()["state"] in {"completed", "failed"}, within_s=200, what="its end")
        assert ended()["state"] == "completed", ended()
        # Its streams came by the same way.
        assert ended()["step"] == 5
    finally:
        server.down()
