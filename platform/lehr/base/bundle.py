"""A page with an archive appended: a browser opens it as a report, any unzip tool as its evidence.

docs/your-code.md lists the members.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from pathlib import Path
from typing import IO, Any
from zipfile import ZIP_DEFLATED, BadZipFile, ZipFile, ZipInfo

from lehr.errors import UserError
from lehr_trainer.contract import layout

FORMAT = 1
SUFFIX = ".lehr.html"
OPENED = "opened"  # Who submitted the runs of a file: their speeds are of no machine here.
MANIFEST, RECORD, SPEC = "manifest.json", "record.json", "spec.yaml"
_LARGEST, _GROWTH = 1 << 30, 20
"""Bytes of all members, unpacked: so many, or so many times the size of the file."""
DAMAGE = (BadZipFile, zlib.error, EOFError, RuntimeError, TypeError, ValueError, LookupError)


class BundleWriter:
    """Writes the page, then the members. Equal members give equal bytes."""

    def __init__(self, file: IO[bytes], page: str) -> None:
        # Nothing ends plaintext, so no bytes of the archive are read as part of the page.
        file.write(f"{page.partition('</body>')[0]}<plaintext hidden>\n".encode())
        self._zip, self._files = ZipFile(file, "w"), dict[str, str]()

    def add(self, name: str, value: Any) -> None:
        """Add bytes, or anything else as JSON."""
        as_json = not isinstance(value, bytes)
        content = json.dumps(value, indent=1, sort_keys=True).encode() if as_json else value
        self._zip.writestr(ZipInfo(name), content, ZIP_DEFLATED)
        self._files[name] = hashlib.sha256(content).hexdigest()

    def close(self, **about: str) -> None:
        """Write the manifest, with ``about``, and end the archive."""
        self.add(MANIFEST, {"format": FORMAT, **about, "files": self._files})
        self._zip.close()


class Bundle(ZipFile):
    """An open file. Raise UserError if it is none, cut off, unsafe or of a newer format."""

    def __init__(self, path: Path, name: str) -> None:
        try:
            super().__init__(path)
            self._check(max(_LARGEST, _GROWTH * path.stat().st_size))
        except (OSError, *DAMAGE) as error:
            hint = f"It must be whole, and made by lehr report -o NAME{SUFFIX}."
            raise UserError(f"{name} is refused: {error}.", hint=hint) from None

    def _check(self, most: int) -> None:
        for info in self.infolist():
            leads_out = {"", ".", ".."} & {*info.filename.split("/")} or "\\" in info.filename
            if leads_out or info.external_attr >> 28 not in {0, 0o10}:
                raise ValueError(f"{info.filename[:200]!r} leads out of it, or is a link")
        size, names = sum(info.file_size for info in self.infolist()), self.namelist()
        if size > most:
            raise ValueError(f"it unpacks to {size:,} bytes; at most {most:,} are allowed")
        self.about: dict[str, Any] = json.loads(self.read(MANIFEST))
        if self.about["format"] != FORMAT:
            raise ValueError(f"it has format {self.about['format']}; this Lehr reads {FORMAT}")
        # A checkpoint is appended later: the record has the digest of its own manifest.
        names = [name for name in names if f"/{layout.CHECKPOINTS}/" not in name]
        if sorted([*self.about["files"], MANIFEST]) != sorted(names):
            raise ValueError("its manifest does not list what it holds")

    def below(self, folder: str) -> list[str]:
        return sorted(name for name in self.namelist() if name.startswith(f"{folder}/"))

    def changed(self) -> list[str]:
        """Read everything; return the members that are not as the manifest has them."""
        return [name for name, digest in self.about["files"].items() if self._sha(name) != digest]

    def _sha(self, name: str) -> str | None:
        try:
            return hashlib.sha256(self.read(name)).hexdigest()
        except UserError:
            return None

    def read(self, name: Any, pwd: bytes | None = None) -> bytes:
        try:
            return super().read(name, pwd)
        except DAMAGE as error:
            raise UserError(f"its member {name} cannot be read: {error}.") from None
