"""Manifests and the container file: schemas that installed packages carry, and what no schema says.

Ray carries the schema of its cluster launcher. KubeRay's own is no Python package: its manifests are read by
the code with which Ray's autoscaler reads them (`make prove`), and the rules of ours are checked here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deploy.cluster.plan import KINDS, part_of, plan
from deploy.cluster.spec import ClusterSpec, read_spec

ROOT = Path(__file__).parent.parent
K8S = ROOT / "deploy" / "k8s"
FILES = sorted(K8S.glob("*.yaml"))
GROUPS = {"target": "target-gpu", "draft": "draft-gpu", "coordinator": "coordinator-cpu"}


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def document(kind: str) -> dict[str, Any]:
    (found,) = [each for path in FILES for each in documents(path) if each["kind"] == kind]
    return dict(found)


def pods(node: Any) -> Iterator[dict[str, Any]]:
    """Every pod's spec in a document."""
    if isinstance(node, dict):
        if "containers" in node:
            yield node
        for each in node.values():
            yield from pods(each)
    elif isinstance(node, list):
        for each in node:
            yield from pods(each)


def groups() -> dict[str, dict[str, Any]]:
    return {each["groupName"]: each for each in document("RayCluster")["spec"]["workerGroupSpecs"]}


def description(tmp_path: Path) -> ClusterSpec:
    """What `dlite deploy up` reads in the cluster."""
    file = tmp_path / "cluster.yaml"
    file.write_text(document("ConfigMap")["data"]["cluster.yaml"])
    return read_spec(file)


def test_the_launchers_file_fits_rays_schema() -> None:
    spec = find_spec("ray")
    assert spec is not None
    assert spec.origin is not None
    schema = json.loads((Path(spec.origin).parent / "autoscaler" / "ray-schema.json").read_text())
    launcher = yaml.safe_load((ROOT / "deploy" / "ray" / "cluster.yaml").read_text())
    jsonschema.validate(launcher, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**launcher, "workers": 3}, schema)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_requests_are_limits(path: Path) -> None:
    containers = [c for found in documents(path) for pod in pods(found) for c in pod["containers"]]
    assert containers
    for each in containers:
        assert each["resources"]["requests"] == each["resources"]["limits"], each["name"]
        assert {"cpu", "memory"} <= each["resources"]["limits"].keys()
        assert not each["image"].endswith(":latest")
        assert ":" in each["image"]


def test_every_worker_asks_its_services() -> None:
    for name, group in groups().items():
        (container,) = group["template"]["spec"]["containers"]
        for probe, question in (("livenessProbe", "live"), ("readinessProbe", "ready")):
            script = container[probe]["exec"]["command"][-1]
            assert f"dlite probe {question}" in script, name
            assert "local_raylet_healthz" in script, "a probe of ours takes the place of KubeRay's"
            # The probe itself waits, and starts an interpreter.
            assert container[probe]["timeoutSeconds"] >= 15


def test_what_the_file_describes_fits_its_groups(tmp_path: Path) -> None:
    """Each kind on nodes of its own group, at most, and no more than there are."""
    found = description(tmp_path)
    for kind in KINDS:
        part = part_of(found, kind)
        assert part is not None
        group = groups()[GROUPS[kind]]
        (container,) = group["template"]["spec"]["containers"]
        limits = container["resources"]["limits"]
        custom = json.loads(json.loads(group["rayStartParams"]["resources"]))
        assert custom.keys() == part.resources.keys()
        for_a_node = int(custom[kind] / part.resources[kind])
        assert for_a_node * group["replicas"] >= part.replicas
        assert part.cpus * for_a_node < float(limits["cpu"]), "Ray itself needs some"
        assert part.gpus * for_a_node <= float(limits.get("nvidia.com/gpu", 0))
        assert part.memory_bytes * for_a_node < int(limits["memory"].removesuffix("Gi")) << 30
        assert not part.same_port or for_a_node == 1
        assert {"containerPort": part.port} in [
            {"containerPort": port["containerPort"]} for port in container["ports"]
        ]
    assert plan(found).totals()["GPU"] == 3


def test_clients_find_the_coordinators(tmp_path: Path) -> None:
    service = document("Service")["spec"]
    assert service["selector"]["ray.io/group"] == GROUPS["coordinator"]
    assert service["selector"]["ray.io/cluster"] == document("RayCluster")["metadata"]["name"]
    assert description(tmp_path).coordinator.port in [each["port"] for each in service["ports"]]


def test_everything_is_of_one_release() -> None:
    pinned = re.search(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pinned is not None
    assert document("RayCluster")["spec"]["rayVersion"] == pinned[1]
    project = re.search(r'^version = "(\S+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert project is not None
    images = {
        c["image"] for path in FILES for d in documents(path) for pod in pods(d) for c in pod["containers"]
    }
    assert images == {f"registry.example/dlite:{project[1]}"}


def test_ray_asks_for_a_token_and_nobody_starts_workers_as_background_work() -> None:
    assert document("RayCluster")["spec"]["authOptions"] == {"mode": "token"}
    launcher = yaml.safe_load((ROOT / "deploy" / "ray" / "cluster.yaml").read_text())
    starts = [launcher["head_start_ray_commands"][-1], launcher["worker_start_ray_commands"][-1]]
    for setting in ("RAY_AUTH_MODE=token", "RAY_worker_niceness=0"):
        assert all(setting in start for start in starts)
    container_file = (ROOT / "deploy" / "Dockerfile").read_text()
    assert "RAY_worker_niceness=0" in container_file
    assert "USER ray" in container_file


def test_the_job_brings_up_what_the_cluster_describes() -> None:
    job = document("RayJob")["spec"]
    assert job["clusterSelector"] == {"ray.io/cluster": document("RayCluster")["metadata"]["name"]}
    mounts = document("RayCluster")["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0][
        "volumeMounts"
    ]
    assert f"deploy up {mounts[0]['mountPath']}/cluster.yaml" in job["entrypoint"]
    assert "dlite loadtest" in job["entrypoint"]


@pytest.mark.prove
@pytest.mark.filterwarnings("ignore")
def test_rays_autoscaler_reads_the_cluster_as_it_is_meant() -> None:
    from ray.autoscaler._private.kuberay import autoscaling_config
    from ray.autoscaler._private.util import validate_config

    resource = document("RayCluster")
    resource["metadata"]["namespace"] = "default"
    for group in resource["spec"]["workerGroupSpecs"]:
        group.setdefault("numOfHosts", 1)
    config = autoscaling_config._derive_autoscaling_config_from_ray_cr(resource)
    validate_config(config)
    nodes = config["available_node_types"]
    assert nodes["headgroup"]["resources"]["CPU"] == 0
    assert nodes["target-gpu"]["resources"].items() >= {"CPU": 8, "GPU": 1, "target": 1}.items()
    assert nodes["draft-gpu"]["resources"].items() >= {"CPU": 4, "GPU": 1, "draft": 2}.items()
    assert "GPU" not in nodes["coordinator-cpu"]["resources"]
    assert (nodes["target-gpu"]["min_workers"], nodes["target-gpu"]["max_workers"]) == (2, 4)
