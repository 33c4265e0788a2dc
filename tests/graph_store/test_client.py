"""A compute process's way in: who it is, and what it may ask for."""

import platform
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gigl_loader import BaseDistLoader, GraphStoreInfo
from gigl_loader.errors import ConfigError, ServerDiedError, UsageError
from gigl_loader.graph_store import DistServer
from gigl_loader.graph_store.client import compute_process
from gigl_loader.graph_store.client.compute_process import compute_rank, job_name_of
from gigl_loader.graph_store.server.service import StorageService

HOST = "127.0.0.1"


class _Cluster:
    """Servers that answer as the test says."""

    world_size = 2

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answer: Future[Any] = Future()

    def connection(self, server: int) -> Any:
        def call(name: str, timeout_s: float, /, **arguments: Any) -> "Future[Any]":
            self.calls.append((server, name, arguments))
            return self.answer

        return SimpleNamespace(call=call)


@pytest.fixture
def cluster(take_part: Callable[[Any], None]) -> _Cluster:
    made = _Cluster()
    take_part(made)
    return made


def test_torchrun_ranks(monkeypatch):
    info = GraphStoreInfo(1, 2, 3, HOST, HOST, HOST, 0, 0, 0, 1, 0)
    monkeypatch.setenv("RANK", "1")
    assert compute_rank(2, info) == 5  # one process per machine was started
    monkeypatch.setenv("GROUP_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert compute_rank(2, info) == 5  # by a torchrun of fewer processes
    monkeypatch.setenv("GROUP_RANK", "1")
    monkeypatch.setenv("RANK", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert compute_rank(1, info) == 4  # torchrun started all
    for outside in (3, -1):
        with pytest.raises(ConfigError, match=r"local_rank must be in \[0, 3\)"):
            compute_rank(outside, info)


def test_the_name_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    info = GraphStoreInfo(1, 2, 3, HOST, HOST, "train0", 0, 0, 29500, 1, 0)
    for name in ("GIGL_LOADER_JOB", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    assert job_name_of(None, info) == "train0:29500"
    # each machine's own, whose jobs are not one
    for own in ("localhost", "127.0.0.1", "::1"):
        name = job_name_of(None, replace(info, compute_cluster_master_ip=own))
        assert name == f"{platform.node()}:29500"
    of_servers = replace(info, compute_cluster_master_port=0)
    monkeypatch.setenv("MASTER_ADDR", "worker3")  # of the process group, as Ray Train has it
    monkeypatch.setenv("MASTER_PORT", "1234")
    assert job_name_of(None, of_servers) == "worker3:1234"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")  # torchrun's default
    assert job_name_of(None, info) == "train0:29500"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "nightly")
    assert job_name_of(None, info) == "nightly"
    monkeypatch.setenv("GIGL_LOADER_JOB", "evaluation of März")
    assert job_name_of(None, info) == "evaluation of März"
    assert job_name_of("mine", info) == "mine"
    wrong: Any
    for wrong in ("", " mine", "two\nlines", "x" * 101, 5):
        with pytest.raises(ConfigError, match="has 1 to 100 printable characters"):
            job_name_of(wrong, info)
    monkeypatch.setenv("GIGL_LOADER_JOB", "x" * 101)
    with pytest.raises(ConfigError, match="the name of a job"):
        job_name_of(None, info)


def test_methods_are_asked_by_name_with_all_their_arguments(cluster: _Cluster) -> None:
    compute_process.call_server(1, DistServer.destroy_sampling_producer, 5)
    compute_process.call_server(0, DistServer.fetch_one_sampled_message, 5, consumer=3)
    compute_process.call_server(0, DistServer.get_schema)
    assert [(server, name) for server, name, _ in cluster.calls] == [
        (1, "destroy_sampling_producer"),
        (0, "fetch_one_sampled_message"),
        (0, "get_schema"),
    ]
    first, second, third = (arguments for _, _, arguments in cluster.calls)
    assert list(first) == ["producer_id", "linger_s"], "the default, too"
    assert (second, third) == ({"producer_id": 5, "consumer": 3}, {})


class _Other:
    def status(self) -> None:
        """Of the same name as a method of the table."""


def test_what_servers_do_not_call_is_refused_before_anybody_is_asked(cluster: _Cluster) -> None:
    for function in (StorageService.close, StorageService.producer, _Other.status, print):
        with pytest.raises(ConfigError, match="may ask for these methods of DistServer: cancel_"):
            compute_process.call_server(0, function)
    with pytest.raises(ConfigError, match=r"DistServer\.get_free_ports: .*num_ports"):
        compute_process.call_server(0, DistServer.get_free_ports)
    with pytest.raises(ConfigError, match="unexpected keyword"):
        compute_process.call_server(0, DistServer.get_schema, server=1)
    with pytest.raises(ConfigError, match="too many"):
        compute_process.call_server(0, DistServer.get_schema, 1)
    assert cluster.calls == []


def test_answers_and_errors_reach_torch_futures(cluster: _Cluster) -> None:
    waiting = compute_process.async_request_server(0, DistServer.ping)
    assert not waiting.done()
    cluster.answer.set_result(99)
    assert waiting.wait() == 99
    assert compute_process.request_server(0, DistServer.ping) == 99
    cluster.answer = Future()
    cluster.answer.set_exception(ServerDiedError("it is gone"))
    with pytest.raises(ServerDiedError, match="it is gone"):
        compute_process.async_request_server(0, DistServer.ping).wait()
    with pytest.raises(ServerDiedError, match="it is gone"):
        compute_process.request_server(0, DistServer.ping)


def test_who_has_not_joined_is_told_how() -> None:
    with pytest.raises(UsageError, match=r"call gigl_loader\.graph_store\.init_compute"):
        compute_process.current_cluster()
    compute_process.shutdown_compute_process()


def test_prefetching_is_not_limited_by_a_buffer_that_is_not_used(cluster: _Cluster) -> None:
    dataset = SimpleNamespace(
        cluster_info=GraphStoreInfo(3, 2, 1, HOST, HOST, HOST, 0, 0, 0, 1, 0),
        fetch_free_ports_on_storage_cluster=lambda count: list(range(7000, 7000 + count)),
    )
    nobody: Any = dataset
    how: dict[str, Any] = {
        "num_workers": 2,
        "worker_concurrency": 2,
        "channel_size": "1MB",
        "prefetch_size": 50,
    }
    options = BaseDistLoader.create_graph_store_worker_options(
        dataset=nobody, compute_rank=1, worker_key="key", **how
    )
    assert (options.prefetch_size, options.master_port) == (50, 7001)
    assert list(options.server_rank) == [0, 1, 2]
    assert options.worker_devices == [torch.device("cpu")] * 2
    for rank in (-1, 2):
        with pytest.raises(ConfigError, match=r"compute_rank must be in \[0, 2\)"):
            BaseDistLoader.create_graph_store_worker_options(
                dataset=nobody, compute_rank=rank, worker_key="key", **how
            )
