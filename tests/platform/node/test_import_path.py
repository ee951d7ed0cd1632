"""Where a training imports from: its capsule and the node's packages, whatever variables say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lehr.errors import SpecError
from lehr.node import agent
from lehr.specs import load_spec

LOOK = "import os, site, sys; print(site.ENABLE_USER_SITE, os.environ.get('CHANGED'), sys.path)"
NAMES = [
    "PYTHONHOME",
    "PYTHONUSERBASE",
    "PYTHONNOUSERSITE",
    "PYTHONPLATLIBDIR",
    "PYTHONPYCACHEPREFIX",
    "PYTHONEXECUTABLE",
    "PYTHONPATH",
]


@pytest.fixture
def user_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages of the user, with a module that Python imports at its start."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folder = tmp_path / "lib" / version / "site-packages"
    folder.mkdir(parents=True)
    (folder / "usercustomize.py").write_text("import os; os.environ['CHANGED'] = 'yes'")
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path))
    return folder


def look() -> str:
    """Return what Python says of itself with the agent's environment, outside of any venv."""
    python = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}")
    done = subprocess.run(
        [python, "-P", "-c", LOOK],
        env=agent.clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return done.stdout


def test_packages_in_the_home_of_the_user_do_not_train(user_site):
    found = look()
    assert found.startswith("False None ")
    assert str(user_site) not in found


def test_node_whose_lehr_is_installed_there_trains_with_it(user_site, monkeypatch):
    (user_site / "lehr").mkdir()
    monkeypatch.setattr(agent.site, "getusersitepackages", lambda: str(user_site))
    monkeypatch.setattr(agent, "__file__", str(user_site / "lehr/node/agent.py"))
    assert look().startswith("True yes ")


@pytest.mark.parametrize("name", NAMES)
def test_spec_that_sets_where_python_imports_from_is_refused(name):
    spec = {"name": "a", "trainer": {"module": "m", "steps": 1}, "env": {name: "/somewhere"}}
    with pytest.raises(SpecError, match=f"env: {name} "):
        load_spec(spec)
    load_spec({**spec, "env": {"PYTHONHASHSEED": "0", "PYTHONFAULTHANDLER": "1"}})
