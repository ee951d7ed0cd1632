"""Which files of a project belong to a capsule."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from lehr.code import collect
from lehr.code.collect import project_sources, refuse_unfit_trainer, trainer_sources
from lehr.errors import SpecError
from lehr.specs.program import Code


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in ("train.py", "src/model.py", "src/data/big.bin", "notes.md", "out/log.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (folder / ".git").mkdir()
    (folder / ".git/config").write_text("x")
    return folder


def names(folder: Path, **code) -> list[str]:
    found = project_sources(Code(**code), folder).sources
    return [source.name.removeprefix("project/") for source in found]


def refused(folder: Path, **code) -> str:
    with pytest.raises(SpecError) as caught:
        project_sources(Code(**code), folder)
    return str(caught.value)


def test_nothing_is_collected_without_include(project):
    assert names(project) == []


def test_include_and_exclude_are_patterns_of_gitignore(project):
    assert names(project, include=["**/*.py"]) == ["src/model.py", "train.py"]
    assert names(project, include=["src/"], exclude=["data/"]) == ["src/model.py"]
    everything = names(project, include=["."])
    assert "out/log.txt" in everything
    assert not [name for name in everything if name.startswith(".git/")]


@pytest.mark.parametrize("mark", ["lehr.db", ".lehr-folder", "LEHR_HOME"])
def test_home_and_runs_of_lehr_are_no_part_of_a_project(project, mark, monkeypatch):
    home = project / "experiments"
    (home / "runs").mkdir(parents=True)
    (home / "runs/train.py").write_text("another run's")
    if mark == "LEHR_HOME":
        monkeypatch.setenv("LEHR_HOME", str(home))
    else:
        (home / mark).touch()
    assert not [name for name in names(project, include=["."]) if "experiments" in name]
    assert names(project, include=["**/train.py"]) == ["train.py"]
    assert "a folder of Lehr itself" in refused(home, include=["runs/"])


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A folder with a script that imports some of its neighbours."""
    folder = tmp_path / "alone"
    texts = {
        "train.py": "import os, model\nfrom pkg import part\nimport torch_like_that_is_not_there",
        "model.py": "def build():\n    from pkg.deep import late\n",
        "pkg/__init__.py": "",
        "pkg/part.py": "from . import beside",
        "pkg/beside.py": "",
        "pkg/deep/late.py": "",
        "pkg/unused.py": "",
        "other.py": "",
        "table.csv": "a,b",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


IMPORTED = ["model.py", "pkg/__init__.py", "pkg/beside.py", "pkg/deep/late.py", "pkg/part.py"]


def taken(folder: Path, script: str = "train.py", **code) -> tuple[list[str], str | None]:
    found = project_sources(Code(**code), folder, script)
    return [source.name.removeprefix("project/") for source in found.sources], found.taken


def test_script_alone_takes_what_it_imports_from_its_folder(alone):
    words = "the script and the modules that it imports from its folder"
    assert taken(alone) == ([*IMPORTED, "train.py"], words)
    assert taken(alone, exclude=["beside.py"])[0] == [*IMPORTED[:2], *IMPORTED[3:], "train.py"]
    assert taken(alone, include=["other.py"]) == (["other.py"], None)
    (alone / "train.py").write_text("this is not Python")
    assert taken(alone)[0] == ["train.py"]


def test_files_that_gitignore_names_are_left_out(project):
    (project / ".gitignore").write_text("out/\n*.bin\n")
    (project / "src/.gitignore").write_text("!big.bin\n")
    found = names(project, include=["."], exclude=[".gitignore"])
    assert found == ["notes.md", "src/data/big.bin", "src/model.py", "train.py"]


def test_links_that_lead_out_are_left_out_and_named(project):
    (project / "root").symlink_to("/")
    (project / "passwd").symlink_to("/etc/passwd")
    (project / "nothing").symlink_to("gone")
    (project / "inside.py").symlink_to("train.py")
    found = project_sources(Code(include=["."]), project)
    assert "project/inside.py" in {source.name for source in found.sources}
    assert [text.partition(":")[0] for text in found.left_out] == ["nothing", "passwd", "root"]


def test_too_large_project_is_refused_with_its_largest_files(project):
    with (project / "src/data/big.bin").open("wb") as file:
        file.truncate(10_000_000_000)
    text = refused(project, include=["."])
    assert "10,000 MB" in text
    assert "src/data/big.bin (10,000.0 MB)" in text
    assert "code.exclude" in text


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        (".env", "X=1", "environment variables"),
        ("deploy.pem", "x", "private key"),
        ("id_rsa", "x", "private key"),
        ("a.py", "key = '''-----BEGIN RSA PRIVATE KEY-----", "private key in line 1"),
        ("b.py", "\n\ntoken = 'hf_" + "a" * 34 + "'", "Hugging Face in line 3"),
        ("c.sh", "export WANDB_API_KEY=" + "0123456789" * 4, "W&B in line 1"),
    ],
)
def test_secret_is_named_before_anything_is_sent(project, name, content, what):
    (project / name).write_text(content)
    text = refused(project, include=["."])
    assert f"{name} (" in text
    assert what in text
    assert content.split("=")[-1][-20:] not in text or name in {".env", "deploy.pem", "id_rsa"}
    assert name not in names(project, include=["."], exclude=[name])
    assert name in names(project, include=["."], send_secrets=[name])


COLLECT = """
import os, sys
from pathlib import Path
from lehr.code.collect import project_sources
from lehr.errors import SpecError
from lehr.specs.program import Code
project, closed = Path(sys.argv[1]), Path(sys.argv[2])
project_sources(Code(include=["."]), project)  # Imports all that it needs.
closed.chmod(0)
if os.getuid() == 0:  # Root reads every file.
    for path in (project, *project.rglob("*")):
        os.chown(path, 65534, 65534)
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    project_sources(Code(include=["."]), project)
except SpecError as error:
    print(error)
closed.chmod(0o700)
"""


@pytest.mark.parametrize("name", ["train.py", "src/data", ".gitignore"])
def test_unreadable_file_or_folder_is_named(project, name):
    (project / ".gitignore").write_text("*.pyc\n")
    # Folders of pytest are closed to other accounts.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        copy = shutil.copytree(project, Path(folder) / "project")
        done = subprocess.run(
            [sys.executable, "-c", COLLECT, copy, copy / name],
            capture_output=True,
            text=True,
            check=True,
        )
    assert f"{name} cannot be read: Permission denied" in done.stdout.replace("/ cannot", " cannot")


def test_pattern_that_matches_nothing_names_the_nearest(project):
    text = refused(project, include=["trian.py"])
    assert "no file of" in text
    assert "Did you mean train.py?" in text
    assert "there is no folder" in refused(project, root="nowhere", include=["."])


def test_endless_tree_is_refused(project, monkeypatch):
    monkeypatch.setattr(collect, "_MOST_LOOKED_AT", 3)
    assert "more than 3 files" in refused(project, include=["."])


def test_trainer_is_collected_without_bytecode():
    found = {source.name for source in trainer_sources()}
    assert "trainer/lehr_trainer/train.py" in found
    assert "trainer/lehr_trainer/configs/schedule.py" in found
    assert not [name for name in found if name.endswith(".pyc") or "__pycache__" in name]


def test_files_of_an_environment_are_sent_whatever_the_patterns_say(project):
    (project / ".gitignore").write_text("env/\n")
    (project / "env").mkdir()
    (project / "env/requirements.txt").write_text("numpy==2.0\n")
    (project / "env/notes.txt").write_text("x")
    assert names(project, environment="env/requirements.txt") == ["env/requirements.txt"]
    (project / "pyproject.toml").write_text("")
    assert "the code has no file uv.lock" in refused(project, environment="uv.lock")
    (project / "uv.lock").write_text("")
    assert names(project, environment="uv.lock") == ["pyproject.toml", "uv.lock"]


@pytest.fixture
def checkout(tmp_path, monkeypatch) -> Path:
    """A trainer that somebody works on."""
    package = tmp_path / "mine/lehr_trainer"
    package.mkdir(parents=True)
    (package / "train.py").write_text("x = 1")
    monkeypatch.setattr(collect, "PACKAGES", ("lehr_trainer",))
    spec = SimpleNamespace(origin=None, submodule_search_locations=[str(package)])
    spec.origin = str(package / "__init__.py")
    monkeypatch.setattr(collect.importlib.util, "find_spec", lambda _: spec)
    return package


def test_secrets_in_the_trainer_are_named_before_anything_is_sent(checkout):
    refuse_unfit_trainer(trainer_sources(), Code())
    (checkout / ".env").write_text("A=1")
    with pytest.raises(SpecError) as caught:
        refuse_unfit_trainer(trainer_sources(), Code())
    message = str(caught.value)
    assert "lehr_trainer/.env (a file of environment variables)" in message
    assert f"{checkout.parent}, look like secrets" in message
    assert "Nothing was sent" in message
    refuse_unfit_trainer(trainer_sources(), Code(send_secrets=[".env"]))


def test_trainer_that_was_installed_as_links_is_collected(checkout, tmp_path):
    (tmp_path / "cache.py").write_text("x")
    (checkout / "linked.py").symlink_to(tmp_path / "cache.py")
    assert len(trainer_sources()) == 2
    refuse_unfit_trainer(trainer_sources(), Code())


@pytest.mark.parametrize("root", ["a\0b", "x" * 300, "loop"])
def test_root_that_cannot_be_a_folder_is_refused(project, root):
    (project / "loop").symlink_to("loop")
    assert "code.root" in refused(project, root=root, include=["."])


@pytest.mark.parametrize("line", ["-r other.txt", "-e .", "./libs/mine", "-c limits.txt"])
def test_environment_that_names_other_files_is_refused(project, line):
    (project / "requirements.txt").write_text(f"numpy\n{line}\n")
    text = refused(project, environment="requirements.txt")
    assert f"requirements.txt names another file or folder: {line!r}" in text


def test_trainer_that_is_too_large_names_its_largest_files(checkout):
    with (checkout / "model.bin").open("wb") as file:
        file.truncate(150_000_000)
    with pytest.raises(SpecError) as caught:
        refuse_unfit_trainer(trainer_sources(), Code())
    assert "lehr_trainer/model.bin (150.0 MB)" in str(caught.value)
    assert f"{checkout.parent}, has 2 files" in str(caught.value)
    refuse_unfit_trainer(trainer_sources(), Code(limit_mb=200))
