"""What deploy/kubernetes/ says: its objects, containers, environments and commands."""

from __future__ import annotations

import gzip
import json
import subprocess
from typing import Any

import yaml

from lehr_testing.paths import ROOT

FOLDER = ROOT / "deploy" / "kubernetes"
_SCHEMA = ROOT / "tests" / "data" / "raycluster_schema.json.gz"


def documents(kind: str) -> list[dict[str, Any]]:
    """Return the objects of a kind in all files."""
    found = []
    for path in sorted(FOLDER.glob("*.yaml")):
        found += [one for one in yaml.safe_load_all(path.read_text()) if one["kind"] == kind]
    return found


[RAY_CLUSTER] = documents("RayCluster")


def schema() -> dict[str, Any]:
    """Return KubeRay's schema of a RayCluster, which allows no field that it does not name."""
    return _closed(json.loads(gzip.decompress(_SCHEMA.read_bytes())))


def _closed(node: Any) -> Any:
    if isinstance(node, list):
        return [_closed(one) for one in node]
    if not isinstance(node, dict):
        return node
    if node.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    found = {key: _closed(value) for key, value in node.items()}
    is_object = isinstance(found.get("properties"), dict) and found.get("type") == "object"
    # The metadata of an object is Kubernetes' own, and not part of the schema.
    if is_object and not found.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


def pods() -> dict[str, dict[str, Any]]:
    """Return the pods: of the head, of a worker, of the server."""
    spec = RAY_CLUSTER["spec"]
    [group] = spec["workerGroupSpecs"]
    [deployment] = documents("Deployment")
    return {
        "head": spec["headGroupSpec"]["template"]["spec"],
        "worker": group["template"]["spec"],
        "server": deployment["spec"]["template"]["spec"],
    }


def container(pod: str, name: str) -> dict[str, Any]:
    [found] = [one for one in pods()[pod]["containers"] if one["name"] == name]
    return found


def images() -> set[str]:
    return {one["image"] for pod in pods().values() for one in pod["containers"]}


def environment(of: dict[str, Any], secrets: dict[str, str] | None = None) -> dict[str, str]:
    """Return a container's variables. ``secrets``: values by name of a secret; else left out."""
    found = {}
    for entry in of["env"]:
        if "value" in entry:
            found[entry["name"]] = entry["value"]
        elif secrets is not None:
            found[entry["name"]] = secrets[entry["valueFrom"]["secretKeyRef"]["name"]]
    return found


def shell_script(of: dict[str, Any]) -> str:
    """Return the script of a container that runs one, after the shell has checked its syntax."""
    shell, options, script = of["command"]
    assert (shell, options) == ("sh", "-ec")
    subprocess.run(["sh", "-n", "-c", script], check=True)
    return script.replace("\\\n", " ")


def ray_start(which: str) -> list[str]:
    """Return the command that starts a raylet: of the head, of a worker, or the server's own.

    KubeRay makes the first two from ``rayStartParams`` (convertParamMap): options in order, where
    "true" is an option without a value.
    """
    if which == "raylet":
        return list(container("server", "raylet")["command"])
    spec = RAY_CLUSTER["spec"]
    if which == "head":
        given, words = spec["headGroupSpec"]["rayStartParams"], ["ray", "start", "--head"]
        added = {"dashboard-host": "0.0.0.0"}
    else:
        given, words = spec["workerGroupSpecs"][0]["rayStartParams"], ["ray", "start"]
        added = {"address": f"{RAY_CLUSTER['metadata']['name']}-head-svc:6379"}
    both = {
        "metrics-export-port": "8080",
        "dashboard-agent-listen-port": "52365",
        **added,
        **given,
        "block": "true",
    }
    for option, value in sorted(both.items()):
        if value == "true":
            words.append(f"--{option}")
        elif value != "false":
            words.append(f"--{option}={value}")
    return words
