"""The files under deploy/, checked with tools that run on any machine."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml

from lehr.store import Store
from lehr_api.__main__ import _parser, _refuse_bare_network
from lehr_testing.paths import ROOT

DEPLOY = ROOT / "deploy"


@pytest.mark.parametrize("path", sorted((DEPLOY / "ray").glob("*.yaml")), ids=lambda p: p.stem)
def test_rays_own_validator_accepts_the_cluster_file(path):
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


@pytest.mark.parametrize("path", sorted((DEPLOY / "ray").glob("*.yaml")), ids=lambda p: p.stem)
def test_head_starts_the_workers_of_the_cluster_file(path, monkeypatch):
    """Ray's own check: `ray up` starts the head alone, and its autoscaler starts the others."""
    commands_ = pytest.importorskip("ray.autoscaler._private.commands")
    util = pytest.importorskip("ray.autoscaler._private.util")
    warnings = []
    monkeypatch.setattr(
        commands_.cli_logger, "warning", lambda text, *_, **__: warnings.append(text)
    )
    config = util.prepare_config(yaml.safe_load(path.read_text()))
    commands_.warn_about_bad_start_command(config["head_start_ray_commands"], False)
    assert warnings == []
    kinds = config["available_node_types"].values()
    workers = len(config["provider"]["worker_ips"])
    assert sum(kind.get("min_workers", 0) for kind in kinds) == workers == config["max_workers"]


@pytest.mark.parametrize("path", sorted((DEPLOY / "ray").glob("*.yaml")), ids=lambda p: p.stem)
def test_pip_gets_the_folder_that_the_cluster_file_copies(path, tmp_path):
    """Ray quotes setup commands again, and pip expands no ~: so a shell runs them as Ray would."""
    runner = pytest.importorskip("ray.autoscaler._private.command_runner")
    config = yaml.safe_load(path.read_text())
    [line] = [line for line in config["setup_commands"] if " install " in line]
    pip = tmp_path / "lehr-venv" / "bin" / "pip"
    pip.parent.mkdir(parents=True)
    pip.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    pip.chmod(0o755)
    words = runner._with_interactive(line)
    done = subprocess.run(
        ["sh", "-c", " ".join(words)],
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    assert done.stdout.splitlines()[-1] == f"{tmp_path}/lehr[server,trainer,gpu]"
    assert "~/lehr" in config["file_mounts"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", ["lehr.service", "lehr-backup.service", "lehr-backup.timer"])
def test_systemd_accepts_the_unit(unit):
    done = subprocess.run(
        ["systemd-analyze", "verify", str(DEPLOY / "systemd" / unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "lehr" in line]
    # The path is the target machine's; everything else must be right.
    assert [line for line in complaints if "is not executable" not in line] == []


def unit_setting(unit, name):
    text = (DEPLOY / "systemd" / unit).read_text()
    [found] = re.findall(rf"^{name}=(.+)$", text, re.MULTILINE)
    return found


def test_backup_unit_backs_up_the_home_of_the_server_unit(tmp_path):
    """Run its command line, with this program and folders of the test in place of the system's."""
    words = shlex.split(unit_setting("lehr-backup.service", "ExecStart"))
    home = unit_setting("lehr.service", "Environment=LEHR_HOME")
    assert words[words.index("--home") + 1] == home
    assert unit_setting("lehr-backup.service", "ConditionPathExists") == f"{home}/lehr.db"
    target = f"/var/lib/{unit_setting('lehr-backup.service', 'StateDirectory')}"
    assert target in words
    assert unit_setting("lehr-backup.service", "User") == unit_setting("lehr.service", "User")
    with Store.open(tmp_path / "home"):
        pass
    places = {home: str(tmp_path / "home"), target: str(tmp_path / "backups")}
    words = [places.get(word, word) for word in words]
    (tmp_path / "backups").mkdir(mode=0o700)
    program = str(Path(sys.executable).parent / Path(words[0]).name)
    subprocess.run([program, *words[1:]], check=True, capture_output=True)
    [made] = (tmp_path / "backups").iterdir()
    assert (made / "backup.json").is_file()


def test_stopping_the_unit_leaves_trainings_alone():
    unit = (DEPLOY / "systemd" / "lehr.service").read_text()
    assert re.search(r"^KillMode=process$", unit, re.MULTILINE)
    # systemd's default would stop the server when the kernel ends one training for its memory.
    assert re.search(r"^OOMPolicy=continue$", unit, re.MULTILINE)


def test_volumes_of_compose_belong_to_the_user_of_the_image():
    """A new volume gets the owner of the image's folder; a missing folder would be root's."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        image = (DEPLOY.parent / service["build"]["dockerfile"]).read_text()
        made = re.findall(r"install -d -o lehr -g lehr (?:-m \d+ )?([^\\\n]+)", image)
        folders = {word for line in made for word in line.split()}
        for volume in service["volumes"]:
            assert volume.split(":")[1] in folders, f"{name}: {volume}"


def test_compose_reads_its_token_from_a_file_that_git_ignores():
    done = subprocess.run(["git", "check-ignore", "-q", "deploy/.env"], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_compose_publishes_only_on_loopback_and_its_files_exist():
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert (DEPLOY.parent / service["build"]["dockerfile"]).is_file()
        assert set(service.get("networks", [])) <= set(compose["networks"])
        named = [volume.split(":")[0] for volume in service.get("volumes", [])]
        assert set(named) <= set(compose["volumes"])


@pytest.mark.parametrize("path", sorted(DEPLOY.glob("*.Dockerfile")), ids=lambda p: p.stem)
def test_image_copies_existing_files_and_is_not_root(path):
    text = path.read_text()
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for source in line.split():
            assert (DEPLOY.parent / source).exists(), source
    assert re.search(r"^USER lehr$", text, re.MULTILINE)


def commands() -> dict[str, list[str]]:
    """Return the commands in the files under deploy/, with their place, as their program gets them."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    found = {}
    for path in sorted(DEPLOY.glob("*.Dockerfile")):
        text = path.read_text()
        for kind in ("ENTRYPOINT", "CMD"):
            match = re.search(rf"^{kind} (\[.+\])$", text, re.MULTILINE)
            if match:
                found[f"{path.name} {kind}"] = json.loads(match.group(1))
    for name, service in compose["services"].items():
        words = service["command"]
        if words[0] == "sh":
            script = words[-1].replace("$$", "$").replace("\\\n", " ")
            # The shell itself checks the syntax; the program is what it becomes.
            subprocess.run(["sh", "-n", "-c", script], check=True)
            words = shlex.split(script[script.index("exec ") + len("exec ") :])
        image = Path(service["build"]["dockerfile"]).name
        found[f"compose {name}"] = [*found.get(f"{image} ENTRYPOINT", []), *words]
    for path in sorted((DEPLOY / "ray").glob("*.yaml")):
        config = yaml.safe_load(path.read_text())
        for key in ("head_start_ray_commands", "worker_start_ray_commands"):
            for number, line in enumerate(config[key]):
                # Variables and shell commands come before the program.
                words = shlex.split(line)
                at = [n for n, word in enumerate(words) if Path(word).name == "ray"]
                if at:
                    found[f"{path.name} {key} {number}"] = words[at[0] :]
    for unit in ("lehr.service", "lehr-backup.service"):
        found[unit] = shlex.split(unit_setting(unit, "ExecStart"))
    return found


@pytest.mark.parametrize("where", commands())
def test_each_command_is_valid_for_its_program(where, monkeypatch):
    """The parser of each program reads the arguments: an unknown option makes it fail."""
    words = commands()[where]
    program = Path(words[0]).name
    if "lehr_api" in words:
        options = _parser().parse_args(words[words.index("lehr_api") + 1 :])
        assert options.home
        _refuse_bare_network(options)
    elif program == "ray":
        scripts = pytest.importorskip("ray.scripts.scripts")
        verb, *rest = words[1:]
        scripts.cli.commands[verb].make_context(verb, rest)
    else:
        assert program == "lehr", f"{where}: nobody checks {words}"
        from lehr.cli import main

        monkeypatch.setenv("LEHR_JOIN_TOKEN", "given in the environment")
        command = typer.main.get_command(main.root)
        words = words[1:]
        while hasattr(command, "get_command"):
            name, *words = words
            command = command.get_command(typer.Context(command), name)
        # The URL of the server is the command of a container.
        url = ["http://server:5347"] if where.endswith("ENTRYPOINT") else []
        command.make_context(name, [*words, *url])
