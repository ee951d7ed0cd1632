"""``python -m supply``: bills of materials, licences and known vulnerabilities of the images."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from supply import audit, bill, images, licences, locks


def main() -> int:
    parser = argparse.ArgumentParser(prog="supply", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("supply-report"))
    parser.add_argument("--offline", action="store_true", help="leave out the vulnerabilities")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    wrong = []
    for name in locks.IMAGES:
        image = images.read(locks.DEPLOY / f"{name}.Dockerfile")
        found = [licences.licence(one) for one in locks.packages(name)]
        path = options.folder / f"sbom-{name}.json"
        path.write_text(json.dumps(bill.bill(name, image, found), indent=1) + "\n")
        print(f"{name}: {len(found)} packages, {len(images.copied(image))} files of ours; {path}")
        wrong += images.findings(image)
        for one in found:
            if not one.allowed:
                text = one.text or "nobody states it"
                wrong.append(f"{name}: the licence of {one.package.name} is not allowed: {text}")
        if not options.offline:
            wrong += audited(name)
    print("Not checked before a build: the base image and the packages of its distribution.")
    for line in wrong:
        print(f"error: {line}")
    return 1 if wrong else 0


def audited(name: str) -> list[str]:
    try:
        found = audit.audit(locks.path(name))
    except (RuntimeError, OSError) as error:
        return [f"{name}: vulnerabilities are not known: {error}"]
    for line in found.accepted:
        print(f"{name}: accepted (tests/supply/accepted.toml): {line}")
    wrong = [f"{name}: {line}" for line in found.vulnerable]
    if found.not_audited:
        number = len(found.not_audited)
        wrong.append(
            f"{name}: {number} of {found.asked} packages were not audited, for example "
            f"{found.not_audited[0]}"
        )
    return wrong


if __name__ == "__main__":
    sys.exit(main())
