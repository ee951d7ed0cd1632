"""Messages to browsers: encrypted as RFC 8291 does, signed, and only of the person's own runs."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from lehr.app.alerting.push import MOST_EACH, Devices, encrypted
from lehr.errors import UserError
from lehr_testing.push import DEVICE

# RFC 8291, section 5 and appendix A.
SENDER = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw"
SALT = "DGv6ra1nlYgDCS1FRnbzlw"
BODY = (
    "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS"
    "6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qu"
    "lcy4a-fN"
)


def decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_encryption_is_that_of_the_example_of_rfc_8291() -> None:
    key = ec.derive_private_key(int.from_bytes(decoded(SENDER), "big"), ec.SECP256R1())
    text = b"When I grow up, I want to be a watermelon"
    sent = encrypted(text, DEVICE.p256dh, DEVICE.auth, key=key, salt=decoded(SALT))
    assert urlsafe_b64encode(sent).decode().rstrip("=") == BODY


def test_message_is_signed_for_the_push_service_with_the_key_of_the_home(tmp_path: Path) -> None:
    devices = Devices(tmp_path, url="https://lehr.test")
    name = devices.put(DEVICE)
    _, headers, _ = Devices(tmp_path, url="https://lehr.test").message(
        name, {"event": "test", "text": "x"}
    )
    token, key = headers["Authorization"].removeprefix("vapid t=").split(", k=")
    assert key == devices.public_key
    signed, _, signature = token.rpartition(".")
    r, s = (int.from_bytes(decoded(signature)[i : i + 32], "big") for i in (0, 32))
    point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decoded(key))
    point.verify(encode_dss_signature(r, s), signed.encode(), ec.ECDSA(SHA256()))
    claims = json.loads(decoded(signed.split(".")[1]))
    assert (claims["aud"], claims["sub"]) == ("https://fcm.googleapis.com", "https://lehr.test")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"endpoint": "https://10.0.0.1/x"}, "is no push service"),
        ({"endpoint": "https://evil-fcm.googleapis.com/x"}, "is no push service"),
        ({"endpoint": "http://fcm.googleapis.com/x"}, "is no push service"),
        ({"p256dh": "AAAA"}, "is no key of a subscription"),
        ({"auth": "AAAA"}, "auth has not 16 bytes"),
    ],
)
def test_subscription_that_no_message_could_reach_is_refused(tmp_path, changes, named) -> None:
    device = DEVICE._replace(**changes)
    with pytest.raises(UserError, match=named):
        Devices(tmp_path, url="").put(device)
    assert list(tmp_path.iterdir()) == []


def test_new_device_takes_the_place_of_the_persons_oldest(tmp_path: Path) -> None:
    devices = Devices(tmp_path, url="")
    other = devices.put(DEVICE._replace(person="ben"))
    names = [
        devices.put(DEVICE._replace(person="anna", endpoint=f"{DEVICE.endpoint}{i}"))
        for i in range(MOST_EACH + 1)
    ]
    assert [name for name, _ in devices.all()] == [other, *names[1:]]


def test_message_reads_the_devices_once(tmp_path: Path, monkeypatch) -> None:
    devices = Devices(tmp_path, url="https://lehr.test")
    name = devices.put(DEVICE)
    assert devices.public_key
    reads: list[Path] = []
    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: [reads.append(path), read(path)][1])
    assert devices.message(name, {"event": "test", "text": "x"}) is not None
    assert devices.message("push:gone", {"event": "test", "text": "x"}) is None
    assert len(reads) == 2
