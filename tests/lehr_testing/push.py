"""A browser that gets messages."""

from __future__ import annotations

from lehr.app.alerting.push import Device

DEVICE = Device(
    "user",
    "https://fcm.googleapis.com/fcm/send/c1",
    "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
    "BTBZMqHH6r4Tts7J_aSIgg",
    0.0,
)
"""With the keys of the example of RFC 8291."""
