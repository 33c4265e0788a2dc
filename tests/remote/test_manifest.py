"""The Kubernetes manifest says what the code understands, and its parts agree with each other."""

import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from gigl_loader.options import CLUSTER_TOKEN_VARIABLE
from gigl_loader.remote.command import main, parse_args

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which the dev extra installs")

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "examples" / "graph_store" / "kubernetes.yaml"
BY_OPERATOR = {"MASTER_ADDR": "storage-master-0", "MASTER_PORT": "23456", "RANK": "1"}
"""What the training operator sets in each pod, besides WORLD_SIZE."""


@pytest.fixture(scope="module")
def parts() -> dict[tuple[str, str], dict[str, Any]]:
    """Documents of the manifest by kind and name."""
    documents = list(yaml.safe_load_all(MANIFEST.read_text()))
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def _replicas(job: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = job["spec"]["pytorchReplicaSpecs"]
    assert sorted(found) == ["Master", "Worker"]
    return found


def _pod(job: dict[str, Any]) -> dict[str, Any]:
    """Return the pod of a job, which is the same for master and workers."""
    pods = [one["template"]["spec"] for one in _replicas(job).values()]
    assert pods[0] == pods[1]
    found: dict[str, Any] = pods[0]
    assert [one["name"] for one in found["containers"]] == ["pytorch"]  # the operator looks for it
    return found


def _arguments(container: dict[str, Any], environment: dict[str, str]) -> list[str]:
    """Return the arguments as Kubernetes hands them on; every variable in them must be known."""
    own = {one["name"]: one["name"].lower() for one in container["env"]}
    return [
        re.sub(r"\$\((\w+)\)", lambda found: ({**environment, **own})[found.group(1)], argument)
        for argument in container["args"]
    ]


def _check_environment(container: dict[str, Any]) -> None:
    """Each variable is the token or stands in an argument: nothing else would be read."""
    names = {one["name"] for one in container["env"]}
    used = set(re.findall(r"\$\((\w+)\)", " ".join(container["args"])))
    assert CLUSTER_TOKEN_VARIABLE in names
    assert names - used == {CLUSTER_TOKEN_VARIABLE}


def _token(container: dict[str, Any]) -> dict[str, str]:
    (found,) = [one for one in container["env"] if one["name"] == CLUSTER_TOKEN_VARIABLE]
    source: dict[str, str] = found["valueFrom"]["secretKeyRef"]
    return source


def _train_arguments(argv: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what the training script makes of ``argv``; an unknown option ends the test."""
    script = ROOT / "examples" / "graph_store" / "train.py"
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", [str(script), *argv])
    spec = importlib.util.spec_from_file_location("graph_store_train", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    where, _ = module.parse_args()
    return where


def test_the_manifest_fits_the_code(parts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sorted(parts) == [
        ("PyTorchJob", "storage"),
        ("PyTorchJob", "train"),
        ("Service", "graph-store"),
    ]
    storage, train = parts["PyTorchJob", "storage"], parts["PyTorchJob", "train"]
    service = parts["Service", "graph-store"]
    servers = sum(one["replicas"] for one in _replicas(storage).values())
    for name, value in {**BY_OPERATOR, "WORLD_SIZE": str(servers)}.items():
        monkeypatch.setenv(name, value)

    (container,) = _pod(storage)["containers"]
    *launcher, module = container["command"]
    assert launcher == ["python", "-m"]
    assert importlib.import_module(module).main is main
    _check_environment(container)
    serve = parse_args(_arguments(container, dict(os.environ)))
    assert (serve.rank, serve.num_servers) == (1, servers)  # of the operator's environment
    assert serve.master_addr == BY_OPERATOR["MASTER_ADDR"]
    assert serve.own_addr == "pod_ip"
    assert Path(serve.root).is_relative_to(container["volumeMounts"][0]["mountPath"])
    mounts = {one["name"] for one in container["volumeMounts"]}
    assert mounts == {one["name"] for one in _pod(storage)["volumes"]}

    assert service["spec"]["clusterIP"] == "None"  # headless: of one address only, all ports
    assert [one["port"] for one in service["spec"]["ports"]] == [serve.port]
    selector = service["spec"]["selector"]
    assert selector["training.kubeflow.org/job-name"] == storage["metadata"]["name"]
    assert selector["training.kubeflow.org/replica-type"] == "master"  # where server 0 is

    (container,) = _pod(train)["containers"]
    launcher, script = container["command"]
    assert launcher == "torchrun"
    assert ROOT / script == ROOT / "examples" / "graph_store" / "train.py"
    assert (ROOT / script).is_file()
    _check_environment(container)
    where = _train_arguments(_arguments(container, dict(os.environ)), monkeypatch)
    assert where.servers == servers
    assert where.storage_addr == service["metadata"]["name"]
    assert where.rpc_port == serve.port
    assert where.compute_addr == BY_OPERATOR["MASTER_ADDR"]
    assert where.group_port not in (int(BY_OPERATOR["MASTER_PORT"]), serve.port)
    assert int(train["spec"]["nprocPerNode"]) == container["resources"]["limits"]["nvidia.com/gpu"]

    secret = _token(container)
    assert secret == _token(_pod(storage)["containers"][0])
    made = re.search(r"create secret generic (\S+) --from-literal=(\w+)=", MANIFEST.read_text())
    assert made is not None
    assert secret == {"name": made.group(1), "key": made.group(2)}
