"""The reference pages are current, the API is compatible, links resolve, commands exist."""

from __future__ import annotations

import copy
import importlib
import itertools
import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer

from lehr.faces.cli import main
from lehr.specs import RolloutSpec, RunSpec, SweepSpec, load_spec
from lehr_testing.paths import ROOT
from lehr_trainer.configs.fields import leaf_paths, place
from lehr_trainer.experiments import command as experiments

DOCS = ROOT / "docs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "deploy" / "README.md",
    *sorted(DOCS.rglob("*.md")),
]


@pytest.fixture(scope="module")
def breaking():
    sys.path.insert(0, str(DOCS / "generate"))
    try:
        yield importlib.import_module("breaking")
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def kept():
    return json.loads((DOCS / "openapi.json").read_text())


def test_the_generated_pages_are_current():
    """A change that breaks clients is named here; one that does not only needs renewing."""
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate"), "--check"],
        check=False,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr


def test_one_page_has_the_install_commands_and_each_says_where_lehr_is():
    """An index may not have Lehr, or have a package of that name by others."""
    folders = ("README.md", "CONTRIBUTING.md", "docs", "sweeps", "platform", "trainer", "api")
    done = subprocess.run(
        ["git", "grep", "-E", r"(pip|uv tool) install [^`{]*(lehr|'\.\[)", "--", *folders],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    commands = [line for line in done.stdout.splitlines() if "docs/log.md" not in line]
    assert {line.partition(":")[0] for line in commands} == {"docs/getting-started.md"}
    wheel = f"lehr-{PROJECT['version']}-py3-none-any.whl"
    for line in commands:
        assert re.search(
            rf"'(/path/to/({wheel}|lehr)\[|lehr\[server\] @ https://HOST/{wheel}')", line
        )
    extras = set(
        re.findall(
            r"^\| (`[a-z0-9`, ]+`) \|", (DOCS / "getting-started.md").read_text(), re.MULTILINE
        )
    )
    named = set(re.findall(r"`(\w+)`", " ".join(extras)))
    assert named == PROJECT["optional-dependencies"].keys() - {"dev"}


def operations(document):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


def test_unchanged_api_is_compatible(breaking, kept):
    assert breaking.changes(kept, kept) == []


def test_removed_path_or_method_is_breaking(breaking, kept):
    fewer = {**kept, "paths": {path: {} for path in kept["paths"]}}
    gone = {f"{verb.upper()} {path}: the method is gone" for path, verb, _ in operations(kept)}
    assert set(breaking.changes(kept, fewer)) == gone
    gone = {f"{path}: the path is gone" for path in kept["paths"]}
    assert set(breaking.changes(kept, {**kept, "paths": {}})) == gone


def test_new_required_field_is_breaking_and_a_new_optional_one_is_not(breaking, kept):
    more = copy.deepcopy(kept)
    body = more["components"]["schemas"]["RunSubmission"]
    body["properties"]["owner"] = {"type": "string"}
    assert breaking.changes(kept, more) == []
    body["required"].append("owner")
    assert breaking.changes(kept, more) == ["POST /api/v1/runs: body.owner must be given now"]


def test_changed_type_of_a_field_is_breaking(breaking, kept):
    other = copy.deepcopy(kept)
    other["components"]["schemas"]["RunResultView"]["properties"]["name"] = {
        "anyOf": [{"type": "string"}, {"type": "null"}]
    }
    assert breaking.changes(kept, other) == [
        "GET /api/v1/compare: answer.results[].name may now be null"
    ]
    [limit] = [
        one for one in other["paths"]["/api/v1/runs"]["get"]["parameters"] if one["name"] == "limit"
    ]
    limit["schema"]["type"] = "string"
    assert any("limit no longer takes integer" in one for one in breaking.changes(kept, other))


def test_every_field_of_a_spec_is_in_the_reference():
    text = (DOCS / "specs.md").read_text()
    for root in (RunSpec, SweepSpec, RolloutSpec):
        for path in leaf_paths(root):
            name = path.rpartition(".")[2]
            assert f"| `{name}` |" in text, path


def test_every_command_is_in_the_reference():
    text = (DOCS / "cli.md").read_text()
    for name in main.MODULES:
        assert f"### lehr {name}\n" in text, name


def anchors(page: Path) -> set[str]:
    found = set()
    for title in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE):
        kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
        found.add(kept.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page.name}: {target}"


def test_every_page_is_listed():
    listed = (DOCS / "README.md").read_text()
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).as_posix()
        assert name == "README.md" or f"({name})" in listed, name


NOW = sorted({*DOCS.rglob("*.md")} - {DOCS / "log.md"})
"""Pages that describe the present."""


@pytest.fixture(scope="module")
def tests() -> dict[str, set[str]]:
    """Return the names of the tests by file."""
    return {
        str(path.relative_to(ROOT)): set(
            re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
        )
        for path in (ROOT / "tests").rglob("test_*.py")
    }


@pytest.mark.parametrize("page", NOW, ids=lambda page: page.name)
def test_named_tests_exist(page, tests):
    text = page.read_text()
    assert set(re.findall(r"`(test_\w+)`", text)) <= set.union(*tests.values())
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text):
        assert (ROOT / path).exists(), path
        assert not name or name in tests[path], f"{path}::{name}"


def test_each_promise_names_tests():
    rows = [line for line in (DOCS / "promises.md").read_text().splitlines() if "| " in line]
    rows = [row for row in rows if "promise |" not in row]
    assert len(rows) > 25
    for row in rows:
        named = re.findall(r"`tests/[\w/]+\.py::\w+`", row)
        # Nothing but tests, so that a misspelt one is not overlooked.
        assert named, row
        assert row.rpartition(" | ")[2].count("`") == 2 * len(named), row


def commands(text: str) -> list[list[str]]:
    """The ``lehr`` commands of a page's console blocks, without comments and what they print."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        lines = block.replace("\\\n", " ").splitlines()
        for line in lines:
            if not line.startswith("$ "):
                continue
            for part in re.split(r" {4,}\$ | && ", line.removeprefix("$ ")):
                words = shlex.split(part, comments=True)
                if words and words[0].endswith("lehr"):
                    found.append(words[1:])
    return found


def command(words: list[str]):
    """Return the command that the words call, and the remaining words."""
    app = importlib.import_module(f"lehr.faces.cli.{main.MODULES[words[0]]}").app
    found, rest = typer.main.get_group(app).commands[words[0]], words[1:]
    while getattr(found, "commands", None):
        assert rest, f"lehr {' '.join(words)}: which of {', '.join(found.commands)}?"
        assert rest[0] in found.commands, f"lehr {' '.join(words)}: there is no {rest[0]}"
        found, rest = found.commands[rest[0]], rest[1:]
    return found, rest


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_the_docs_and_their_options_exist(page):
    for words in commands(page.read_text()):
        if words[0].startswith("-") or words[0].isupper() or words[0].startswith("["):
            continue
        assert words[0] in main.MODULES, f"{page.name}: lehr {' '.join(words)}"
        found, rest = command(words)
        known = {name for one in found.params for name in [*one.opts, *one.secondary_opts]}
        if words[0] == "bench":
            known |= {*experiments._parser()._option_string_actions}
        # What follows -- is another command.
        for word in itertools.takewhile("--".__ne__, rest):
            if re.match(r"--?[a-z]", word):
                assert word.partition("=")[0] in known | {"--help"}, f"{page.name}: {words}"
            path = word.partition("=")[0]
            if "=" in word and path.startswith(("train.", "run.", "resources.")):
                root = SweepSpec if path.startswith("run.") else RunSpec
                assert place(root, path) is not None, f"{page.name}: {words}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_whole_specs_in_the_docs_are_valid(page):
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
        if re.search(r"^name: ", block, re.MULTILINE) and re.search(
            r"^(train|run):", block, re.MULTILINE
        ):
            load_spec(block)
