"""What a program logs beside numbers: images, tables, histograms and files.

Their content is appended to ``media.bin`` beside the log, and a line of the log says where it is.
Bad input raises nothing: it is left out, and the run gets a warning. Arrays need NumPy.
"""

from __future__ import annotations

import io
import json
import math
import os
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

STREAM = "media.bin"
MOST_BYTES = 20 << 20
"""Of one image, table or file."""
MOST_BYTES_OF_ALL = 1 << 30
"""Of an attempt. The server stores no more."""
_MOST = 10_000
"""Things of a process."""
_MOST_VALUES = 1 << 26
"""Of an array that becomes an image: 4,700 x 4,700 pixels in colour."""
_MOST_ROWS = 100_000
_BINS = 64
_LONGEST = 10_000
"""Characters of a cell of a table."""
_LONGEST_NAME, _LONGEST_CAPTION = 200, 500
_SPARE = 64 << 20
"""Bytes of the disk that are left for the log."""
_PNG = b"\x89PNG\r\n\x1a\n"
_STARTS = {_PNG: "png", b"\xff\xd8\xff": "jpeg", b"GIF87a": "gif", b"GIF89a": "gif"}
_warned: set[tuple[str, str]] = set()
_counts: Counter[str] = Counter()
"""By the log of a run, as what was warned of."""


class _NoRoom(Exception):
    """A limit of all content is reached, or the disk is full."""


class Media:
    """Content to log. It is made at once: a figure or a tensor may change before it is logged."""

    type = ""
    left_out = ""
    """Which part of it is left out."""

    def __init__(self, make: Callable[[], bytes], caption: Any = None) -> None:
        self.caption = caption if isinstance(caption, str) else ""
        try:
            self._made: bytes | Exception = make()
        except Exception as error:  # noqa: BLE001 - nothing here may stop a training
            self._made = error

    def content(self) -> bytes:
        """Return the bytes to store, or raise why there are none."""
        if isinstance(self._made, Exception):
            raise self._made
        return self._made


class Image(Media):
    """An image: the path or the bytes of a PNG, JPEG, GIF or WebP, an array, a tensor, an image of
    Pillow or a figure of Matplotlib. Further arguments of W&B's are left out.

    An array has the shape (height, width) or (height, width, 1 to 4 channels); a tensor may have
    its channels first. Its values are booleans, whole numbers from 0 to 255, or floats from 0 to 1
    or 0 to 255. If floats are negative, the lowest becomes black and the highest white.
    """

    type = "image"

    def __init__(self, data: Any, caption: str | None = None, **others: Any) -> None:
        super().__init__(lambda: _image(data), caption)
        if others:
            self.left_out = f"not recorded of it: {', '.join(others)}"


class Table(Media):
    """Rows of numbers and texts, or a ``dataframe``; a cell of another type becomes its text."""

    type = "table"

    def __init__(self, columns: Any = None, rows: Any = None, **given: Any) -> None:
        self._columns, self._rows = columns, list[Any]()
        super().__init__(lambda: self._take(given.get("data") if rows is None else rows, **given))

    def _take(self, rows: Any, dataframe: Any = None, **_: Any) -> bytes:
        if dataframe is not None:
            self._columns, rows = dataframe.columns, dataframe.itertuples(index=False)
        self._rows += () if rows is None else rows
        return b""

    def add_data(self, *row: Any) -> None:
        """Add a row."""
        self._rows.append(row)

    def content(self) -> bytes:
        super().content()
        cells = [[_cell(cell) for cell in row] for row in self._rows[:_MOST_ROWS]]
        first = range(len(cells[0]) if cells else 0)
        columns = [str(name) for name in (first if self._columns is None else self._columns)]
        for number, row in enumerate(cells, 1):
            if len(row) != len(columns):
                raise ValueError(f"row {number} has {len(row)} values for {len(columns)} columns")
        if len(self._rows) > _MOST_ROWS:
            self.left_out = f"it has {len(self._rows):,} rows; {_MOST_ROWS:,} are recorded"
        return _json({"columns": columns, "rows": cells})


class Histogram(Media):
    """How often values occur in each of at most 64 bins of equal width; or ``np_histogram``, counts
    and edges as ``numpy.histogram`` returns them.
    """

    type = "histogram"

    def __init__(self, values: Any = None, np_histogram: Any = None, num_bins: int = 64) -> None:
        super().__init__(lambda: _bins(*(np_histogram or self._count(values, num_bins))))

    def _count(self, values: Any, bins: int) -> Any:
        import numpy as np

        array = _array(values).ravel() * 1.0
        finite = array[np.isfinite(array)]
        if not finite.size:
            raise ValueError(f"none of its {array.size:,} values is a finite number")
        if nonfinite := array.size - finite.size:
            self.left_out = (
                f"{nonfinite:,} of its {array.size:,} values are NaN or infinite, and not counted"
            )
        return np.histogram(finite, max(1, min(int(bins), _BINS)))


class File(Media):
    """A file to download."""

    type = "file"

    def __init__(self, path: str | os.PathLike[str], caption: str | None = None) -> None:
        super().__init__(lambda: _read(path), caption or str(path).rpartition("/")[2])


def image_type(content: bytes) -> str | None:
    """Return the media type of an image without scripts, by its first bytes; None if it is none."""
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image/webp"
    name = next((name for start, name in _STARTS.items() if content.startswith(start)), None)
    return name and f"image/{name}"


def is_media(value: Any) -> bool:
    """Return whether it is a ``Media`` or a list of them."""
    items = value if isinstance(value, list | tuple) else [value]
    return bool(items) and all(isinstance(item, Media) for item in items)


def log(name: str, value: Any, step: int, log_path: str, write: Callable[..., None]) -> None:
    """Log a ``Media`` or a list of them. ``write`` takes a record of the log."""
    name = name[:_LONGEST_NAME]
    for item in value if isinstance(value, list | tuple) else [value]:
        warned = f"{name}: {item.type}"
        try:
            content = item.content()
            offset = _append(log_path, content)
            record = {"name": name, "type": item.type, "caption": item.caption[:_LONGEST_CAPTION]}
            place = {"offset": offset, "size": len(content)}
            write({"kind": "media", "step": step, **record, **place})
            trouble = item.left_out
        except _NoRoom as error:
            trouble, warned = f"left out, and so are later ones: {error}", ""
        except Exception as error:  # noqa: BLE001 - nothing here may stop a training
            trouble = f"left out: {error}"
        if trouble and (log_path, warned) not in _warned:
            _warned.add((log_path, warned))
            text = f"{name}: {item.type} at step {step}: {trouble}"
            write({"kind": "warning", "step": step, "message": text[:1000]})


def _append(log_path: str, content: bytes) -> int:
    """Append to the stream beside the log; return where the content begins."""
    path = Path(log_path).with_name(STREAM)
    if _counts[log_path] >= _MOST:
        raise _NoRoom(f"at most {_MOST:,} are recorded")
    if not 0 < len(content) <= MOST_BYTES:
        raise ValueError(f"it has {len(content):,} bytes; 1 to {MOST_BYTES:,} are stored")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        if os.fstat(file).st_size + len(content) > MOST_BYTES_OF_ALL:
            raise _NoRoom(f"at most {MOST_BYTES_OF_ALL:,} bytes of an attempt are stored")
        disk = os.fstatvfs(file)
        # One write: another process of the program cannot write into the middle of it.
        full = disk.f_bavail * disk.f_frsize < len(content) + _SPARE
        if full or os.write(file, content) < len(content):
            raise _NoRoom(f"the disk of {path} is full")
        _counts[log_path] += 1
        return os.lseek(file, 0, os.SEEK_CUR) - len(content)
    except OSError as error:
        raise _NoRoom(f"{path}: {error.strerror}") from error
    finally:
        os.close(file)


def _read(path: str | os.PathLike[str]) -> bytes:
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}")
    if (size := Path(path).stat().st_size) > MOST_BYTES:
        raise ValueError(f"{path} has {size:,} bytes; at most {MOST_BYTES:,} are stored")
    return Path(path).read_bytes()


def _image(data: Any) -> bytes:
    file = io.BytesIO()
    if isinstance(data, str | os.PathLike):
        data = _read(data)
    if isinstance(data, bytes):
        if image_type(data) is None:
            raise ValueError("it is no PNG, JPEG, GIF or WebP (an SVG can hold a script)")
        return data
    if hasattr(data, "savefig"):
        data.savefig(file, format="png")
    elif hasattr(data, "convert") and hasattr(data, "save"):
        (data if data.mode in {"L", "RGB"} else data.convert("RGBA")).save(file, "PNG")
    else:
        return _png(data)
    return file.getvalue()


def _array(data: Any) -> Any:
    import numpy as np

    if hasattr(data, "detach"):
        data = data.detach().cpu()
        data = data.float() if data.is_floating_point() else data  # NumPy has no bfloat16.
    return np.asarray(data)


def _png(data: Any) -> bytes:
    import numpy as np

    shape = tuple(getattr(data, "shape", ()))
    if math.prod(shape) > _MOST_VALUES:
        raise ValueError(f"its shape is {shape}; an image has at most {_MOST_VALUES:,} values")
    array = _array(data)
    if hasattr(data, "detach") and array.ndim == 3 and array.shape[2] > 4:
        array = array.transpose(1, 2, 0)
    array = array[..., None] if array.ndim == 2 else array
    if array.ndim != 3 or array.shape[2] > 4 or not array.size:
        wanted = "(height, width) or (height, width, 1 to 4)"
        raise ValueError(f"its shape is {array.shape}; that of an image is {wanted}")
    kind, low, high = array.dtype.kind, array.min(), array.max()
    if kind not in "biuf" or not np.isfinite([low, high]).all():
        raise ValueError(f"its values are {array.dtype}, from {low} to {high}, not finite numbers")
    if kind == "b" or (kind == "f" and low >= 0 and high <= 1):
        array = array * 255.0
    elif kind == "f" and low < 0:
        array = (array - low) * (255.0 / ((high - low) or 1.0))
    elif low < 0 or high > 255:
        raise ValueError(f"it has values from {low} to {high}; they must be 0 to 255")
    height, width, channels = array.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # Each begins with its filter: none.
    whole = np.rint(array) if array.dtype.kind == "f" else array
    rows[:, 1:] = whole.reshape(height, -1)
    colour = (0, 4, 2, 6)[channels - 1]
    return _PNG + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)),
            (b"IDAT", zlib.compress(rows.tobytes(), 1)),
            (b"IEND", b""),
        )
    )


def _bins(counts: Sequence[Any], edges: Sequence[Any]) -> bytes:
    """Return a histogram; neighbours become one bin if there are more than 64."""
    numbers, limits = [float(count) for count in counts], [float(edge) for edge in edges]
    if not numbers or len(limits) != len(numbers) + 1:
        raise ValueError(f"it has {len(numbers)} counts and {len(limits)} edges, not one more")
    each = -(-len(numbers) // _BINS)
    sums = [sum(numbers[first : first + each]) for first in range(0, len(numbers), each)]
    return _json({"counts": sums, "edges": [*limits[:-1:each], limits[-1]]})


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, bool) or (type(value) is int and abs(value) < 2**53):
        return value
    try:
        number = float("x" if isinstance(value, str) else value)
    except Exception:  # noqa: BLE001 - of any class
        return f"({value.type})" if isinstance(value, Media) else str(value)[:_LONGEST]
    return number if math.isfinite(number) else str(number)


def _json(value: Any) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
