"""A bill of materials of an image, in CycloneDX's format."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

from lehr import __version__
from supply.images import Image
from supply.licences import Licence


def bill(name: str, image: Image, licences: list[Licence]) -> dict[str, Any]:
    """Return the bill; equal contents have equal bills.

    Versions of the system's packages are those of the base image and of its distribution on the day
    of the build, which nobody knows before it.
    """
    base, _, tag = image.last.base.partition(":")
    components: list[dict[str, Any]] = [
        {
            "type": "container",
            "bom-ref": f"base:{image.last.base}",
            "name": base,
            "version": tag,
        },
        *(
            {
                "type": "library",
                "bom-ref": f"deb:{one}",
                "name": one,
                "purl": f"pkg:deb/debian/{one}",
            }
            for one in image.system_packages
        ),
        *(_package(one) for one in licences),
    ]
    digest = hashlib.sha256(repr(components).encode()).hexdigest()
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.UUID(digest[:32], version=4)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "container",
                "bom-ref": f"image:lehr-{name}",
                "name": f"lehr-{name}",
                "version": __version__,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
    }


def _package(one: Licence) -> dict[str, Any]:
    package = one.package
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        # One for each file of the release: which of them is installed depends on the machine.
        "properties": [{"name": "lehr:sha256", "value": digest} for digest in package.digests],
    }
    if one.text:
        found["licenses"] = [{"license": {"name": one.text}}]
    return found
