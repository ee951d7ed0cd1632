"""What a Dockerfile puts into an image, read without building it."""

from __future__ import annotations

import fnmatch
import json
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from lehr_testing.paths import ROOT

SECRET = re.compile(r"(?i)(token|secret|password|api_?key)\w*=\S")


@dataclass
class Stage:
    base: str
    copies: list[tuple[list[str], str]] = field(default_factory=list)
    """(sources in the context, target)."""
    runs: list[str] = field(default_factory=list)
    user: str = "root"


@dataclass(frozen=True)
class Image:
    path: Path
    stages: list[Stage]
    arguments: dict[str, str]
    lines: list[str]

    @property
    def last(self) -> Stage:
        return self.stages[-1]

    @property
    def system_packages(self) -> list[str]:
        """Packages of the system that the last stage installs, beside those of its base."""
        found = re.findall(r"apt-get install ([^&|;]+)", " ".join(self.last.runs))
        return sorted({w for line in found for w in line.split() if not w.startswith("-")})


def read(path: Path) -> Image:
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    arguments: dict[str, str] = {}
    stages: list[Stage] = []
    for line in lines:
        word, _, rest = line.partition(" ")
        if word == "ARG":
            name, _, value = rest.partition("=")
            arguments[name] = value
        elif word == "FROM":
            base = re.sub(r"\$\{(\w+)\}", lambda m: arguments[m[1]], rest.split()[0])
            stages.append(Stage(base))
        elif word in {"COPY", "ADD"} and not rest.startswith("--from="):
            *sources, target = rest.split()
            stages[-1].copies.append((sources, target))
        elif word == "RUN":
            stages[-1].runs.append(rest)
        elif word == "USER":
            stages[-1].user = rest
    return Image(path, stages, arguments, lines)


def findings(image: Image) -> list[str]:
    """Return what is wrong with an image, by its file alone."""
    name = image.path.name
    found = []
    if image.last.user == "root":
        found.append(f"{name}: its programs run as root")
    for stage in image.stages:
        tag = stage.base.partition(":")[2]
        if tag in {"", "latest"}:
            found.append(f"{name}: the base {stage.base} has no version")
        for run in stage.runs:
            if re.search(r"(curl|wget)\b.*\|\s*(ba)?sh", run):
                found.append(f"{name}: runs what it downloads: {run[:80]}")
            found += [
                f"{name}: installs without digests: {install.strip()}"
                for install in re.findall(r"pip install [^&|;]+", run)
                if "--require-hashes" not in install and "--no-index" not in install
            ]
    for line in image.lines:
        if line.startswith("ADD "):
            found.append(f"{name}: ADD may download or unpack; use COPY: {line}")
        if line.split()[0] in {"ENV", "ARG"} and SECRET.search(line):
            found.append(f"{name}: a secret would stay in the image: {line.split('=')[0]}")
    return found


def context() -> list[str]:
    """Return the files of git that `.dockerignore` lets through to the builder."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    rules = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    return [name for name in done.stdout.splitlines() if is_sent(name, rules)]


def is_sent(name: str, rules: list[str]) -> bool:
    """Return whether the last rule that fits the file, or a folder of it, lets it through."""
    sent = True
    parts = name.split("/")
    whole = ["/".join(parts[: n + 1]) for n in range(len(parts))]
    for rule in rules:
        pattern = rule.removeprefix("!")
        if any(_fits(one, pattern) for one in whole):
            sent = rule.startswith("!")
    return sent


def _fits(name: str, pattern: str) -> bool:
    """Compare part by part, as Docker does: ``*`` does not cross a slash, ``**`` is any folders."""
    if pattern.startswith("**/"):
        rest = pattern.removeprefix("**/")
        return fnmatch.fnmatchcase(name.rpartition("/")[2], rest)
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(
        fnmatch.fnmatchcase(*pair) for pair in zip(parts, wanted, strict=True)
    )


def copied(image: Image) -> list[str]:
    """Return the files of the context that the image's stages copy."""
    sources = [source for stage in image.stages for one, _ in stage.copies for source in one]
    return [
        name
        for name in context()
        if any(name == source or name.startswith(f"{source}/") for source in sources)
    ]


def command(image: Image, kind: str) -> list[str]:
    [line] = [line for line in image.lines if line.startswith(f"{kind} ")]
    return list(json.loads(line.removeprefix(f"{kind} ")))
