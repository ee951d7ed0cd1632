"""Tests on a GPU run what the machine has, and skip the rest, by the same facts as the trainer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lehr_testing.gpu_needs import need

FA2, FA3, FA4 = "flash_attn/__init__", "flash_attn_interface", "flash_attn/cute/interface"


def skips(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, *, major: int, files: tuple[str, ...]
) -> bool:
    """Return whether ``name`` is skipped on such a GPU, beside packages with these files."""
    for module in [one for one in sys.modules if one.startswith("flash_attn")]:
        monkeypatch.delitem(sys.modules, module)
    for file in files:
        path = folder / f"{file}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (major, 0))
    try:
        need(name)
    except pytest.skip.Exception:
        return True
    finally:
        for module in [one for one in sys.modules if one.startswith("flash_attn")]:
            del sys.modules[module]
    return False


@pytest.mark.parametrize(
    ("name", "major", "files", "skipped"),
    [
        ("fa4", 9, (FA2,), True),
        ("fa4", 9, (FA2, FA4), False),
        ("fa4", 10, (FA4,), False),
        ("fa4", 12, (FA4,), True),
        ("fa4", 9, (), True),
        ("fa3", 9, (FA3,), False),
        ("fa3", 10, (FA3,), True),
        ("fa3", 9, (FA2,), True),
        ("flash", 9, (), False),
    ],
)
def test_flash_attention_is_tested_where_its_package_and_generation_are(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    name: str,
    major: int,
    files: tuple[str, ...],
    skipped: bool,
) -> None:
    assert skips(monkeypatch, tmp_path, name, major=major, files=files) is skipped
