"""The Kubernetes manifest fits the published schemas and the code, and its parts fit each other."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.run import get_args_parser

from gigl_loader.graph_store import status
from gigl_loader.graph_store.serve import parse_serve
from gigl_loader.runtime.transport.security import TLS_DIR_VARIABLE

yaml = pytest.importorskip("yaml", reason="needs PyYAML, which the dev extra installs")
kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="needs kubernetes-validate, which the dev extra installs"
)

ROOT = Path(__file__).parents[2]
MANIFEST = ROOT / "examples" / "graph_store" / "kubernetes.yaml"
SCHEMAS = ("1.28", "1.37")
"""The first release that numbers the pods of a StatefulSet, and the newest that is shipped."""
PROBES = {"startupProbe": True, "readinessProbe": False, "livenessProbe": True}
"""Whether any answer will do."""


@pytest.fixture(scope="module")
def parts() -> dict[tuple[str, str], dict[str, Any]]:
    """Documents of the manifest by kind and name."""
    documents = list(yaml.safe_load_all(MANIFEST.read_text()))
    return {(one["kind"], one["metadata"]["name"]): one for one in documents}


def _pod(owner: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = owner["spec"]["template"]["spec"]
    return found


def _arguments(container: dict[str, Any]) -> list[str]:
    """Return the arguments as Kubernetes hands them on; every variable in them must be set."""
    known = {"RANK": "1", "POD_IP": "10.0.0.7", "POD_INDEX": "0"}
    set_here = {one["name"]: known.get(one["name"], "") for one in container["env"]}
    return [
        re.sub(r"\$\((\w+)\)", lambda found: set_here[found.group(1)], argument)
        for argument in container["args"]
    ]


def _check_environment(container: dict[str, Any]) -> None:
    """Each variable names the certificates or stands in a command: nothing else would be read."""
    names = {one["name"] for one in container["env"]}
    probes = [container[name]["exec"]["command"] for name in PROBES if name in container]
    said = " ".join([*container["args"], *(word for words in probes for word in words)])
    used = set(re.findall(r"\$\(?(\w+)\)?", said))
    assert names - used <= {TLS_DIR_VARIABLE, "NUMBA_CACHE_DIR", "GIGL_LOADER_JOB"}


def _certificates(pod: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return where the certificates are mounted, and the secret that they are from."""
    (volume,) = [one["secret"] for one in pod["volumes"] if one["name"] == "certificates"]
    (container,) = pod["containers"]
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "certificates"]
    assert mount["readOnly"]
    return mount["mountPath"], volume


def _status_arguments(container: dict[str, Any], probe: str) -> Any:
    shell, option, line = container[probe]["exec"]["command"]
    assert (shell, option) == ("sh", "-c")
    words = line.replace("$POD_IP", "10.0.0.7").split()
    assert words[:2] == ["gigl-loader", "status"]
    asked = status.parser().parse_args(words[2:])
    assert asked.timeout < container[probe]["timeoutSeconds"], "it says why, and is not cut off"
    return asked


def _train_arguments(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, command_line: Callable[..., None]
) -> Any:
    """Return what the training script makes of ``argv``; an unknown option ends the test."""
    script = ROOT / "examples" / "graph_store" / "train.py"
    monkeypatch.syspath_prepend(str(script.parent))  # the script does so itself
    command_line(script, *argv)
    spec = importlib.util.spec_from_file_location("graph_store_train", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    where, _ = module.parse_args()
    return where


@pytest.mark.parametrize("version", SCHEMAS)
def test_the_manifest_fits_the_published_schemas(parts: Any, version: str) -> None:
    for part in parts.values():
        kubernetes_validate.validate(part, version, strict=True)
    parts["StatefulSet", "storage"]["spec"]["replica"] = 2
    try:
        with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
            kubernetes_validate.validate(parts["StatefulSet", "storage"], version, strict=True)
    finally:
        del parts["StatefulSet", "storage"]["spec"]["replica"]


def test_the_storage_cluster_fits_the_code(parts: Any) -> None:
    storage, service = parts["StatefulSet", "storage"], parts["Service", "graph-store"]
    (container,) = _pod(storage)["containers"]
    assert container["command"] == ["gigl-loader", "serve"]
    _check_environment(container)
    serve = parse_serve(_arguments(container))
    assert (serve.rank, serve.num_servers) == (1, storage["spec"]["replicas"])
    assert serve.master_addr == f"{storage['metadata']['name']}-0.{service['metadata']['name']}"
    assert (serve.host, serve.num_jobs) == ("10.0.0.7", 0)
    assert Path(serve.root).is_relative_to(container["volumeMounts"][0]["mountPath"])
    mounts = {one["name"] for one in container["volumeMounts"]}
    assert mounts == {one["name"] for one in _pod(storage)["volumes"]}
    folder, _ = _certificates(_pod(storage))
    assert serve.tls == folder
    for probe, live in PROBES.items():
        asked = _status_arguments(container, probe)
        assert (asked.where, asked.tls, asked.live) == (("10.0.0.7", serve.port), folder, live)
        assert asked.where[1] == serve.port, "every server listens there"

    assert service["spec"]["publishNotReadyAddresses"], "servers meet before they are ready"
    assert service["spec"]["clusterIP"] == "None"  # headless: all ports, and a name for each pod
    assert storage["spec"]["serviceName"] == service["metadata"]["name"]
    ports = [one["port"] for one in service["spec"]["ports"]]
    assert ports == [one["containerPort"] for one in container["ports"]]
    assert ports == [serve.port, serve.metrics_port]


def test_the_training_job_fits_the_code(
    parts: Any, monkeypatch: pytest.MonkeyPatch, command_line: Callable[..., None]
) -> None:
    storage, job = parts["StatefulSet", "storage"], parts["Job", "train"]
    (container,) = _pod(job)["containers"]
    _check_environment(container)
    arguments = _arguments(container)
    script = next(one for one in arguments if one.endswith(".py"))
    launch, own = arguments[: arguments.index(script)], arguments[arguments.index(script) + 1 :]
    torchrun = get_args_parser().parse_args([*launch, script])  # an unknown option ends the test
    assert container["command"] == ["torchrun"]
    assert ROOT / script == ROOT / "examples" / "graph_store" / "train.py"
    assert (int(torchrun.nnodes), torchrun.node_rank) == (job["spec"]["completions"], 0)
    assert job["spec"]["completions"] == job["spec"]["parallelism"], "all have to run at once"
    assert int(torchrun.nproc_per_node) == container["resources"]["limits"]["nvidia.com/gpu"]
    pod_0 = f"{job['metadata']['name']}-0.{_pod(job)['subdomain']}"
    assert torchrun.master_addr == pod_0
    assert parts["Service", _pod(job)["subdomain"]]["spec"]["publishNotReadyAddresses"]

    where = _train_arguments(own, monkeypatch, command_line)
    serve = parse_serve(_arguments(_pod(storage)["containers"][0]))
    assert where.servers == serve.num_servers
    assert (where.storage_addr, where.rpc_port) == (serve.master_addr, serve.master_port)
    assert where.compute_addr == pod_0
    assert where.group_port not in (torchrun.master_port, serve.master_port)

    folder, secret = _certificates(_pod(job))
    assert (folder, secret) == _certificates(_pod(storage))
    assert {TLS_DIR_VARIABLE: folder}.items() <= {
        one["name"]: one.get("value") for one in container["env"]
    }.items()
    assert {one["path"] for one in secret["items"]} == {"ca.pem", "cert.pem", "key.pem"}
    made = re.search(
        r"create secret generic (\S+)((?:\s|\\|#|--from-file=\S+)*)", MANIFEST.read_text()
    )
    assert made is not None
    assert made.group(1) == secret["secretName"]
    given = dict(re.findall(r"--from-file=([\w.]+)=certs/([\w.]+)", made.group(2)))
    assert given == {one["key"]: one["path"] for one in secret["items"]}


def test_what_selects_pods_finds_them(parts: Any) -> None:
    labels = {
        name: parts[kind, name]["spec"]["template"]["metadata"]["labels"]
        for kind, name in (("StatefulSet", "storage"), ("Job", "train"))
    }
    for (kind, name), part in parts.items():
        owner = "storage" if name == "graph-store" else name
        selector = part["spec"].get("podSelector") or part["spec"].get("selector")
        if kind != "Job":  # a Job makes its own
            assert (selector.get("matchLabels") or selector) == labels[owner], (kind, name)
    reached = [
        (kind, *selector["matchLabels"].values(), [one["port"] for one in rule.get("ports", [])])
        for rule in parts["NetworkPolicy", "storage"]["spec"]["ingress"]
        for peer in rule["from"]
        for kind, selector in peer.items()
    ]
    rpc, metrics = (one["port"] for one in parts["Service", "graph-store"]["spec"]["ports"])
    assert reached == [
        ("podSelector", "storage", []),
        ("podSelector", "train", [rpc]),
        ("namespaceSelector", "monitoring", [metrics]),
    ]


def test_prometheus_finds_what_the_servers_export(parts: Any) -> None:
    """By the annotations that its usual configuration for pods reads, and the guide shows."""
    storage = parts["StatefulSet", "storage"]
    (container,) = _pod(storage)["containers"]
    serve = parse_serve(_arguments(container))
    found = storage["spec"]["template"]["metadata"]["annotations"]
    assert serve.tls, "strangers could read the figures"
    assert serve.metrics_host == "10.0.0.7", "Prometheus asks the pod's address"
    assert found == {
        "prometheus.io/scrape": "true",
        "prometheus.io/scheme": "https",
        "prometheus.io/port": str(serve.metrics_port),
        "prometheus.io/path": "/metrics",
    }
    page = (ROOT / "docs" / "guide" / "kubernetes.md").read_text()
    (job,) = yaml.safe_load(page.split("```yaml\nscrape_configs:")[1].split("```")[0])
    rules = [rule.get("source_labels", [""])[0] for rule in job["relabel_configs"]]
    read = {name for name in rules if name.startswith("__meta_kubernetes_pod_annotation_")}
    named = {re.sub(r"\W", "_", name) for name in found}
    assert {f"__meta_kubernetes_pod_annotation_{name}" for name in named} == read
    assert job["tls_config"].keys() >= {"ca_file", "cert_file", "key_file", "server_name"}
