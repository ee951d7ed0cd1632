"""The files under deploy/: commands, metrics, limits and names that Lehr and Ray have."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from prometheus_client.parser import text_string_to_metric_families

from lehr.control.lifecycle import RunState
from lehr.control.liveness import Liveness
from lehr.store import Store
from lehr_api.__main__ import _parser, _refuse_bare_network
from lehr_api.settings import Settings
from lehr_testing.api import api_client
from lehr_testing.paths import ROOT

DEPLOY = ROOT / "deploy"
CLUSTERS = sorted((DEPLOY / "ray").glob("*.yaml"))
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
KUBERNETES = [
    document
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
]


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
def test_rays_own_validator_accepts_the_cluster_file(path: Path) -> None:
    util = pytest.importorskip("ray.autoscaler._private.util")
    config = yaml.safe_load(path.read_text())
    util.validate_config(util.prepare_config(config))
    starts = config["head_start_ray_commands"] + config["worker_start_ray_commands"]
    starts = [line for line in starts if " start " in line]
    assert starts
    assert all("RAY_AUTH_MODE=token" in line and "--num-gpus=8" in line for line in starts)
    # Without these, trainings get a low priority, and the agent ends when they fill the memory.
    for setting in ("RAY_worker_niceness=0", "RAY_memory_monitor_refresh_ms=0"):
        assert all(setting in line for line in starts)


def unit_setting(unit: str, name: str) -> str:
    text = (DEPLOY / "systemd" / unit).read_text()
    [value] = re.findall(rf"^{name}=(.+)$", text, re.MULTILINE)
    return value


def test_backup_unit_backs_up_the_home_of_the_server_unit(tmp_path: Path) -> None:
    """Run its command line, with this program and folders of the test in place of the system's."""
    words = shlex.split(unit_setting("lehr-backup.service", "ExecStart"))
    home = unit_setting("lehr.service", "Environment=LEHR_HOME")
    assert words[words.index("--home") + 1] == home
    assert unit_setting("lehr-backup.service", "User") == unit_setting("lehr.service", "User")
    target = f"/var/lib/{unit_setting('lehr-backup.service', 'StateDirectory')}"
    with Store.open(tmp_path / "home"):
        pass
    (tmp_path / "backups").mkdir(mode=0o700)
    places = {home: str(tmp_path / "home"), target: str(tmp_path / "backups")}
    program = str(Path(sys.executable).parent / Path(words[0]).name)
    words = [program, *(places.get(word, word) for word in words[1:])]
    subprocess.run(words, check=True, capture_output=True)
    [backup] = (tmp_path / "backups").iterdir()
    assert (backup / "backup.json").is_file()


def test_stopping_the_unit_leaves_trainings_alone() -> None:
    assert unit_setting("lehr.service", "KillMode") == "process"
    # systemd's default would stop the server when the kernel ends one training for its memory.
    assert unit_setting("lehr.service", "OOMPolicy") == "continue"


def test_compose_publishes_only_on_loopback_and_its_files_exist() -> None:
    for name, service in COMPOSE["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert (ROOT / service["build"]["dockerfile"]).is_file()
        volumes = {volume.split(":")[0] for volume in service.get("volumes", [])}
        assert volumes <= set(COMPOSE["volumes"])


def containers() -> Iterator[dict[str, Any]]:
    """Yield the containers of all pods of deploy/kubernetes/."""
    pending: list[Any] = list(KUBERNETES)
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            yield from node.get("containers", [])
        if isinstance(node, dict | list):
            pending += node.values() if isinstance(node, dict) else node


def test_pods_get_their_tokens_from_secrets_and_one_server_owns_the_home() -> None:
    for entry in (entry for container in containers() for entry in container["env"]):
        assert ("valueFrom" in entry) == ("TOKEN" in entry["name"]), entry["name"]
    [deployment] = [one for one in KUBERNETES if one["kind"] == "Deployment"]
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"]["type"] == "Recreate"
    # An upgrade finds the record where the last version kept it.
    servers = deployment["spec"]["template"]["spec"]["containers"]
    entries = [entry for container in servers for entry in container["env"]]
    [home] = [entry["value"] for entry in entries if entry["name"] == "LEHR_HOME"]
    assert home == "/var/lib/lehr/home"
    assert f"--home {home}\n" in (ROOT / "docs/upgrade.md").read_text()
    [ray] = [one for one in KUBERNETES if one["kind"] == "RayCluster"]
    pinned = f'"ray[default]=={ray["spec"]["rayVersion"]}"'
    assert pinned in (ROOT / "pyproject.toml").read_text()


def commands() -> dict[str, list[str]]:
    """Return the commands in the files under deploy/, with their place, as their program gets them."""
    lines: dict[str, list[str]] = {}
    for path in sorted(DEPLOY.glob("*.Dockerfile")):
        for kind, words in re.findall(
            r"^(ENTRYPOINT|CMD) (\[.+\])$", path.read_text(), re.MULTILINE
        ):
            lines[f"{path.name} {kind}"] = json.loads(words)
    for name, service in COMPOSE["services"].items():
        entry = lines.get(f"{Path(service['build']['dockerfile']).name} ENTRYPOINT", [])
        lines[f"compose {name}"] = [*entry, *program_of(service["command"])]
    for path in CLUSTERS:
        config = yaml.safe_load(path.read_text())
        for key in ("head_start_ray_commands", "worker_start_ray_commands"):
            for number, line in enumerate(config[key]):
                # Variables and shell commands come before the program.
                words = shlex.split(line)
                programs = [Path(word).name for word in words]
                if "ray" in programs:
                    lines[f"{path.name} {key} {number}"] = words[programs.index("ray") :]
    for number, container in enumerate(containers()):
        stop = container.get("lifecycle", {}).get("preStop", {}).get("exec", {})
        for words in filter(None, (container.get("command"), stop.get("command"))):
            lines[f"kubernetes {number} {Path(words[0]).name}"] = program_of(words)
    for unit in ("lehr.service", "lehr-backup.service"):
        lines[unit] = shlex.split(unit_setting(unit, "ExecStart"))
    return lines


def program_of(words: list[str]) -> list[str]:
    """Return the program that a shell becomes; the shell itself checks the syntax of its script."""
    if words[0] != "sh":
        return words
    script = words[-1].replace("$$", "$").replace("\\\n", " ")
    subprocess.run(["sh", "-n", "-c", script], check=True)
    return shlex.split(script[script.index("exec ") + len("exec ") :])


@pytest.mark.parametrize("place", commands())
def test_each_command_is_valid_for_its_program(place: str, monkeypatch) -> None:
    """The parser of each program reads the arguments: an unknown option makes it fail."""
    words = commands()[place]
    program = Path(words[0]).name
    if "lehr_api" in words:
        options = _parser().parse_args(words[words.index("lehr_api") + 1 :])
        assert options.home
        _refuse_bare_network(options)
    elif program == "ray":
        scripts = pytest.importorskip("ray.scripts.scripts")
        scripts.cli.commands[words[1]].make_context(words[1], words[2:])
    else:
        assert program == "lehr", f"{place}: nobody checks {words}"
        from lehr.faces.cli import main

        monkeypatch.setenv("LEHR_JOIN_TOKEN", "given in the environment")
        command = typer.main.get_command(main.root)
        words = words[1:]
        while hasattr(command, "get_command"):
            name, *words = words
            command = command.get_command(typer.Context(command), name)
        # The URL of the server is the command of a container.
        url = ["http://server:5347"] if place.endswith("ENTRYPOINT") else []
        command.make_context(name, [*words, *url])


def test_expressions_of_prometheus_and_grafana_select_what_the_server_has(tmp_path: Path) -> None:
    [group] = yaml.safe_load((DEPLOY / "prometheus/alerts.yml").read_text())["groups"]
    panels = json.loads((DEPLOY / "grafana/lehr.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel["targets"]]
    expressions += [rule["expr"] for rule in group["rules"]]
    with api_client(tmp_path / "home") as (_, client):
        families = list(text_string_to_metric_families(client.get("/metrics").text))
    names = {f"{one.name}{'_total' if one.type == 'counter' else ''}" for one in families}
    values = {"state": {*RunState}, "liveness": {*Liveness}, "job": {"lehr"}, "node": {"$node"}}
    values["folder"] = {"home", "runs"}
    for metric, labels in re.findall(r"\b([a-z_]+)\{(.*?)\}", "\n".join(expressions)):
        assert metric in names | {"up"}
        assert 'job="lehr"' in labels
        for label, choice in re.findall(r'(\w+)(?:=~|!~|!=|=)"(.*?)"', labels):
            assert set(choice.split("|")) <= values[label], (metric, label, choice)


def test_proxy_lets_all_bodies_through_that_the_server_takes(tmp_path: Path) -> None:
    text = (DEPLOY / "proxy/Caddyfile").read_text()
    sizes = {
        name: int(number) * {"MB": 10**6, "GiB": 2**30}[unit]
        for name, number, unit in re.findall(r"request_body (@\w+) {\s*max_size (\d+)(\w+)", text)
    }
    settings = Settings(home=tmp_path, token="t")
    assert sizes["@code"] >= settings.capsule_limit
    assert sizes["@other"] >= max(settings.body_limit, settings.chunk_limit)
