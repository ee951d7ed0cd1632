"""A certificate authority of one's own, and a server's certificate signed by it."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclass(frozen=True)
class Certificates:
    authority: Path
    certificate: Path
    key: Path


def private_authority(folder: Path) -> Certificates:
    """Create an authority, and a certificate for 127.0.0.1 that it signed. Nobody trusts it."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    names = [
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        for name in ("Private authority", "lehr-test")
    ]
    now = dt.datetime.now(dt.UTC)
    made = []
    for number, key in enumerate(keys):
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[number])
            .issuer_name(names[0])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=number == 0, path_length=None), critical=True)
        )
        if number == 1:
            here = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(here), critical=False)
        made.append(builder.sign(keys[0], hashes.SHA256()))
    paths = Certificates(folder / "ca.pem", folder / "certificate.pem", folder / "key.pem")
    for path, one in zip((paths.authority, paths.certificate), made, strict=True):
        path.write_bytes(one.public_bytes(serialization.Encoding.PEM))
    paths.key.write_bytes(
        keys[1].private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    paths.key.chmod(0o600)
    return paths
