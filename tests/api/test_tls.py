"""A server with a self-signed certificate serves only clients that trust it."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from lehr import Client
from lehr.errors import ServerUnavailable, UserError
from lehr.node.http_client import Outage, ServerConnection
from lehr_testing.api import RUN_SPEC
from lehr_testing.processes import Process


def certificate(folder):
    """Create a self-signed certificate for this machine; return its path and that of its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "lehr-test")])
    now = dt.datetime.now(dt.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    pem, key = certificate(folder)
    process = Process(folder / "home", "--tls-certificate", str(pem), "--tls-key", str(key))
    try:
        yield process.ready(), pem
    finally:
        process.end()


@pytest.fixture
def address(served):
    return f"https://127.0.0.1:{served[0].port}"


@pytest.fixture
def trusted(served, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(served[1]))


@pytest.fixture
def untrusted(monkeypatch):
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)


def token(served):
    return served[0].headers["Authorization"].removeprefix("Bearer ")


def test_server_reports_its_https_address(served, address):
    assert served[0].info()["url"] == address


def test_client_with_a_trusted_certificate_submits_and_reads(served, address, trusted):
    with Client(address, token(served)) as client:
        made = client.submit(RUN_SPEC)
        assert client.run(made.id).state == "queued"


def test_untrusted_certificate_is_a_clear_error(served, address, untrusted):
    with pytest.raises(ServerUnavailable, match=r"(?i)certificate"), Client(address, "t") as client:
        client.health()


def test_missing_certificate_file_is_named(address, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    with pytest.raises(UserError, match=r"SSL_CERT_FILE is '/nowhere/ca.pem'"):
        Client(address, "t")


def test_client_of_an_address_without_encryption_reads_no_certificates(monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", "/nowhere/ca.pem")
    monkeypatch.setattr(ssl, "create_default_context", lambda *_, **__: pytest.fail("was read"))
    Client("http://127.0.0.1:1", "t").close()


def test_shipper_with_a_trusted_certificate_reaches_its_routes(served, address, trusted):
    with Client(address, token(served)) as client:
        run = client.submit(RUN_SPEC).id
    with pytest.raises(Outage, match="answered 401"):
        ServerConnection(lambda: address, "wrong", f"{run}-1").get("streams")


def test_shipper_with_an_untrusted_certificate_waits(address, untrusted):
    with pytest.raises(Outage, match=r"(?i)certificate"):
        ServerConnection(lambda: address, "wrong", "abc-1").get("streams")


def test_login_cookie_is_for_https_only(served, address):
    import ssl

    context = ssl.create_default_context(cafile=str(served[1]))
    with httpx.Client(base_url=address, verify=context, trust_env=False) as http:
        answer = http.post("/login", data={"token": token(served)}, headers={"Origin": address})
        assert answer.status_code in {200, 303}, answer.text
        assert "secure" in answer.headers["set-cookie"].lower()


def test_plain_http_is_rejected(served):
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://127.0.0.1:{served[0].port}/api/v1/health", trust_env=False, timeout=20)
