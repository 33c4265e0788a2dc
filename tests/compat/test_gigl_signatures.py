"""Each parameter of GiGL's functions and classes has its effect here, or is refused by name.

Their signatures are read from the git directory that ``GIGL_REPOSITORY`` names, as text.
"""

import ast
import inspect
import os
import subprocess
import warnings
from concurrent.futures import Future
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gigl_loader import BaseDistLoader, ConfigError, DistDataset
from gigl_loader.dataset.gigl_parts import OF_GIGL
from gigl_loader.graph_store import (
    DistServer,
    async_request_server,
    init_compute_process,
    request_server,
    shutdown_compute_process,
)
from gigl_loader.graph_store.client import compute_process
from gigl_loader.loader.deployment.process_role import keyed_options
from gigl_loader.runtime.glt_classes import (
    MpDistSamplingWorkerOptions,
    RemoteDistSamplingWorkerOptions,
)
from gigl_loader.sources.workers.producer import DistSamplingProducer
from gigl_loader.testing.local_processes import store_info

COMMIT = "fee4ba5047cf8d066d04344690b41725a312c711"
REPOSITORY = os.environ.get("GIGL_REPOSITORY")
CALLS = [
    "base_dist_loader.BaseDistLoader",
    "dataset_factory.build_dataset",
    "dataset_factory.build_dataset_from_task_config_uri",
    "dist_ablp_neighborloader.DistABLPLoader",
    "dist_dataset.DistDataset",
    "dist_sampling_producer.DistSamplingProducer",
    "distributed_neighborloader.DistNeighborLoader",
    "graph_store.compute.async_request_server",
    "graph_store.compute.init_compute_process",
    "graph_store.compute.request_server",
    "graph_store.compute.shutdown_compute_process",
    "graph_store.remote_dist_dataset.RemoteDistDataset",
    "graph_store.storage_utils.build_storage_dataset",
    "graph_store.storage_utils.run_storage_server",
    "sampler.ABLPNodeSamplerInput",
    "utils.degree.compute_and_broadcast_degree_tensor",
    "utils.device.get_available_device",
    "utils.init_neighbor_loader_worker.init_neighbor_loader_worker",
    "utils.networking.get_free_ports_from_master_node",
]
"""What GiGL's scripts and subclasses call, below its ``gigl.distributed``."""


def _of_gigl(module: str, name: str) -> dict[str, list[str]]:
    """Return the parameters of a function, or of a class's public methods, by its name."""
    if REPOSITORY is None:
        pytest.skip("GIGL_REPOSITORY names no repository of GiGL's")
    path = f"{COMMIT}:gigl/distributed/{module.replace('.', '/')}.py"
    show = ["git", "-C", REPOSITORY, "show", path]
    text = subprocess.run(show, check=True, capture_output=True, text=True).stdout
    with warnings.catch_warnings(action="ignore"):
        body = ast.parse(text).body
    (found,) = (one for one in body if getattr(one, "name", "") == name)
    functions = [found] if isinstance(found, ast.FunctionDef) else found.body  # type: ignore[attr-defined]  # a class
    return {
        one.name: [
            argument.arg
            for argument in [*one.args.posonlyargs, *one.args.args, *one.args.kwonlyargs]
            if argument.arg != "self" and not argument.arg.startswith("_")
        ]
        for one in functions
        if isinstance(one, ast.FunctionDef)
        and (one.name == "__init__" or not one.name.startswith("_"))
        and not any(
            "property" in ast.unparse(by) or ".setter" in ast.unparse(by)
            for by in one.decorator_list
        )
    }


@pytest.mark.parametrize("path", CALLS)
def test_each_parameter_is_here_or_refused_by_name(path: str) -> None:
    module, _, name = path.rpartition(".")
    theirs = _of_gigl(module, name)
    here: Any = getattr(import_module(f"gigl_loader.{module}"), name)
    for function, parameters in theirs.items():
        ours = here if function in (name, "__init__") else getattr(here, function)
        known = inspect.signature(ours).parameters
        refused = OF_GIGL if path.endswith("DistDataset") and function == "__init__" else {}
        assert [one for one in parameters if one not in known and one not in refused] == []


@pytest.mark.parametrize("name", OF_GIGL)
def test_a_part_of_gigls_dataset_is_refused_with_what_to_do(name: str) -> None:
    made: Any = DistDataset
    with pytest.raises(ConfigError, match=rf"{name}=\) has no use here: "):
        made(0, 1, "in", **{name: torch.zeros(1)})
    assert made(0, 1, "in", **{name: None}).num_partitions == 1, "GiGL's default"


def test_an_unknown_part_of_a_dataset_is_refused_with_the_name_that_was_meant() -> None:
    with pytest.raises(TypeError, match="did you mean 'node_ids'"):
        DistDataset(0, 1, "in", nodeids=torch.arange(3))


def test_degree_tensors_are_refused_by_name() -> None:
    nothing: Any = None
    with pytest.raises(ConfigError, match=r"degree_tensors.*leave it out"):
        DistSamplingProducer(
            nothing, nothing, nothing, nothing, nothing, degree_tensors={"a": torch.ones(1)}
        )


@pytest.mark.parametrize("port", [-1, 65536, "a port"])
def test_a_master_port_that_is_none_is_refused(port: Any) -> None:
    how: dict[str, Any] = {
        "dataset_num_partitions": 1,
        "num_workers": 1,
        "worker_concurrency": 1,
        "master_ip_address": "127.0.0.1",
        "channel_size": "1MB",
        "pin_memory": False,
    }
    with pytest.raises(ConfigError, match="master_port must be"):
        BaseDistLoader.create_colocated_worker_options(master_port=port, **how)
    options = BaseDistLoader.create_colocated_worker_options(master_port=1234, **how)
    assert options.master_port == 1234, "for a producer of graphlearn-torch's"
    channel = BaseDistLoader.create_colocated_channel(options, channel_name="train")
    assert "train" in repr(channel)


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), "long"])
def test_an_rpc_timeout_that_is_none_is_refused(limit: Any) -> None:
    nothing: Any = None
    with pytest.raises(ConfigError, match="rpc_timeout must be"):
        init_compute_process(0, nothing, rpc_timeout=limit)


def test_an_rpc_timeout_limits_calls_of_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def call(name: str, timeout_s: float, /, **arguments: Any) -> "Future[int]":
        waits.append(timeout_s)
        done: Future[int] = Future()
        done.set_result(7)
        return done

    cluster = SimpleNamespace(connection=lambda server: SimpleNamespace(call=call), close=list)

    def join(*_: Any, **__: Any) -> None:
        monkeypatch.setattr(compute_process, "_cluster", cluster)

    monkeypatch.setattr(compute_process, "join_cluster", join)
    monkeypatch.setattr(compute_process, "_start_group", lambda *_: None)
    for limits in ((12.5,), ()):
        info = store_info(1, 1)
        monkeypatch.setenv("RANK", "0")
        init_compute_process(0, info, "gloo", *limits)
        assert request_server(0, DistServer.ping) == 7
        assert async_request_server(0, DistServer.ping).wait() == 7
        shutdown_compute_process()
    assert waits == [12.5, 12.5, 600.0, 600.0]


@pytest.mark.parametrize(("key", "named"), [(None, "train_compute_rank_3"), ("own", "own")])
def test_a_backend_key_names_the_producers_without_a_worker_key(key: Any, named: str) -> None:
    options = RemoteDistSamplingWorkerOptions(
        0, master_addr="127.0.0.1", master_port=1, worker_key=key
    )
    keyed: Any = keyed_options(options, "train", 3)
    assert (keyed.worker_key, options.worker_key) == (named, key), "the caller's stay"
    assert keyed_options(options, None, 3) is options


def test_a_backend_key_is_refused_without_a_graph_store() -> None:
    options = MpDistSamplingWorkerOptions(master_addr="127.0.0.1", master_port=1)
    with pytest.raises(ConfigError, match="backend_key='train' is for a graph store"):
        keyed_options(options, "train", 0)
