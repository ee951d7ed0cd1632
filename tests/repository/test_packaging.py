"""The three source roots resolve to our packages and shadow nothing."""

import subprocess
import sys
from pathlib import Path

from lehr_testing.paths import ROOT


def run_python(code: str, *, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_import_platform_from_the_repository_root_is_the_standard_librarys():
    where = run_python("import platform; print(platform.__file__, platform.python_version())")
    assert str(ROOT) not in where
    assert not (ROOT / "platform" / "__init__.py").exists()


def test_importing_the_client_loads_neither_torch_nor_ray_nor_the_server():
    loaded = run_python(
        "import sys; from lehr import Client; import lehr.cli.main;"
        "print([m for m in ('torch', 'ray', 'fastapi', 'sqlmodel', 'pandas', 'plotly', 'numpy')"
        " if m in sys.modules])"
    )
    assert loaded == "[]"


def test_a_config_validates_without_torch():
    loaded = run_python(
        "import sys; import lehr_trainer.config, lehr_trainer.records, lehr_trainer.layout;"
        "import lehr.specs.sweep; print('torch' in sys.modules)"
    )
    assert loaded == "False"


def test_every_package_is_marked_as_typed():
    for marker in ("platform/lehr", "trainer/lehr_trainer", "api/lehr_api"):
        assert (ROOT / marker / "py.typed").is_file()
