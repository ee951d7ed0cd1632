"""Wall clocks that change while everything runs, as by a wrong NTP server; by libfaketime."""

from __future__ import annotations

from pathlib import Path

import libfaketime


class WallClock:
    """The wall clock of every process that has ``environment``, and of its children.

    Monotonic clocks and files' times stay as they are: setting a machine's clock leaves them, too.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def set(self, ahead_s: int) -> None:
        """Set it so many seconds ahead of the real one; processes see it within a second."""
        draft = self._file.with_suffix(".new")
        draft.write_text(f"{ahead_s:+d}\n")
        draft.replace(self._file)

    @property
    def environment(self) -> dict[str, str]:
        library = Path(libfaketime.__file__).parent / "vendor/libfaketime/src/libfaketime.so.1"
        assert library.exists()
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
        }
