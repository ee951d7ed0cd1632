"""Modules loaded by imports and commands: they determine the start-up time.

Two processes do it step by step; what a step loaded is known after each.
"""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import lehr_trainer.configs as parts
from lehr.faces.cli.main import MODULES
from lehr_testing.paths import ROOT

SERVERS = {"torch", "ray", "pandas", "sqlmodel", "fastapi", "numpy", "pyarrow", "optuna"}
CLIENTS = {"httpx", "pydantic", "rich", "yaml", "lehr_api", "lehr.specs", "sqlalchemy"}
OPTIONAL = {"bitsandbytes", "torchao", "liger_kernel", "cut_cross_entropy", "transformer_engine"}
TECHNIQUES = (
    "losses.variants", "optim.adamw", "optim.muon", "models.fp8", "models.attention",
    "diagnostics.diagnostics_logger", "diagnostics.profiling", "runtime.compiling", "update_step", "export",
)  # fmt: skip
TALKING = [
    ["ls"],
    ["show", "x"],
    ["watch", "x"],
    ["compare", "x", "y"],
    ["cancel", "x"],
    ["plan", "-"],
    ["presets"],
]
SCRIPT = """
import importlib, io, json, sys
from contextlib import redirect_stderr, redirect_stdout
loaded = {}
for step in json.loads(sys.argv[1]):
    if isinstance(step, str):
        importlib.import_module(step)
    else:
        from lehr.faces.cli import main
        sys.argv = ["lehr", *step]
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                main.run()
        except SystemExit:
            pass
    loaded[json.dumps(step)] = sorted(sys.modules)
print(json.dumps(loaded))
"""


def loaded_after(steps: list[str | list[str]], home: Path) -> dict[str, set[str]]:
    """Modules that one fresh process has loaded after each step: an import, or a command."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(steps)],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=240,
        env={**os.environ, "LEHR_HOME": str(home), "LEHR_SERVER": "http://127.0.0.1:9"},
        stdin=subprocess.DEVNULL,
    )
    return {step: set(names) for step, names in json.loads(done.stdout).items()}


def too_much(loaded: dict[str, set[str]], step: str | list[str], forbidden: set[str]) -> list[str]:
    return sorted(loaded[json.dumps(step)] & forbidden)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Steps are ordered from fewest to most modules; loaded modules stay loaded."""
    helps = [[name, "--help"] for name in MODULES]
    steps = ["lehr.base.home", ["--help"], *helps, *TALKING, "lehr", "lehr.faces.client"]
    return loaded_after(steps, tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    names = [f"lehr_trainer.configs.{m.name}" for m in pkgutil.iter_modules(parts.__path__)]
    assert len(names) > 5
    light = ["contract.records", "contract.layout", "runtime.launch"]
    light += ["planning.memory"]
    steps = [*names, *(f"lehr_trainer.{name}" for name in light), "lehr.specs.sweep"]
    return loaded_after(
        [*steps, *(f"lehr_trainer.{name}" for name in TECHNIQUES)], tmp_path_factory.mktemp("home")
    )


def test_the_home_and_the_overall_help_load_neither_client_nor_server(
    client: dict[str, set[str]],
) -> None:
    assert too_much(client, "lehr.base.home", SERVERS | CLIENTS) == []
    assert "typer" in client['["--help"]']
    assert too_much(client, ["--help"], SERVERS | CLIENTS) == []


@pytest.mark.parametrize("name", MODULES)
def test_a_command_s_help_loads_no_client(client: dict[str, set[str]], name: str) -> None:
    assert too_much(client, [name, "--help"], SERVERS | {"httpx", "lehr_api"}) == []


@pytest.mark.parametrize("arguments", TALKING, ids=" ".join)
def test_client_commands_and_plan_load_no_trainer_and_no_database(
    client: dict[str, set[str]], arguments: list[str]
) -> None:
    assert "pydantic" in client[json.dumps(arguments)], "the command ran"
    assert too_much(client, arguments, SERVERS | {"lehr_api"}) == []


def test_the_client_loads_no_server(client: dict[str, set[str]]) -> None:
    assert {"lehr.faces.client", "httpx"} <= client['"lehr.faces.client"']
    assert too_much(client, "lehr.faces.client", SERVERS | {"lehr_api"}) == []


def test_a_config_validates_without_torch(trainer: dict[str, set[str]]) -> None:
    assert "lehr_trainer.configs.train" in trainer['"lehr.specs.sweep"']
    assert too_much(trainer, "lehr.specs.sweep", {"torch", *OPTIONAL}) == []


@pytest.mark.parametrize("name", TECHNIQUES)
def test_no_technique_loads_an_optional_package_before_it_is_chosen(
    trainer: dict[str, set[str]], name: str
) -> None:
    assert too_much(trainer, f"lehr_trainer.{name}", OPTIONAL) == []


def test_the_folder_platform_does_not_shadow_the_standard_library() -> None:
    code = "import platform; print(platform.__file__, platform.python_version())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert str(ROOT / "platform") not in done.stdout
    assert not (ROOT / "platform" / "__init__.py").exists()


def test_every_package_is_marked_as_typed() -> None:
    for marker in ("platform/lehr", "trainer/lehr_trainer", "api/lehr_api"):
        assert (ROOT / marker / "py.typed").is_file()
