"""The files under deploy/kubernetes/, by KubeRay's own schema and rules, Ray's own code, and a shell.

``tests/faults/test_kubernetes.py`` runs what they say in machines of namespaces.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import typer

from lehr_api.__main__ import _parser, _refuse_bare_network
from lehr_api.auth import OPEN_PATHS
from lehr_testing.kubernetes import (
    RAY_CLUSTER,
    container,
    documents,
    environment,
    images,
    pods,
    ray_start,
    schema,
    shell_script,
)
from lehr_testing.paths import ROOT

jsonschema = pytest.importorskip("jsonschema")


def errors(value, where):
    validator = jsonschema.Draft202012Validator(where)
    return [f"{list(one.absolute_path)}: {one.message}" for one in validator.iter_errors(value)]


def test_ray_cluster_has_only_what_kuberays_schema_knows():
    assert errors(RAY_CLUSTER, schema()) == []


def test_pods_of_the_server_have_only_what_the_schema_of_a_pod_knows():
    pod = schema()["properties"]["spec"]["properties"]["headGroupSpec"]["properties"]["template"]
    [deployment] = documents("Deployment")
    assert errors(deployment["spec"]["template"], pod) == []


def test_schema_rejects_a_misspelt_field():
    """Kubernetes itself drops unknown fields of a custom resource without a word."""
    wrong = {**RAY_CLUSTER, "spec": {**RAY_CLUSTER["spec"], "rayversion": "2"}}
    assert errors(wrong, schema())
    pod = RAY_CLUSTER["spec"]["headGroupSpec"]["template"]["spec"]
    bad = {**pod, "containers": [{**pod["containers"][0], "readynessProbe": {}}]}
    head = {**RAY_CLUSTER["spec"]["headGroupSpec"], "template": {"spec": bad}}
    assert errors({**RAY_CLUSTER, "spec": {**RAY_CLUSTER["spec"], "headGroupSpec": head}}, schema())


def test_rays_own_code_reads_the_groups_of_the_ray_cluster():
    kuberay = pytest.importorskip("ray.autoscaler._private.kuberay.autoscaling_config")
    found = kuberay._derive_autoscaling_config_from_ray_cr(RAY_CLUSTER)
    head, workers = found["available_node_types"].values()
    assert (head["resources"]["CPU"], head["resources"]["GPU"]) == (0, 0)
    assert (workers["resources"]["CPU"], workers["resources"]["GPU"]) == (0, 8)
    [group] = RAY_CLUSTER["spec"]["workerGroupSpecs"]
    assert workers["min_workers"] == workers["max_workers"] == group["replicas"]
    [ray] = group["template"]["spec"]["containers"]
    assert ray["resources"]["limits"]["nvidia.com/gpu"] == workers["resources"]["GPU"]


def test_ray_cluster_keeps_the_rules_of_kuberays_webhook():
    """From its ValidateRayClusterSpec: these are refused or ignored, though the schema allows them."""
    spec = RAY_CLUSTER["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert "labels" not in group["rayStartParams"]
        assert not group.get("resources")
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_version_of_ray_is_the_one_that_is_installed():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    [ray] = [one for one in extras["server"] if one.startswith("ray[")]
    assert ray.endswith(f"=={RAY_CLUSTER['spec']['rayVersion']}")


@pytest.mark.parametrize("which", ["head", "worker", "raylet"])
def test_ray_accepts_the_options_of_each_raylet(which):
    scripts = pytest.importorskip("ray.scripts.scripts")
    words = ray_start(which)
    assert words[:2] == ["ray", "start"]
    scripts.cli.commands["start"].make_context("start", words[2:])


def test_server_and_drain_are_valid_commands():
    script = shell_script(container("server", "server"))
    words = script[script.index("exec ") + 5 :].split()
    options = _parser().parse_args(words[words.index("lehr_api") + 1 :])
    _refuse_bare_network(options)
    assert options.ray_address == f"{RAY_CLUSTER['metadata']['name']}-head-svc:6379"
    [service] = documents("Service")
    [port] = service["spec"]["ports"]
    assert options.public_url == f"http://{service['metadata']['name']}:{port['port']}"
    assert str(options.home) == environment(container("server", "server"))["LEHR_HOME"]

    from lehr.cli import main

    drain = container("worker", "ray")["lifecycle"]["preStop"]["exec"]["command"]
    command = typer.main.get_command(main.root)
    words = drain[1:]
    while hasattr(command, "get_command"):
        name, *words = words
        command = command.get_command(typer.Context(command), name)
    drained = command.make_context(name, words)
    # Trainings save, then their last bytes are sent; Kubernetes kills what takes longer.
    from lehr.joining.drain import DELIVER_S, NOTICE_S

    grace = pods()["worker"]["terminationGracePeriodSeconds"]
    assert grace > drained.params["timeout_s"] + DELIVER_S + NOTICE_S + 60


def test_drain_finds_the_attempts_of_the_agent():
    """``lehr node leave`` looks in the home; the agent writes where LEHR_NODE says."""
    found = environment(container("worker", "ray"))
    assert found["LEHR_NODE"] == f"{found['LEHR_HOME']}/node"
    mounts = [one["mountPath"] for one in container("worker", "ray")["volumeMounts"]]
    for variable in ("LEHR_HOME", "LEHR_RUNS", "LEHR_DATA"):
        assert found[variable] in mounts


def test_trainings_get_their_priority_and_ray_does_not_watch_their_memory():
    for which in ("head", "worker"):
        found = environment(container(which, "ray"))
        assert found["RAY_worker_niceness"] == "0"
        assert found["RAY_memory_monitor_refresh_ms"] == "0"


def test_every_raylet_and_the_server_have_rays_token_from_the_same_secret():
    found = set()
    for pod in pods().values():
        for one in pod["containers"]:
            by_name = {entry["name"]: entry for entry in one["env"]}
            assert by_name["RAY_AUTH_MODE"]["value"] == "token"
            secret = by_name["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]
            found.add((secret["name"], secret["key"]))
    assert len(found) == 1
    text = (ROOT / "deploy/kubernetes/raycluster.yaml").read_text()
    made = set(re.findall(r"secret generic (\S+) --from-literal=(\w+)=", text))
    server = container("server", "server")["env"]
    [first] = [one["valueFrom"]["secretKeyRef"] for one in server if one["name"] == "FIRST_TOKEN"]
    assert made == {*found, (first["name"], first["key"])}


def test_no_secret_is_in_a_file_or_a_command_line():
    for pod in pods().values():
        for one in pod["containers"]:
            for entry in one["env"]:
                if "TOKEN" in entry["name"]:
                    assert "value" not in entry
            words = " ".join([*one.get("command", []), *one.get("args", [])])
            assert not re.search(r"--token|TOKEN\b(?!\")", words.replace("unset FIRST_TOKEN", ""))


def test_probes_ask_for_paths_that_answer_without_a_token():
    server = container("server", "server")
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[kind]["httpGet"]["path"] in OPEN_PATHS
        assert server[kind]["httpGet"]["port"] == server["ports"][0]["containerPort"]
    routes = Path(pytest.importorskip("ray.dashboard.http_server_agent").__file__).read_text()
    for which in ("head", "worker"):
        for kind in ("readinessProbe", "livenessProbe"):
            assert f'"{container(which, "ray")[kind]["httpGet"]["path"]}"' in routes


def test_one_server_owns_the_home():
    [deployment] = documents("Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"]["type"] == "Recreate"
    [service] = documents("Service")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert deployment["spec"]["selector"]["matchLabels"] == labels


def test_pods_are_not_root_and_get_no_variables_of_the_service():
    """A Service named lehr gives every pod LEHR_PORT=tcp://..., unless links are off."""
    for name, pod in pods().items():
        assert pod["enableServiceLinks"] is False, name
        assert pod["shareProcessNamespace"] is True, name
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        user = re.search(r"--uid (\d+) lehr", (ROOT / "deploy/trainer.Dockerfile").read_text())
        assert pod["securityContext"]["runAsUser"] == int(user[1]), name


def test_all_containers_use_one_image_and_volumes_that_exist():
    assert len(images()) == 1
    claims = {one["metadata"]["name"] for one in documents("PersistentVolumeClaim")}
    for pod in pods().values():
        volumes = {one["name"]: one for one in pod.get("volumes", [])}
        for one in pod["containers"]:
            assert {mount["name"] for mount in one.get("volumeMounts", [])} <= set(volumes)
        for volume in volumes.values():
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in claims


def test_server_and_its_raylet_share_rays_sockets_and_memory():
    mounts = [
        {m["mountPath"]: m["name"] for m in container("server", name)["volumeMounts"]}
        for name in ("server", "raylet")
    ]
    for path in ("/tmp/ray", "/dev/shm"):
        assert mounts[0][path] == mounts[1][path]
